"""Flush partitions to the bucket: choose which and when (`flusher`), and do one flush in three steps (`upload`).

`pacing` bounds the objects a minute, `spilling` gives memory back while the bucket is away.
"""
