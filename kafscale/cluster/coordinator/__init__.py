"""The frame of the coordinators: internal topics whose partitions hold a coordinator's state as records.

    load     `loading` reads each partition that this broker leads, batch by batch, up to its end
    apply    `partitions` gives every record to the state of its partition, and requests the state of their key
    write    `entries` appends a group of records and markers in one step; `writer` batches records of many requests
    resign   the state is dropped before another broker may lead the partition

The coordinator of a key (a group id, a transactional id) is the leader of the partition that the key hashes to; its
coordinator epoch is the leader epoch. A kind of state plugs in as a `LedPartitions`, registered with `Leadership` under
its topic; the frame knows nothing of what the records mean.
"""

from kafscale.cluster.coordinator.entries import Appended, EndEntry, Entry, InternalLog, RecordsEntry
from kafscale.cluster.coordinator.loading import InternalBatch, Leadership, SkippedRecords, apply_batch, load
from kafscale.cluster.coordinator.partitions import LedPartitions

__all__ = [
    "Appended",
    "EndEntry",
    "Entry",
    "InternalBatch",
    "InternalLog",
    "Leadership",
    "LedPartitions",
    "RecordsEntry",
    "SkippedRecords",
    "apply_batch",
    "load",
]
