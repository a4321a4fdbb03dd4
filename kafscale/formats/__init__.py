"""The formats of the bucket and the local disk: bytes to values and back, shared by the broker and Spark's readers.

    segment, segment_v1, footers_v1     a segment's header, batches and footer; `footer_reading` finds the footer
    manifest, resolution                which segments a partition has, and which of two objects counts
    manifest_checkpoint, log_end        what a start need not read again
    wal_entries, wal_objects            the write-ahead log, on the local disk and in the bucket
    wal_index, wal_contents             what an object of the log has of which partition
    wal_runs                            which objects of the log count
    transactions, open_transactions     what footers tell of transactions, and what batches make of them
    metadata_changes, metadata_checkpoint   the metadata in the bucket; of several brokers: metadata_head, placements

Sans-IO, but for coroutines that wait for nothing but the object store. May not import trio, so that a reader that
blocks can run them. `docs/reference/formats.md` is made from these modules (`reference`).
"""
