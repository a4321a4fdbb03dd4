"""The three journals, one for each `--durability`. They keep acknowledged records until a segment has them.

    journal                    the protocol of all journals; the journal without a log (`segment`)
    local_wal, local_replay    the log on the local disk (`wal`)
    local_files                its files: made in advance, reused, deleted; waiting while the disk is full
    disk, direct_io            the disk itself
    s3_wal, s3_replay          the log in the bucket (`s3-wal`); also used for metadata under `segment`
    streams                    the logs of several brokers in one bucket
    data_directory             lock and file modes of the data directory

A partition appends to its journal and waits; the log replays it at a start. Knows entries, not partitions.
"""
