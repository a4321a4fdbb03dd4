"""Reading topics from the bucket without a broker: which segments there are, what the write-ahead log has
behind them, which ranges to read, and their records.

Entered by `bucket.BucketOptions`, `catalog` and `splits` when a read is planned, and by `reading` in Spark's workers.
"""
