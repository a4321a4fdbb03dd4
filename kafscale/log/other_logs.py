"""What was acknowledged under another `--durability` and is in no segment yet.

A broker that is stopped in order leaves nothing of the kind: its last flush takes everything to the bucket. After a
crash, or a flush that was cut short, the log that the new mode does not read may still hold record batches. They are
not read into the wrong log and not passed over: the start is refused, and says which mode to start once.
"""

from __future__ import annotations

from kafscale.errors import StartupError
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.log import Log
from kafscale.log.wal.disk import Disk
from kafscale.log.wal.local_wal import Wal
from kafscale.log.wal.s3_replay import EarlierLog
from kafscale.log.wal.s3_wal import S3Wal


async def check_other_logs(log: Log, journal: S3Wal | None, earlier: EarlierLog, disk: Disk) -> None:
    """To be called when `log` is restored and replayed. Raises StartupError, DamagedObject, StoreError."""
    if not isinstance(log.wal, S3Wal):
        counter = _MissingBatches(log)
        if journal is None:
            await earlier.replay(counter.handle)
        else:
            await journal.replay(earlier, counter.handle)
        counter.refuse("the write-ahead log in the bucket", "s3-wal")
    if not isinstance(log.wal, Wal):
        counter = _MissingBatches(log)
        await Wal(disk=disk, on_durable=lambda entries: None).replay(counter.handle)
        counter.refuse(f"the write-ahead log in {disk.location}", "wal")


class _MissingBatches:
    """Counts the batches that continue a partition behind its last segment."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.count = 0

    def handle(self, entry: WalEntry) -> bool:
        partition = self.log.partition(entry.topic_id, entry.partition)
        missing = partition is not None and entry.base_offset >= partition.next_offset
        self.count += missing
        return missing

    def refuse(self, what: str, durability: str) -> None:
        if self.count:
            raise StartupError(
                f"{what} has {self.count} acknowledged record batches that are in no segment yet: start once with "
                f"--durability {durability} and stop that broker, which takes them there"
            )
