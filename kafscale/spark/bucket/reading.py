"""What a task does: ranges of objects by few large GETs, whole batches out of each, decoded into Arrow.

What is lost where an object is damaged is the rest of its range, since nothing in it can be trusted from there on. A
batch that is as its client sent it, and whose records can't be read, is left out alone: older versions of the broker
stored such ones.

A segment that was planned may be gone when it is read: merged, compacted or retired. The broker leaves such objects for
a while, so a job that plans and reads soon does not meet it; a later one finds the same offsets where they are now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import pyarrow as pa

from kafscale.errors import CorruptBatch, DamagedObject, NotFound, RangeNotSatisfiable
from kafscale.formats.transactions import OpenTransaction
from kafscale.spark.bucket.aborted import AbortedBatches
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.spark.bucket.bucket import Bucket
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.decode import Wanted, decode_batches
from kafscale.spark.bucket.splits import Extent, Range, Split, holes, outcomes, plan

LOSS_ADVICE = "Some data may have been lost; to go on without it, set the option failOnDataLoss to false"
GET_BYTES = 16 << 20  # in memory at a time, and once more while the next one is decoded

logger = logging.getLogger(__name__)


class DataLoss(Exception):
    """Offsets that were wanted are not there; the message says which, and why."""


class TopicCreatedAgain(DataLoss):
    """Offsets are of a topic that was deleted, and there is another one of its name."""


@attrs.define
class _Reached:
    """How far a range was read: all records before `next_offset` were passed on."""

    next_offset: int


@attrs.frozen(kw_only=True)
class SplitReader:
    """Reads splits of one bucket. `fail_on_data_loss` is Spark's option: raise, or report and go on.

    committed_only: as the catalog that the splits were planned with. A look-up by time takes `everything`: what was
    aborted, and control batches.
    """

    bucket: Bucket
    namespace: str
    columns: Sequence[str]
    fail_on_data_loss: bool
    committed_only: bool = False
    everything: bool = False

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """All records of a split, in order. Raises DataLoss, StoreError."""
        following = [each.start_offset for each in split.ranges[1:]]
        next_offset = split.start_offset
        aborted = None if self.everything else AbortedBatches.of(split.aborted)
        for each, end_offset in zip(split.ranges, [*following, split.end_offset], strict=True):
            wanted = Wanted(
                topic=split.topic,
                partition=split.partition,
                start_offset=next_offset,
                end_offset=end_offset,
                columns=self.columns,
                period=split.period,
                aborted=aborted,
                with_markers=self.everything,
            )
            yield from self._read_or_find(each, wanted)
            next_offset = end_offset

    def _read_or_find(self, range: Range, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        reached = _Reached(wanted.start_offset)
        try:
            yield from self._read_range(range, wanted, reached)
        except NotFound:
            yield from self._read_elsewhere(range, attrs.evolve(wanted, start_offset=reached.next_offset))
        except DamagedObject as exc:
            left = attrs.evolve(wanted, start_offset=reached.next_offset)
            self._lose(f"{exc}; {_named(left)} can't be read")

    def _read_range(self, range: Range, wanted: Wanted, reached: _Reached) -> Iterator[pa.RecordBatch]:
        """All records of a range. Nothing is passed on before the batches that it is in were checked.

        A batch that a GET has cut is got again by the next one, which is less work than to copy what follows it.
        """
        name, position, get_bytes = range.key.key, range.start, GET_BYTES
        on_unreadable = partial(self._leave_out, name, wanted)
        while position < range.end:
            data = self._get(name, position, min(get_bytes, range.end - position))
            try:
                headers = BatchHeaders.of(data)
                _check_offsets(headers, range)
                whole = headers.whole()
                if whole.count:
                    yield from decode_batches(whole, wanted, on_unreadable)
                elif headers.cut_bytes and len(data) == get_bytes:
                    get_bytes = headers.cut_bytes  # of a batch that is larger than a GET
                    continue
                else:
                    raise DamagedObject(f"{name}: cut off at byte {position + len(data)}")
            except CorruptBatch as exc:
                raise DamagedObject(f"{name}: {exc}") from exc
            reached.next_offset = max(reached.next_offset, int(whole.next_offsets[-1]))
            position, get_bytes = position + whole.whole_bytes, GET_BYTES

    def _leave_out(self, name: str, wanted: Wanted, offsets: range, reason: CorruptBatch) -> None:
        batch = attrs.evolve(wanted, start_offset=offsets.start, end_offset=offsets.stop)
        self._lose(f"{name}: {_named(batch)} are a batch whose records can't be read: {reason}")

    def _get(self, name: str, start: int, length_bytes: int) -> memoryview:
        try:
            return memoryview(self.bucket.get_range(name, start, length_bytes).data)
        except RangeNotSatisfiable as exc:
            raise DamagedObject(f"{name}: cut off at byte {start}") from exc

    def _read_elsewhere(self, gone: Range, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The offsets of a segment that has gone, from what has them now."""
        catalog = Catalog(self.bucket, self.namespace, self.committed_only)
        log = catalog.partitions(wanted.topic).get(wanted.partition)
        if log is None or log.start_offset >= wanted.end_offset:
            deletion = catalog.metadata.deletions.get(gone.key.topic_id)
            why = f": {deletion}" if deletion is not None else ""
            self._lose(f"{gone.key.key} has gone, and nothing has {_named(wanted)}{why}")
            return
        if log.start_offset > wanted.start_offset:
            self._lose(f"{_named(wanted)} were planned, and the log begins at {log.start_offset} now")
        if any(segment.key == gone.key for segment in log.segments):
            self._lose(f"{gone.key.key} is listed and can't be found, so {_named(wanted)} can't be read")
            return
        logger.info("%s has gone; its offsets are read from what has them now", gone.key.key)
        start_offset = max(wanted.start_offset, log.start_offset)
        extent = Extent(log=log, start_offset=start_offset, end_offset=wanted.end_offset, period=wanted.period)
        for hole in holes(catalog, extent):
            lost = attrs.evolve(wanted, start_offset=hole.start, end_offset=hole.stop)
            self._lose(f"{gone.key.key} has gone, and no intact segment has {_named(lost)}")
        for each in () if self.everything else outcomes(catalog, extent).unknown:
            self._lose(unknown_outcome(log, each))
        for split in plan(catalog, [extent]):
            yield from self.read(split)

    def _lose(self, message: str) -> None:
        report_loss(message, fail=self.fail_on_data_loss)


