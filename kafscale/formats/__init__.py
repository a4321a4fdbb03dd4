"""The formats of the bucket and the local disk: bytes to values and back, shared by the broker and Spark's readers.

    segment, segment_v1                 a segment's header, batches and footer; `footer_reading` reads the footer
    manifest, resolution                a partition's segments, and which of two objects counts
    manifest_checkpoint, log_end        what a start need not read again
    wal_entries, wal_objects            the write-ahead log, on the local disk and in the bucket
    wal_index, wal_runs                 what a log object has of which partition; which objects count
    transactions                        producers and transactions in footers
    metadata_changes, metadata_checkpoint, metadata_head, placements    the metadata in the bucket

Sans-IO, except for coroutines that wait for nothing but the object store. May not import trio. `reference` makes
`docs/reference/formats.md` from these modules.
"""
