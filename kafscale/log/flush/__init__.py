"""From memory to the bucket: when to flush which partition (`flusher`), and one flush in three steps (`upload`).

`pacing` bounds the objects a minute, `spilling` gives memory back while the bucket is away.
"""
