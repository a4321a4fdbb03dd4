"""Read a partition, from memory or from the bucket by one ranged GET. Entered by `reader.LogReader`.

reader        one fetch: the tail, else a footer and a range
footers       the cache of footers
ranges        ranges of segments, from caches in memory (`segment_cache`) and on disk (`disk_cache`), or the store
read_ahead    what a sequential consumer will request next
file_ranges   ranges of files that the kernel sends
unpacking, time_search   compressed batches, off the event loop and within bounds
"""
