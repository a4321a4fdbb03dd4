"""The log: make records durable, keep them and return them. Knows no requests and no connections.

`opening` builds a `log.Log` from the settings. docs/discussion/rooms/log.md says what each folder does.
"""
