"""Verify both objects of one segment: list the faults and what can be rebuilt (docs/how-to/verify-a-bucket.md)."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import aclosing

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, KafkaError, NotFound
from kafscale.formats import segment, segment_v1
from kafscale.formats.body import LocatedBatch, read_pieces
from kafscale.formats.footer_reading import FOOTER_READ_BYTES, check_identity
from kafscale.formats.segment import HEADER, EpochStart, Footer, Index
from kafscale.formats.segment_check import BodyCheck
from kafscale.log.repair.verify_transactions import Told, TransactionCheck
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import HEADER_BYTES, MIN_TIMESTAMP_UNKNOWN, BatchHeader
from kafscale.wire.records import check_of


class FindingKind(enum.StrEnum):
    BATCHES = "batches"
    FOOTER = "footer"
    HEADER = "header"
    INDEX = "index"
    ORPHAN_INDEX = "orphan-index"
    GAP = "gap"
    OVERLAP = "overlap"
    SUPERSEDED = "superseded"
    LATE = "late"
    UNKNOWN_OBJECT = "unknown-object"
    UNKNOWN_TOPIC = "unknown-topic"
    CHANGED = "changed"
    WAL = "wal"
    WAL_OBJECT = "wal-object"
    CHECKPOINT = "checkpoint"
    CLAIM = "claim"
    METADATA = "metadata"


@attrs.define(kw_only=True)
class Finding:
    """A finding about an object, a partition or a WAL file; not a fault unless `damage`. `position` is in bytes."""

    name: str
    kind: FindingKind
    message: str
    position: int | None = None
    damage: bool = True
    can_repair: bool = False
    repaired: bool = False


THREAD_BYTES = 128 << 10  # a piece below this is checked in less time than a thread hop takes


@attrs.frozen
class BatchMark:
    """Fields that distinguish batches at the same offset."""

    crc: int
    leader_epoch: int


@attrs.define(eq=False, kw_only=True, repr=False)
class CheckedSegment:
    """A segment, and its faults.

    `footer` is the one that agrees with the batches, wherever it was found, and `footer_bytes` its encoding, which may
    have more than this version reads. `epochs` are the known epoch starts of the log up to its end. `marks` has its
    batches by offset, if they are to be compared with a log. `is_late` is set when all segments of the partition are
    known. `stable_end` and `transactions` are as the footer tells; None if unknown.
    """

    key: SegmentKey
    size_bytes: int = 0
    footer: Footer | None = None
    footer_bytes: bytes = b""
    base_offset: int = 0
    last_offset: int | None = None
    epochs: Sequence[EpochStart] = ()
    batch_count: int = 0
    record_count: int = 0
    batches_end: int = 0
    gone: bool = False
    is_late: bool = False
    marks: dict[int, BatchMark] | None = None
    stable_end: int | None = None
    transactions: Told | None = None
    findings: list[Finding] = attrs.field(factory=list)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of its last records; -1 if unknown."""
        return self.epochs[-1].epoch if self.epochs else -1

    def take_batch(self, header: BatchHeader) -> None:
        if self.marks is not None:
            self.marks[header.base_offset] = BatchMark(header.crc, header.leader_epoch)

    def note(
        self,
        kind: FindingKind,
        message: str,
        *,
        position: int | None = None,
        can_repair: bool = False,
        name: str | None = None,
    ) -> None:
        """Add a finding about the `.kfs`, or about `name`."""
        name = name or self.key.key
        message = message.removeprefix(f"{name}: ").removeprefix(f"{self.key.key}: ")
        self.findings.append(Finding(name=name, kind=kind, message=message, position=position, can_repair=can_repair))

    @property
    def damage(self) -> Sequence[tuple[FindingKind, str, str]]:
        """The faults of the segment itself, to compare with those of another read."""
        kinds = (FindingKind.BATCHES, FindingKind.FOOTER, FindingKind.HEADER, FindingKind.INDEX)
        return [(finding.kind, finding.name, finding.message) for finding in self.findings if finding.kind in kinds]

    def has(self, *kinds: FindingKind) -> bool:
        return any(finding.kind in kinds for finding in self.findings)


@attrs.frozen(eq=False, kw_only=True, repr=False)
class _Objects:
    """The parts of a segment that are read before its batches: both ends of the `.kfs`, and the `.index` if present."""

    key: SegmentKey
    head: Buffer
    tail: Buffer
    size_bytes: int
    index: Buffer | None

    @property
    def index_key(self) -> str:
        return self.key.of_kind("index").key


