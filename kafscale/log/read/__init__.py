"""Reading a partition, from memory or from the bucket by one ranged GET: entered by `reader.Reader`.

reader        the way of one fetch: the tail, else a footer and a range
footers       the cache of footers
ranges        the cache of what segments hold, in memory (`segment_cache`) and on disk (`disk_cache`)
read_ahead    what a consumer that goes on will ask for next
file_ranges   what the kernel sends by itself
unpacking, time_search   compressed batches, off the event loop and within bounds
"""
