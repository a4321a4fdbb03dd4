"""The web console: a program of its own that is a client of any Kafka cluster.

`web` serves the `pages` on trio; the modules here are what pages share. It must not import the broker's rooms: all that
a page shows comes over Kafka's protocol, the admin server, or the bucket's readers.
"""