def report_loss(message: str, *, fail: bool, kind: type[DataLoss] = DataLoss) -> None:
    """Raises DataLoss, of this kind, or logs it as an error."""
    if fail:
        raise kind(f"{message}. {LOSS_ADVICE}")
    logger.error("data loss, and failOnDataLoss is off: %s", message)


def unknown_outcome(log: PartitionLog, transaction: OpenTransaction) -> str:
    """Say that records are left out of which no intact segment tells whether they were aborted."""
    return (
        f"partition {log.partition} of {log.topic}: no intact segment tells whether the transaction of producer "
        f"{transaction.producer_id} from offset {transaction.first_offset} on was aborted, so isolationLevel "
        "read_committed leaves it out"
    )


def _named(wanted: Wanted) -> str:
    return f"offsets {wanted.start_offset} to {wanted.end_offset - 1} of partition {wanted.partition} of {wanted.topic}"


def _check_offsets(headers: BatchHeaders, range: Range) -> None:
    """Batches of another segment, which are intact, would else be left out as offsets that are not wanted."""
    is_outside = (headers.base_offsets < range.start_offset) | (headers.next_offsets > range.end_offset)
    for base_offset in headers.base_offsets[is_outside][:1]:
        raise DamagedObject(f"{range.key.key}: a batch of offset {base_offset} is where {range.start_offset} should be")