async def check_segment(store: ObjectStore, key: SegmentKey, *, with_marks: bool = False) -> CheckedSegment:
    """Read and check a segment; `gone` is set if it was deleted. Raises StoreError."""
    checked = CheckedSegment(key=key, base_offset=key.base_offset, marks={} if with_marks else None)
    try:
        objects = await _read_objects(store, key)
        checked.size_bytes = objects.size_bytes
        if objects.size_bytes < HEADER.size:
            checked.note(FindingKind.FOOTER, f"{objects.size_bytes} bytes are too few for a segment")
        elif key.version == segment_v1.VERSION:
            await _check_version_1(store, objects, checked)
        else:
            await _check_version_2(store, objects, checked)
    except NotFound:
        checked.gone = True
    return checked


async def _read_objects(store: ObjectStore, key: SegmentKey) -> _Objects:
    tail = await store.get_tail(key.key, FOOTER_READ_BYTES)
    size = tail.object_size_bytes
    if key.version != segment_v1.VERSION and size > len(tail.data):
        try:
            needed = segment.footer_bytes_needed(tail.data, key.key)
        except DamagedObject:
            needed = 0
        if needed > len(tail.data):
            tail = await store.get_tail(key.key, needed)
    whole = len(tail.data) == size
    head = tail.data if whole or not size else (await store.get_range(key.key, 0, HEADER.size)).data
    try:
        index = (await store.get(key.of_kind("index").key)).data
    except NotFound:
        index = None
    return _Objects(key=key, head=head, tail=tail.data, size_bytes=size, index=index)


# ---- version 2 ------------------------------------------------------------------------------------------------------


async def _check_version_2(store: ObjectStore, objects: _Objects, checked: CheckedSegment) -> None:
    try:
        own = _own_footer(objects, checked)
    except DamagedObject as exc:
        checked.note(FindingKind.FOOTER, str(exc))
        return
    from_index = _index_footer(objects)
    footer = own or from_index
    told = None if own is None else _FooterCheck.of(own)
    check = await _check_batches(store, objects, checked, footer, told)
    if check.damage and own is None and footer is not None:
        footer = None  # the `.index` tells of other batches, so it may be that of another attempt
        check = await _check_batches(store, objects, checked, None)
    if own is None:
        _judge_footer(objects, checked, footer, check)
    else:
        _note_batches(checked, check)
        if not check.damage:
            needed = segment.footer_bytes_needed(objects.tail, objects.key.key)
            checked.footer, checked.footer_bytes = own, bytes(objects.tail[-needed:])
        if bytes(objects.head[: HEADER.size]) != segment.encode_header(own):
            checked.note(
                FindingKind.HEADER,
                "the header is not the one that goes with the footer",
                position=0,
                can_repair=not check.damage,
            )
    _take_facts(checked, own or footer, check)
    if told is not None and not check.damage:
        told.finish(checked)
    _check_index(objects, checked)


@attrs.frozen(eq=False, kw_only=True, repr=False)
class _FooterCheck:
    """Compares what a footer tells of batches with their content."""

    footer: Footer
    transactions: TransactionCheck
    earliest: EarliestCheck

    @classmethod
    def of(cls, footer: Footer) -> _FooterCheck:
        return cls(footer=footer, transactions=TransactionCheck(), earliest=EarliestCheck(footer.index))

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        self.transactions.take(header, batch)
        self.earliest.take(header, batch)

    def finish(self, checked: CheckedSegment) -> None:
        checked.stable_end, checked.transactions = self.footer.stable_end, self.transactions.told(self.footer)
        for message in (*self.transactions.finish(self.footer), *self.earliest.finish()):
            checked.note(FindingKind.FOOTER, message)


def _own_footer(objects: _Objects, checked: CheckedSegment) -> Footer | None:
    """Return None for a damaged footer, which is noted. Raises DamagedObject for another segment's."""
    try:
        footer = segment.decode_footer(objects.tail, objects.key.key)
        segment.check_index_order(footer, objects.key.key)
        footer_bytes = segment.footer_bytes_needed(objects.tail, objects.key.key)
        if footer.end_position + footer_bytes != objects.size_bytes:
            raise DamagedObject(f"has {objects.size_bytes} bytes, its footer says {footer.end_position + footer_bytes}")
    except DamagedObject as exc:
        checked.note(FindingKind.FOOTER, str(exc))
        return None
    check_identity(footer, objects.key)
    return footer


