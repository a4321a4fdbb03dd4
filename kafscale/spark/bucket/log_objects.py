"""The write-ahead log in the bucket, as a reader sees it: records that `s3-wal` has acknowledged and not flushed.

The rule of a broker's start decides which objects count (`kafscale.formats.wal_runs`). Objects never change: each is
read once, and its index is kept while it is listed, also beyond a query (`memory_of`). All records of an object that
has gone are in segments, which therefore are listed after the log, never before.

The log begins where a checkpoint of the metadata ends, and has later changes of the metadata in it. A broker trims only
objects whose changes are in a newer checkpoint, so a reader that comes too late reads the checkpoint again, then the
log. Brokers that share the bucket have a stream each, without changes of metadata.

A start writes a checkpoint of the manifests before it serves, which decides about segments that an earlier broker sends
afterwards (`kafscale.formats.resolution`). It is large, and is read only where objects contradict one another.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from threading import Lock

import attrs

from kafscale.errors import AccessDenied, DamagedObject, NotFound, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.manifest_checkpoint import ManifestCheckpoint, decode_manifests
from kafscale.formats.metadata_changes import Transaction
from kafscale.formats.placements import Beginning
from kafscale.formats.resolution import NOTHING_DECIDED, Decided
from kafscale.formats.segment import EpochStart, Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction, OpenTransactions
from kafscale.formats.wal_index import LoggedBatch, LoggedObject
from kafscale.formats.wal_objects import WalPosition
from kafscale.formats.wal_runs import check_place, find_keys, find_shared_keys, is_gap, is_superseded, position_of
from kafscale.spark.bucket.bucket import BlockingStore, Bucket, BucketOptions, get_many, run
from kafscale.spark.bucket.metadata import Metadata, MetadataReader
from kafscale.store.base import ObjectInfo
from kafscale.store.paths import NumberedKey, SegmentKey, parse_numbered_key, system_prefix
from kafscale.store.versions import find_versions, list_versions


@attrs.frozen(kw_only=True)
class UnflushedTail:
    """Batches that follow one another behind the last segment, or none.

    `aborted` transactions have their marker in the tail; `open_transactions` are open at its end.
    """

    batches: Sequence[LoggedBatch] = ()
    aborted: Sequence[AbortedTransaction] = ()
    open_transactions: Sequence[OpenTransaction] = ()

    @classmethod
    def of(cls, logged: Sequence[LoggedBatch], last: Footer | None, log_start_offset: int) -> UnflushedTail:
        """Make the tail of a partition's batches in the log. `last` is the footer of its last segment, if any."""
        batches = list(_following(logged, last, log_start_offset))
        transactions = OpenTransactions.of(() if last is None else last.open_transactions)
        aborted: list[AbortedTransaction] = []
        for batch in batches:
            if batch.marker is not None:
                ended = transactions.end_by(batch.marker, batch.base_offset)
                if ended is not None and ended.aborted is not None:
                    aborted.append(ended.aborted)
            elif batch.header is not None and not batch.header.is_control:
                transactions.take_batch(batch.header, batch.base_offset)
        return cls(batches=batches, aborted=aborted, open_transactions=list(transactions.open.values()))

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.batches[-1].next_offset - 1

    @property
    def stable_end(self) -> int:
        """Return the last stable offset of a tail with batches."""
        return min(
            [transaction.first_offset for transaction in self.open_transactions[:1]], default=self.last_offset + 1
        )


NO_TAIL = UnflushedTail()


def begun(logged: Sequence[LoggedBatch]) -> Sequence[EpochStart]:
    """Return where each leader epoch has begun: segments of an earlier epoch from there on came too late."""
    starts: dict[int, int] = {}
    for batch in logged:
        starts.setdefault(batch.leader_epoch, batch.base_offset)
    return [EpochStart(epoch, start_offset) for epoch, start_offset in starts.items()]


def _following(logged: Sequence[LoggedBatch], last: Footer | None, log_start_offset: int) -> Iterator[LoggedBatch]:
    next_offset = 0 if last is None else last.last_offset + 1
    epochs = [] if last is None else list(last.epochs)
    is_first = True
    for batch in logged:
        if _is_over(batch, next_offset, epochs):
            continue
        if is_first and next_offset < batch.base_offset <= log_start_offset:
            next_offset = batch.base_offset  # what is below was deleted, and never flushed
        if batch.base_offset != next_offset:
            return
        if not epochs or epochs[-1].epoch != batch.leader_epoch:
            epochs.append(EpochStart(batch.leader_epoch, batch.base_offset))
        is_first = False
        next_offset = batch.next_offset
        yield batch


def _is_over(batch: LoggedBatch, next_offset: int, epochs: Sequence[EpochStart]) -> bool:
    begins = EpochStart(batch.leader_epoch, batch.base_offset)
    return batch.base_offset < next_offset or is_superseded(begins, epochs, next_offset)


