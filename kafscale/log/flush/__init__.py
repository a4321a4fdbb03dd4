"""Flush partitions to the bucket: choose which and when (`flusher`), upload (`upload`), free memory (`spilling`)."""