def _index_footer(objects: _Objects) -> Footer | None:
    if objects.index is None:
        return None
    try:
        footer = segment.decode_footer(objects.index, objects.index_key)
        if segment.footer_bytes_needed(objects.index, objects.index_key) != len(objects.index):
            return None
        segment.check_index_order(footer, objects.index_key)
        check_identity(footer, objects.key)
    except DamagedObject:
        return None
    return footer


def _judge_footer(objects: _Objects, checked: CheckedSegment, footer: Footer | None, check: BodyCheck) -> None:
    """Decide whether all batches exist although the footer is damaged."""
    finding = next(finding for finding in checked.findings if finding.kind is FindingKind.FOOTER)
    finding.position = check.position
    if footer is not None and objects.index is not None:
        checked.footer, checked.footer_bytes = footer, bytes(objects.index)
        finding.can_repair = True
        return
    _note_batches(checked, check)
    told = _batch_count_of_header(objects)
    finding.can_repair = not check.damage and check.batch_count == told
    if not checked.has(FindingKind.BATCHES) and not finding.can_repair:
        said = "the header is damaged too" if told is None else f"the header says {told}"
        checked.note(
            FindingKind.BATCHES, f"{check.batch_count} whole batches are there; {said}", position=check.position
        )


def _batch_count_of_header(objects: _Objects) -> int | None:
    """Return the count in the header of version 2 or 3; None if it is damaged or cut off."""
    if len(objects.head) < segment.HEADER.size:
        return None
    magic, version, _, base_offset, batch_count, _, _ = segment.HEADER.unpack_from(objects.head)
    is_known = version in (segment.VERSION, segment.VERSION_WITH_TRANSACTIONS)
    whole = is_known and (magic, base_offset) == (segment.HEADER_MAGIC, objects.key.base_offset) and batch_count > 0
    return int(batch_count) if whole else None


def _check_index(objects: _Objects, checked: CheckedSegment) -> None:
    if objects.index is None:
        checked.note(FindingKind.INDEX, "is missing", can_repair=_has_kfs(checked), name=objects.index_key)
    elif checked.has(FindingKind.FOOTER):
        if checked.footer is None and _has_kfs(checked):
            checked.note(FindingKind.INDEX, "is not that of the .kfs", can_repair=True, name=objects.index_key)
    else:
        needed = segment.footer_bytes_needed(objects.tail, objects.key.key)
        if bytes(objects.index) != bytes(objects.tail[-needed:]):
            checked.note(FindingKind.INDEX, "is not the footer of the .kfs", can_repair=True, name=objects.index_key)


def _has_kfs(checked: CheckedSegment) -> bool:
    """Tell whether there is, or will be after a repair, a `.kfs` with a good footer."""
    return all(finding.can_repair for finding in checked.findings if finding.kind is FindingKind.FOOTER)


# ---- version 1 ------------------------------------------------------------------------------------------------------


async def _check_version_1(store: ObjectStore, objects: _Objects, checked: CheckedSegment) -> None:
    try:
        ends = segment_v1.decode_ends(objects.key, objects.head, objects.tail, objects.size_bytes)
        footer = segment_v1.footer_without_index(ends)
    except DamagedObject as exc:
        await _judge_ends(store, objects, checked, str(exc))
        return
    index_damage = None
    try:
        if objects.index is None:
            index_damage = "is missing"
        else:
            footer = segment_v1.footer_from_index(ends, segment_v1.decode_index(objects.index, objects.index_key))
    except DamagedObject as exc:
        index_damage = str(exc)
    if bytes(objects.head[: HEADER.size]) != segment_v1.encode_header(ends.header):
        checked.note(FindingKind.HEADER, "the header has something where version 1 has nothing", position=0)
    check = await _check_batches(store, objects, checked, footer)
    if check.damage and index_damage is None:
        plain = segment_v1.footer_without_index(ends)
        again = await _check_batches(store, objects, checked, plain)
        if not again.damage:
            index_damage, check, footer = str(check.damage[0]), again, plain
    _note_batches(checked, check)
    checked.footer = footer if not check.damage else None
    _take_facts(checked, footer, check)
    if index_damage is not None:
        checked.note(FindingKind.INDEX, index_damage, can_repair=not check.damage, name=objects.index_key)


