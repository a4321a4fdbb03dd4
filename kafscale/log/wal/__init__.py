"""The three journals, one for each `--durability`: they keep acknowledged records until a segment has them.

    journal                    the protocol that all of them follow, and by which partition, log and broker know them
    local_wal, local_replay    the log on the local disk (`wal`); `disk` and `direct_io` are the disk itself
    local_files                the files of that log: made ahead, used again, and waited for while the disk is full
    kept_aside                 acknowledged batches of it that a start can't put back
    s3_wal, s3_replay          the log in the bucket (`s3-wal`); metadata uses it under `segment`, too
    flush_on_append            no log (`segment`)
    data_directory             whose disk it is

A partition appends to its journal and waits; the log replays it at a start. Knows entries, not partitions.
"""
