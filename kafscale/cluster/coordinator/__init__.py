"""Internal topics as coordinators stand on them: partitions of the log whose records are the coordinators' state.

    entries       what is written: records, and the markers of transactions; several at once, with nothing between them
    loading       what a partition says, from the bucket and the log up to its end
    left_out      what can't be read of that, which is told of and counted
    leadership    who keeps a partition's state is told to read it when this broker leads it, and to let go of it

    writer        records that share a batch while one is on its way, and callbacks in the order of the log

Entered by `InternalLog`, which writes, and `Leadership`, which reads. The coordinator of a group or of a transactional
id is the leader of the partition that its id hashes to (`partitioning`); the coordinator's epoch is the partition's
leader epoch. What the records mean is not known here; their bytes are in `kafscale.wire.internal_topics`.
"""

from kafscale.cluster.coordinator.entries import Appended, EndEntry, Entry, InternalLog, RecordsEntry
from kafscale.cluster.coordinator.leadership import Keeper, Leadership, Loader
from kafscale.cluster.coordinator.left_out import LeftOut
from kafscale.cluster.coordinator.loading import InternalBatch, load

__all__ = [
    "Appended",
    "EndEntry",
    "Entry",
    "InternalBatch",
    "InternalLog",
    "Keeper",
    "Leadership",
    "LeftOut",
    "Loader",
    "RecordsEntry",
    "load",
]
