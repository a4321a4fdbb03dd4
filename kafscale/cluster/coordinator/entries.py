"""Write to internal partitions: one entry, or a group of entries of which any beginning is a legal state.

    appended = internal.append_group([RecordsEntry(…), EndEntry(…), RecordsEntry(…)], now_ms)
    if appended is None: await internal.wait_for_room(entries), decide anew    nothing has happened
    await appended.wait()                                                      all of it is durable

If the journal is one log for all partitions (`wal`, `s3-wal`), a crash leaves a beginning of the group, and one sync or
PUT makes it durable. Under `segment` a group is for one partition, as each is flushed by itself, in no order
(`InternalLog.is_one_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from kafscale.errors import KafkaError
from kafscale.log.log import Log
from kafscale.log.partition.partition import Partition, Placed
from kafscale.log.wal.journal import Round
from kafscale.wire.batch_header import TRANSACTIONAL, parse_header
from kafscale.wire.control_records import MARKER_MAX_BYTES, EndMarker, encode_marker
from kafscale.wire.error_codes import INVALID_PRODUCER_EPOCH, NOT_COORDINATOR
from kafscale.wire.records import ProducerStamp, Record, build_batch

RECORD_OVERHEAD_BYTES = 100  # lengths and deltas, and the header of the batch
LATE_RETRY_SECONDS = 0.1  # between two looks at entries that the journal has put off, as the disk is full


@attrs.frozen(eq=False, repr=False)
class RecordsEntry:
    """Records, as one batch, for a partition that is led here. With a `producer` they are part of its transaction."""

    partition: Partition
    records: Sequence[Record]
    producer: ProducerStamp | None = None


@attrs.frozen(eq=False, repr=False)
class EndEntry:
    """The end of a producer's transaction in a partition that is led here; skipped if the marker is there already.

    `may_be_late`: skipped as well if the partition knows a later epoch of the producer, so that nothing of the
    transaction is open there.
    """

    partition: Partition
    marker: EndMarker
    may_be_late: bool = False


Entry = RecordsEntry | EndEntry


@attrs.frozen(eq=False, repr=False)
class Appended:
    """Appended entries. `round` is done when all of them are durable; None if they are already.

    `base_offset` is the offset of the first in its partition; -1 if all of them were there already.
    """

    round: Round | None
    base_offset: int = -1

    @property
    def is_durable(self) -> bool:
        return self.round is None or self.round.done

    async def wait(self, late: Callable[[], None] = lambda: None) -> None:
        """Wait for durability; call `late` while the disk is full. Raises StorageFailed."""
        while not self.is_durable:
            assert self.round is not None
            try:
                await self.round.wait()
            except trio.TooSlowError:
                late()
                await trio.sleep(LATE_RETRY_SECONDS)


OnEnd = Callable[[Partition, EndMarker, Appended], None]


@attrs.define(eq=False, repr=False)
class InternalLog:
    """The log as coordinators write to it.

    `on_end` has a callback for the ends of transactions by topic. It is called when a marker is appended, in the order
    of the log, but not for a repeated marker, and must not raise.
    """

    log: Log
    on_end: dict[str, OnEnd] = attrs.field(factory=dict)

    @property
    def is_one_log(self) -> bool:
        """Tell whether entries of several partitions become durable in the order in which they were appended."""
        return self.log.journal.keeps_entries

    @property
    def is_last_word(self) -> bool:
        """Tell whether no other broker can have acknowledged more: an answer from memory needs no look at the claim."""
        return self.log.journal.is_last_word

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition that is led here, internal or any other."""
        return self.log.partition_named(topic, index)

    def led_partition(self, topic: str, index: int) -> Partition:
        """Return an internal partition that is led here. Raises KafkaError NOT_COORDINATOR."""
        partition = self.partition(topic, index)
        if partition is None:
            raise KafkaError(NOT_COORDINATOR, f"{topic}-{index} is not led by this broker")
        return partition

    def append_group(self, entries: Sequence[Entry], now_ms: int) -> Appended | None:
        """Append these, in order and with nothing between them; None if there is no room, and nothing is appended.

        Raises KafkaError if a partition is closed, or for a marker TRANSACTION_COORDINATOR_FENCED and
        INVALID_PRODUCER_EPOCH, StorageFailed; then nothing is appended either.
        """
        assert self.is_one_log or len({entry.partition.partition_id for entry in entries}) <= 1
        if self.log.journal.is_full:
            return None
        placed: list[tuple[Partition, Placed]] = []
        ends: list[EndEntry] = []
        earlier: Round | None = None
        try:
            for entry in entries:
                data = _encode(entry, now_ms)
                if data is None:
                    earlier = _undurable_round(entry.partition) or earlier
                    continue
                place = entry.partition.place_nowait(memoryview(data))
                if place is None:
                    _give_back(placed)
                    return None
                placed.append((entry.partition, place))
                if isinstance(entry, EndEntry):
                    ends.append(entry)
        except KafkaError:
            _give_back(placed)
            raise
        if not placed:
            return Appended(earlier)
        base_offset = placed[0][0].next_offset
        for position, (partition, place) in enumerate(placed):
            try:
                partition.append(parse_header(place.data), place, now_ms)
            except BaseException:
                _give_back(placed[position:])
                raise
        appended = Appended(placed[-1][0].latest_round, base_offset)
        for end in ends:
            on_end = self.on_end.get(end.partition.topic)
            if on_end is not None:
                on_end(end.partition, end.marker, appended)
        return appended

    async def append(self, entries: Sequence[Entry], now_ms: int) -> Appended:
        """Append these as soon as there is room. Raises as `append_group`."""
        while (appended := self.append_group(entries, now_ms)) is None:
            await self.wait_for_room(entries)
        return appended

    async def wait_for_room(self, entries: Sequence[Entry]) -> None:
        """Wait until there was room for entries as large as these, each in a chunk of its own."""
        await self.log.journal.wait_for_room()
        pool = self.log.pool
        size_bytes = sum(_size_bytes(entry) + pool.chunk_bytes for entry in entries)
        lease = await pool.acquire(min(size_bytes, pool.size_bytes))
        lease.release()


def _encode(entry: Entry, now_ms: int) -> bytearray | None:
    """Return the batch; None for a marker that is there already. Raises KafkaError."""
    if isinstance(entry, EndEntry):
        return encode_marker(entry.marker, now_ms) if _is_wanted(entry) else None
    if entry.partition.closed:
        raise KafkaError(entry.partition.closed_error)
    if entry.producer is None:
        return build_batch(entry.records)
    return build_batch(entry.records, attributes=TRANSACTIONAL, producer=entry.producer)


def _is_wanted(entry: EndEntry) -> bool:
    try:
        return entry.partition.wants_marker(entry.marker)
    except KafkaError as exc:
        if entry.may_be_late and exc.code == INVALID_PRODUCER_EPOCH:
            return False
        raise


def _size_bytes(entry: Entry) -> int:
    if isinstance(entry, EndEntry):
        return MARKER_MAX_BYTES
    return sum(len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES for record in entry.records)


def _undurable_round(partition: Partition) -> Round | None:
    return None if partition.high_watermark >= partition.next_offset else partition.latest_round


def _give_back(placed: Sequence[tuple[Partition, Placed]]) -> None:
    for partition, place in placed:
        partition.give_back(place)
