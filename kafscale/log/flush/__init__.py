"""Flush partitions to the bucket: choose which and when, and free memory (`flusher`); upload one flush (`upload`)."""
