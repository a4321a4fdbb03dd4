"""Segments rewritten or dropped: merging, compaction and retention. Each is one task of the broker.

`rewriting` replaces segments by one object of a newer generation, for `merger` and `compaction`.
"""
