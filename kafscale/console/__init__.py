"""The web console: a program of its own that is a client of any Kafka cluster.

`serving` runs the pages of `app` on trio. It must not import `cluster`, `log`, `server` or `api`: all that a page shows
comes over Kafka's protocol, the admin server, or the bucket's readers.
"""
