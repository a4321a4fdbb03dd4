"""Segments made anew, or dropped: merging, compaction and retention. Each is one task of the broker.

`rewriting` puts one object of a newer generation into the place of others, for `merger` and for `compaction`.
"""
