"""Reads topics from the bucket: which segments exist, which ranges of them to read, and their records. A reader asks
brokers only for records that the bucket does not have yet.

`bucket.BucketOptions`, `catalog` and `splits` plan a read; `reading` performs it in Spark's workers.
"""
