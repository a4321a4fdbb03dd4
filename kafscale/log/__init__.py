"""Durability: WAL, chunk pool, partitions, segments, flusher, reader. Knows no requests and no connections."""