async def _judge_ends(store: ObjectStore, objects: _Objects, checked: CheckedSegment, damage: str) -> None:
    """Decide, by a whole header, whether all batches exist although header or trailer is damaged."""
    check = await _check_batches(store, objects, checked, None)
    try:
        header = segment_v1.decode_header(objects.head, objects.key.key)
        complete = (header.base_offset, header.record_count) == (objects.key.base_offset, check.record_count)
    except DamagedObject:
        complete = False
    rest_bytes = objects.size_bytes - check.position
    for found in check.damage:
        if found.position != check.position or rest_bytes > segment_v1.TRAILER.size:
            checked.note(FindingKind.BATCHES, found.message, position=found.position)
    repairable = complete and not checked.has(FindingKind.BATCHES)
    checked.note(FindingKind.FOOTER, damage, position=check.position, can_repair=repairable)
    _take_facts(checked, None, check)
    if objects.index is None:
        checked.note(FindingKind.INDEX, "is missing", can_repair=repairable, name=objects.index_key)


# ---- both -----------------------------------------------------------------------------------------------------------


async def _check_batches(
    store: ObjectStore,
    objects: _Objects,
    checked: CheckedSegment,
    footer: Footer | None,
    told: _FooterCheck | None = None,
) -> BodyCheck:
    def take(header: BatchHeader, batch: LocatedBatch) -> None:
        checked.take_batch(header)
        if told is not None:
            told.take(header, batch.data)

    end = objects.size_bytes if footer is None else min(footer.end_position, objects.size_bytes)
    is_counted = footer is None and objects.key.version != segment_v1.VERSION
    check = BodyCheck(
        footer=footer,
        base_offset=objects.key.base_offset,
        end=end,
        merged=objects.key.generation > 0,
        stop_after_count=_batch_count_of_header(objects) if is_counted else None,
        on_batch=take,
    )
    async with aclosing(read_pieces(store, objects.key.key, HEADER.size, end)) as pieces:
        async for piece in pieces:
            if len(piece) < THREAD_BYTES:
                check.feed(piece)
            else:
                await trio.to_thread.run_sync(check.feed, piece)
    check.finish()
    return check


def _note_batches(checked: CheckedSegment, check: BodyCheck) -> None:
    for damage in check.damage:
        checked.note(FindingKind.BATCHES, damage.message, position=damage.position)


def _take_facts(checked: CheckedSegment, footer: Footer | None, check: BodyCheck) -> None:
    checked.batch_count, checked.record_count = check.batch_count, check.record_count
    checked.batches_end = check.position
    if footer is not None:
        checked.last_offset = footer.last_offset
        checked.epochs = footer.epochs
    elif check.batch_count:
        checked.last_offset = check.last_offset


UNPACKED_MAX_BYTES = 64 << 20  # of a batch: of a row with one that unpacks to more, nothing is said


@attrs.define(eq=False, repr=False)
class EarliestCheck:
    """Takes all batches of a segment in order, and compares their earliest timestamps with the index."""

    index: Index
    _position: int = attrs.field(default=HEADER.size, init=False)  # of the next batch
    _row: int = attrs.field(default=-1, init=False)
    _found_ms: dict[int, int | None] = attrs.field(factory=dict, init=False)  # by row; None where one can't be told
    _damage: list[str] = attrs.field(factory=list, init=False)

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        positions = self.index.positions
        while self._row + 1 < len(positions) and positions[self._row + 1] <= self._position:
            self._row += 1
        self._position += len(batch)
        row = self._row
        if row < 0 or self.index.min_timestamps_ms[row] == MIN_TIMESTAMP_UNKNOWN or self._found_ms.get(row, 0) is None:
            return
        try:
            earliest_ms = _earliest_ms(header, batch)
        except KafkaError as exc:
            what = f"the earliest timestamp of index row {row} is told, and what it is of can't be read: {exc}"
            self._damage.append(what)
            earliest_ms = None
        before_ms = self._found_ms.get(row)
        self._found_ms[row] = earliest_ms if earliest_ms is None or before_ms is None else min(before_ms, earliest_ms)

    def finish(self) -> Iterator[str]:
        yield from self._damage
        for row, found_ms in self._found_ms.items():
            told_ms = self.index.min_timestamps_ms[row]
            if found_ms not in (None, told_ms):
                yield f"the earliest timestamp of index row {row} is {found_ms}, not {told_ms}"


def _earliest_ms(header: BatchHeader, batch: memoryview) -> int | None:
    """Return the least timestamp of a batch; None if it is too large to unpack. Raises KafkaError."""
    if header.min_timestamp_ms != MIN_TIMESTAMP_UNKNOWN:
        return header.min_timestamp_ms
    records = batch[HEADER_BYTES:]
    try:
        unpacked = compression.decompress(header.codec, records, UNPACKED_MAX_BYTES) if header.codec else records
    except KafkaError as exc:
        if exc.code == error_codes.MESSAGE_TOO_LARGE:
            return None
        raise
    check = check_of(unpacked, header)
    check.finish()
    return check.first_timestamp_ms