READS_AT_ONCE_COUNT = 16  # whole objects, of 8 MiB as a rule at most
SMALL_READS_AT_ONCE_COUNT = 64  # where all are small, as each waits for the store
SMALL_MAX_BYTES = 256 << 10
KEPT_BYTES = 16 << 20  # of the objects that were read last, as tasks that are planned soon need them
LOGS_MAX_COUNT = 4  # that a process remembers

logger = logging.getLogger(__name__)


class LogMoved(Exception):
    """An object has gone since it was listed: a newer checkpoint has its changes, and has to be read first."""


@attrs.frozen
class LogView:
    """The log at one moment: its objects in order, and the changes of metadata behind the checkpoint."""

    objects: Sequence[LoggedObject] = ()
    transactions: Sequence[Transaction] = ()

    def batches(self, partition: PartitionId) -> Sequence[LoggedBatch]:
        """Return the batches of a partition in order; each of its leaders may have a stream."""
        found = [batch for object_ in self.objects for batch in object_.batches.get(partition, ())]
        return sorted(found, key=attrgetter("leader_epoch", "base_offset"))


@attrs.frozen
class Known:
    etag: str
    content: LoggedObject


@attrs.define(eq=False, repr=False)
class LogMemory:
    """Objects of one log that were read. Readers in any thread may share it.

    contents: the bytes of the objects that were added last, KEPT_BYTES at most.
    """

    objects: Mapping[NumberedKey, Known] = attrs.field(factory=dict, init=False)
    contents: dict[NumberedKey, memoryview] = attrs.field(factory=dict, init=False)
    _size_bytes: int = attrs.field(default=0, init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False)

    def add(self, key: NumberedKey, data: memoryview) -> None:
        """Keep the bytes of an object, and drop the oldest ones."""
        with self._lock:
            self._size_bytes += len(data) - len(self.contents.pop(key, b""))
            self.contents[key] = data
            while self._size_bytes > KEPT_BYTES:
                self._size_bytes -= len(self.contents.pop(next(iter(self.contents))))

    def keep(self, objects: Mapping[NumberedKey, Known]) -> None:
        """Keep these objects alone."""
        with self._lock:
            self.objects = objects
            self.contents = {key: data for key, data in self.contents.items() if key in objects}
            self._size_bytes = sum(map(len, self.contents.values()))


@lru_cache(LOGS_MAX_COUNT)
def memory_of(options: BucketOptions, namespace: str) -> LogMemory:
    """Return this process's memory of a log, for readers with the same credentials."""
    return LogMemory()


@attrs.define(eq=False, repr=False)
class BucketLog:
    """Looks at the log of one bucket again and again, and remembers its objects."""

    bucket: Bucket
    namespace: str
    memory: LogMemory = attrs.field(factory=LogMemory)
    read_count: int = attrs.field(default=0, init=False)  # objects that were got
    _unchecked: dict[NumberedKey, Known] = attrs.field(factory=dict, init=False)  # since the last good look

    def look(self, kept_until: WalPosition, *, is_shared: bool = False) -> LogView:
        """Return the log as it is now. `kept_until` is the position of a checkpoint that was read before.

        is_shared: brokers share the bucket, each with a stream without changes of metadata; all are read. Raises
        LogMoved if the position is too old by now, DamagedObject if an acknowledged object is missing or damaged,
        AccessDenied, StoreError.
        """
        listed: dict[NumberedKey, ObjectInfo] = {}
        keys = self._find(kept_until, is_shared, listed)
        known = {
            key: object_
            for key, object_ in self.memory.objects.items()
            if key in listed and listed[key].etag == object_.etag
        }
        new = [key for key in keys if key not in known]
        self._unchecked |= self._read([key for key in new if key not in self._unchecked], listed)
        objects = {key: each for key in keys if (each := known.get(key) or self._unchecked.get(key)) is not None}
        if not is_shared and any(position_of(key) > kept_until for key in new if key not in objects):
            raise LogMoved
        _check_order(objects, self._unchecked)
        self.memory.keep(objects)
        self._unchecked = {}
        contents = {key: object_.content for key, object_ in objects.items()}
        changing = [(key, content) for key, content in contents.items() if content.transactions and not is_shared]
        behind = [content.transactions for key, content in changing if position_of(key) > kept_until]
        return LogView(list(contents.values()), list(chain.from_iterable(behind)))

    def _find(
        self, kept_until: WalPosition, is_shared: bool, listed: dict[NumberedKey, ObjectInfo]
    ) -> Sequence[NumberedKey]:
        store = _NotingStore(self.bucket, listed)
        try:
            if is_shared:
                return run(find_shared_keys(store, self.namespace, kept_until.epoch))
            return run(find_keys(store, self.namespace, kept_until))
        except NotFound as exc:
            raise LogMoved from exc

    def _read(
        self, keys: Sequence[NumberedKey], listed: Mapping[NumberedKey, ObjectInfo]
    ) -> Mapping[NumberedKey, Known]:
        are_small = all(listed[key].size_bytes <= SMALL_MAX_BYTES for key in keys)
        at_once_count = SMALL_READS_AT_ONCE_COUNT if are_small else READS_AT_ONCE_COUNT

        def read(key: NumberedKey) -> Known | None:
            try:
                data = memoryview(self.bucket.get(key.key).data)
            except NotFound:
                logger.debug("%s has been deleted since it was listed", key.key)
                return None
            self.memory.add(key, data)
            return Known(listed[key].etag, LoggedObject.decode(key, data))

        self.read_count += len(keys)
        found = [turned.result() for turned in get_many(read, keys, at_once_count=at_once_count)]
        return {key: known for key, known in zip(keys, found, strict=True) if known is not None}


