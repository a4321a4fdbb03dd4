"""One module per API key, and the table from which ApiVersions is built.

Every module here that is named after an API opens with the versions of it that are served and what each of them added:
Fetch 12 is in `fetch`, Produce 9 in `produce`, the one API that is a folder. `table` lists them all; `calls` says how a
handler is called, and `services` what it works with.
"""
