"""Reading topics from the bucket: which segments there are, what the write-ahead log or brokers have behind them, which
ranges to read, and their records. No broker is asked unless a reader wants what brokers alone have.

Entered by `bucket.BucketOptions`, `catalog` and `splits` when a read is planned, and by `reading` in Spark's workers.
"""
