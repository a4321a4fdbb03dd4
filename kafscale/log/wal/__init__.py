"""The journals, one for each `--durability`. They keep acknowledged records until a segment has them.

A partition appends to its journal and waits; the log replays it at a start. Knows entries, not partitions.
"""
