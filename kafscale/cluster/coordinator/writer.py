"""Write records of synchronous state machines to an internal topic, one batch of each partition at a time.

`submit` returns at once. Records that are submitted while a batch is on its way share the next one. Callbacks come in
the order of the log once the records are durable, so a change survives the connection that asked for it.

    no room (disk or pool)               essential records wait for room; others are called back with False
    no room to make a batch durable      `late` is called, and the callback comes all the same
    partition resigned, or log failed    the callback gets False, also if the partition has come back since
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from kafscale.cluster.coordinator.entries import Appended, InternalLog, RecordsEntry
from kafscale.errors import KafkaError, StorageFailed
from kafscale.wire.records import Record

BATCH_RECORDS_COUNT = 1000  # that submissions may share; one that has more is divided
BATCH_TARGET_BYTES = 256 << 10

Then = Callable[[bool], None]  # told whether the records are durable


def _ignore(*_arguments: object) -> None:
    pass


@attrs.frozen(eq=False, repr=False)
class TopicLog:
    """The partitions of `topic` that this broker leads."""

    internal: InternalLog
    topic: str

    def append(self, partition: int, records: Sequence[Record]) -> Appended | None:
        """Append one batch; None if there is no room. Raises KafkaError if not led here, StorageFailed."""
        entry = RecordsEntry(self.internal.led_partition(self.topic, partition), records)
        return self.internal.append_group([entry], time.time_ns() // 1_000_000)

    async def wait_for_room(self, partition: int, records: Sequence[Record]) -> None:
        """Wait until there may be room for these; at once if the partition is not led here."""
        found = self.internal.partition(self.topic, partition)
        if found is not None:
            await self.internal.wait_for_room([RecordsEntry(found, records)])


@attrs.frozen(eq=False, kw_only=True, repr=False)
class _Submission:
    records: Sequence[Record]
    then: Then
    late: Callable[[], None] = _ignore
    placed: Callable[[Sequence[int]], None] = _ignore
    essential: bool = False
    tenure: int


@attrs.frozen(eq=False, repr=False)
class _Following:
    """A callback behind a batch that was appended without this writer."""

    partition: int
    appended: Appended
    then: Then


@attrs.define(eq=False, repr=False)
class RecordWriter:
    """Writes while `run` runs; what is submitted before waits for that."""

    log: TopicLog
    _waiting: dict[int, deque[_Submission]] = attrs.field(factory=dict, init=False)  # by partition
    _writing: set[int] = attrs.field(factory=set, init=False)
    _following: list[_Following] = attrs.field(factory=list, init=False)  # until it runs
    _tenures: Counter[int] = attrs.field(factory=Counter, init=False)  # how often each partition was resigned
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def resign(self, partition: int) -> None:
        """Drop the submissions of a partition: another broker may have written to it before it comes back."""
        self._tenures[partition] += 1

    def submit(
        self,
        partition: int,
        records: Sequence[Record],
        then: Then,
        *,
        late: Callable[[], None] = _ignore,
        placed: Callable[[Sequence[int]], None] = _ignore,
        essential: bool = False,
    ) -> None:
        """Write records; then tell `placed` their offsets, and call `then`, which must not raise."""
        submission = _Submission(
            records=records,
            then=then,
            late=late,
            placed=placed,
            essential=essential,
            tenure=self._tenures[partition],
        )
        self._waiting.setdefault(partition, deque()).append(submission)
        if self._nursery is not None:
            self._begin(partition)

    def follow(self, partition: int, appended: Appended, then: Then) -> None:
        """Call `then` in its turn for a batch that was appended without this writer, as `submit` does."""
        following = _Following(partition, appended, then)
        if self._nursery is None:
            self._following.append(following)
        else:
            self._nursery.start_soon(self._follow, following)

    async def _follow(self, following: _Following) -> None:
        try:
            await following.appended.wait()
        except StorageFailed:
            following.then(False)  # the log reports its failure itself
            return
        if following.partition in self._writing:  # it may be before that batch
            submission = _Submission(records=(), then=following.then, tenure=self._tenures[following.partition])
            self._waiting[following.partition].appendleft(submission)
        else:
            following.then(True)

    async def wait_settled(self, partition: int) -> None:
        """Wait until all earlier submissions are durable or lost."""
        if partition in self._writing or self._waiting.get(partition):
            settled = trio.Event()
            self.submit(partition, (), lambda durable: settled.set())
            await settled.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for partition in self._waiting:
                    self._begin(partition)
                for following in self._following:
                    nursery.start_soon(self._follow, following)
                self._following.clear()
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _begin(self, partition: int) -> None:
        # Submissions of this turn of the event loop share the batch of the task.
        if partition not in self._writing:
            assert self._nursery is not None
            self._writing.add(partition)
            self._nursery.start_soon(self._write_all, partition)

    async def _write_all(self, partition: int) -> None:
        waiting = self._waiting[partition]
        while waiting:
            if waiting[0].tenure != self._tenures[partition]:
                waiting.popleft().then(False)
                continue
            if not waiting[0].records:
                waiting.popleft().then(True)
                continue
            taken = _take(waiting)
            offsets = await self._write(partition, taken)
            begin = 0
            for submission in taken:
                end = begin + len(submission.records)
                if offsets is not None:
                    submission.placed(offsets[begin:end])
                submission.then(offsets is not None)
                begin = end
        self._writing.discard(partition)

    async def _write(self, partition: int, taken: Sequence[_Submission]) -> Sequence[int] | None:
        """Make these durable together; return the offsets of their records, or None if they are lost."""

        def tell_late() -> None:
            for submission in taken:
                submission.late()

        essential = any(submission.essential for submission in taken)
        records = [record for submission in taken for record in submission.records]
        offsets: list[int] = []
        appended: Appended | None = None
        try:
            for piece in _pieces(records):
                while (latest := self.log.append(partition, piece)) is None:
                    if not essential and appended is None:
                        return None
                    tell_late()
                    await self.log.wait_for_room(partition, piece)
                    if taken[0].tenure != self._tenures[partition]:
                        return None
                appended = latest
                offsets.extend(range(latest.base_offset, latest.base_offset + len(piece)))
            if appended is not None:
                await appended.wait(tell_late)
        except (KafkaError, StorageFailed):
            return None  # the log reports its failure itself
        return offsets


def _take(waiting: deque[_Submission]) -> Sequence[_Submission]:
    """Take the submissions that share the next batch; one at least."""
    taken: list[_Submission] = []
    count = size_bytes = 0
    while waiting:
        records = waiting[0].records
        count += len(records)
        size_bytes += sum(map(_size, records))
        if taken and (count > BATCH_RECORDS_COUNT or size_bytes > BATCH_TARGET_BYTES):
            break
        taken.append(waiting.popleft())
    return taken


def _pieces(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    piece: list[Record] = []
    size_bytes = 0
    for record in records:
        size_bytes += _size(record)
        if piece and (len(piece) == BATCH_RECORDS_COUNT or size_bytes > BATCH_TARGET_BYTES):
            yield piece
            piece, size_bytes = [], _size(record)
        piece.append(record)
    if piece:
        yield piece


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")
