"""Arithmetic on offsets: the lag of a reader."""

from __future__ import annotations


def lag(position: int, *, log_start_offset: int, end_offset: int) -> int:
    """Return how many offsets of a log a reader has not read, which goes on at `position`.

    What is below the log's start was deleted, and does not count. There are as many records, or fewer where compaction
    or transactions have left holes.
    """
    return max(0, end_offset - max(position, log_start_offset))