@attrs.frozen(eq=False, repr=False)
class _NotingStore(BlockingStore):
    listed: dict[NumberedKey, ObjectInfo]

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async for page in super().list(prefix, start_after=start_after):
            for info in page:
                key = parse_numbered_key(info.key)
                if key is not None:
                    self.listed[key] = info
            yield page


def _check_order(objects: Mapping[NumberedKey, Known], new: Container[NumberedKey]) -> None:
    for before, key in zip([None, *objects], objects, strict=False):
        if key not in new:
            continue
        expected: WalPosition | None = None
        if before is not None and before.epoch == key.epoch and not is_gap(position_of(before), position_of(key)):
            header = objects[before].content.header
            expected = WalPosition(before.epoch, header.sequence + header.entry_count)
        check_place(key, objects[key].content.header, expected)


@attrs.define(eq=False, repr=False)
class DecisionReader:
    """Reads the newest checkpoint of the manifests on demand, and keeps it until there is a newer one."""

    bucket: Bucket
    namespace: str
    _key: NumberedKey | None = attrs.field(default=None, init=False)
    _checkpoint: ManifestCheckpoint = attrs.field(factory=dict, init=False)

    def look(self) -> None:
        """Read the newest checkpoint, unless it is forbidden or damaged: that is a warning. Raises StoreError."""
        store = BlockingStore(self.bucket)
        try:
            keys = run(list_versions(store, self.namespace, "manifests"))
            if not keys or keys[-1] == self._key:
                return
            found = run(find_versions(store, self.namespace, "manifests", decode_manifests))
        except AccessDenied as exc:
            self._warn(exc)
            return
        for damage in found.damage:
            self._warn(damage)
        self._checkpoint = {} if found.newest is None else found.newest
        self._key = found.keys[-1]

    def decided(self, partition: PartitionId, keys: Iterable[SegmentKey]) -> Decided:
        """Return which of these segments the leading broker took for parts of the log, as of the last look."""
        known = self._checkpoint.get(partition)
        return NOTHING_DECIDED if known is None else known.decided(keys)

    def _warn(self, why: Exception) -> None:
        prefix = system_prefix("manifests", namespace=self.namespace)
        logger.warning("can't read %s: records that a broker sent too late may be returned: %s", prefix, why)


LOOKS_MAX_COUNT = 10  # between two of them at least one checkpoint was written
DAMAGED_LOOKS_COUNT = 3  # what seems to be damage may have been trimmed meanwhile


@attrs.frozen
class Present:
    """Metadata and log at one moment. `damage`: the reason why an existing log is not read."""

    metadata: Metadata = attrs.field(factory=Metadata)
    log: LogView = LogView()
    damage: DamagedObject | None = None


@attrs.define(eq=False, repr=False)
class PresentReader:
    """Reads metadata and log again and again. Without `with_log`, metadata is that of the checkpoint."""

    bucket: Bucket
    namespace: str
    with_log: bool
    memory: LogMemory = attrs.field(factory=LogMemory)
    _metadata: MetadataReader = attrs.field(init=False)
    log: BucketLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._metadata = MetadataReader(self.bucket, self.namespace)
        self.log = BucketLog(self.bucket, self.namespace, self.memory)

    def read(self) -> Present:
        """Return metadata and log as of now; a forbidden part is left out with a warning. Raises StoreError."""
        damaged_count = 0
        for _ in range(LOOKS_MAX_COUNT):
            metadata = self._metadata.read()
            position = self._metadata.position
            if not self.with_log or position is None:
                return Present(metadata)
            try:
                view = self.log.look(position, is_shared=self._metadata.is_shared)
            except LogMoved:
                continue
            except DamagedObject as exc:
                damaged_count += 1
                if damaged_count == DAMAGED_LOOKS_COUNT:
                    return Present(metadata, damage=exc)
                continue
            except AccessDenied as exc:
                prefix = system_prefix("wal", namespace=self.namespace)
                logger.warning("can't read %s: reading flushed records alone: %s", prefix, exc)
                self.with_log = False
                return Present(metadata)
            return Present(self._metadata.changed_by(view.transactions), view)
        raise StoreError("the broker trims the write-ahead log faster than it can be read: try again")

    def beginnings(self, topic_id: bytes) -> Mapping[int, Beginning]:
        """Return where epochs of a topic's partitions began, as of now; nothing for a broker alone.

        Raises DamagedObject, StoreError.
        """
        return self._metadata.read().beginnings(topic_id) if self._metadata.is_shared else {}
