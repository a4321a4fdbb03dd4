"""Find unflushed records that were acknowledged under another `--durability`.

A broker that is stopped in order leaves none: its last flush takes everything to the bucket. After a
crash, or a flush that was cut short, the log that the new mode does not read may still hold record batches. They are
not read into the wrong log and not passed over: the start is refused, and says which mode to start once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kafscale.config import Durability
from kafscale.errors import StartupError
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.log import Log
from kafscale.log.replaying import NotOpen, is_none
from kafscale.log.wal.journal import Handle
from kafscale.log.wal.local_wal import LocalLog, Wal


async def check_other_logs(
    log: Log,
    durability: Durability,
    replay_bucket: Callable[[Handle], Awaitable[object]],
    local: LocalLog,
    not_open: NotOpen,
) -> Wal | None:
    """Refuse to start without what another durability has acknowledged, once `log` is restored and replayed.

    `replay_bucket` replays the log in the bucket. `not_open` is as for `Log.replay`. Returns the log on the local disk,
    where it is another one: its files may be missing.

    Raises StartupError, DamagedObject, StorageFailed, StoreError.
    """
    if durability is not Durability.S3_WAL:
        counter = _MissingBatches(log)
        await replay_bucket(counter.handle)
        counter.refuse("the write-ahead log in the bucket", "s3-wal")
    if durability is not Durability.WAL:
        counter = _MissingBatches(log, not_open.is_unknown)
        wal = Wal(disk=local.disk, on_durable=lambda entries: None, extents=local.extents)
        await wal.replay(counter.handle)
        counter.refuse(f"the write-ahead log in {local.disk.location}", "wal")
        await wal.files.note(is_end=True)  # nothing of it is needed
        return wal
    return None


class _MissingBatches:
    """Counts the batches that continue a partition behind its last segment, or are of an unknown one."""

    def __init__(self, log: Log, is_unknown: Callable[[WalEntry], bool] = is_none) -> None:
        self.log = log
        self.is_unknown = is_unknown
        self.count = 0

    def handle(self, entry: WalEntry) -> bool:
        partition = self.log.partition(entry.topic_id, entry.partition)
        missing = self.is_unknown(entry) if partition is None else entry.base_offset >= partition.next_offset
        self.count += missing
        return missing

    def refuse(self, what: str, durability: str) -> None:
        if self.count:
            raise StartupError(
                f"{what} has {self.count} acknowledged record batches that are in no segment yet: start once with "
                f"--durability {durability} and stop that broker, which takes them there"
            )
