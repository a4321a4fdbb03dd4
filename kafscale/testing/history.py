"""What clients did and saw, and what of it a broker must not let happen; in the manner of Jepsen's Kafka workload.

Clients write down every send, acknowledgement, poll and offset as it happens, across crashes of the broker;
`History.anomalies` then looks for

    lost write             acknowledged, and not there although something behind it was read
    unseen                 acknowledged, and nobody has read so far
    duplicate              one value at two offsets
    reordering             a producer's values in another order than it sent them
    two values             an offset that served, or was acknowledged for, two values
    unknown value          a value that nobody sent
    gap                    a poll that went on behind an offset that it had not read
    non-monotonic poll     a poll that went back
    offset moved back      a high watermark or log start that was further before, or is behind what was acknowledged
    deleted unasked        a log start behind what anybody wanted deleted
    deleted and read       a poll that got what was deleted before it began
    lost commit            a group's offset older than what was acknowledged, or never committed

All values must be different; the order of `sent` calls is the order of sending. A consumer's polls go on where the last
one ended unless it says `sought`. Offsets have holes only where compaction has removed a value behind which is another
one of its key, or nobody knows what was there, and below what a client wanted deleted. There are no transactions. Not
for several threads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise

import attrs


class Kind(Enum):
    """The anomalies."""

    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    REORDERING = "reordering"
    TWO_VALUES = "two values"
    UNKNOWN_VALUE = "unknown value"
    GAP = "gap"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    MOVED_BACK = "offset moved back"
    DELETED_UNASKED = "deleted unasked"
    DELETED_AND_READ = "deleted and read"
    LOST_COMMIT = "lost commit"


_Finding = tuple[Kind, str]


@attrs.frozen
class Anomaly:
    """Something that must not happen, and where."""

    kind: Kind
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value} in {self.where}: {self.detail}"


@attrs.frozen
class Read:
    """One record as a reader got it."""

    offset: int
    value: str


@attrs.frozen
class _Sent:
    producer: str
    number: int  # among what this producer sent to this partition
    key: str | None  # that others may have too


@attrs.frozen
class _Acknowledged:
    value: str
    offset: int | None


@attrs.frozen
class _Offset:
    """An offset that was seen between two moments: asked for at `began`, known at `ended`."""

    name: str
    offset: int
    began: int
    ended: int


@attrs.define(eq=False)
class _Partition:
    sent: dict[str, _Sent] = attrs.field(factory=dict)
    sent_counts: Counter[str] = attrs.field(factory=Counter)
    acknowledged: list[_Acknowledged] = attrs.field(factory=list)
    runs: dict[str, list[list[Read]]] = attrs.field(factory=dict)  # by consumer, each from where it sought on
    offsets: list[_Offset] = attrs.field(factory=list)
    deletable_before: float = 0  # what anybody wanted deleted
    deletions: list[_Offset] = attrs.field(factory=list)  # that were acknowledged
    deleted_wrongly: list[_Finding] = attrs.field(factory=list)


@attrs.define(eq=False)
class _Group:
    """One group's offset in one partition, committed by one client, one after the other."""

    tried: set[int] = attrs.field(factory=set)
    acknowledged: int = -1
    fetched: list[Anomaly] = attrs.field(factory=list)


@attrs.define(eq=False)
class History:
    """A record of what happened; partitions are named as the clients like. `note` is told of each line of it."""

    note: Callable[[str], None] = lambda text: None
    _partitions: defaultdict[str, _Partition] = attrs.field(factory=lambda: defaultdict(_Partition), init=False)
    _groups: defaultdict[tuple[str, str], _Group] = attrs.field(factory=lambda: defaultdict(_Group), init=False)
    _time: int = attrs.field(default=0, init=False)

    # ---- what clients write down ------------------------------------------------------------------------------

    def now(self) -> int:
        """A moment, later than every one before: for `began`."""
        self._time += 1
        return self._time

    def sent(self, producer: str, partition: str, value: str, *, key: str | None = None) -> None:
        """A producer is about to send a value; with a key, if a later value of it may have this one removed."""
        found = self._partitions[partition]
        assert value not in found.sent, f"{value} was sent before"
        self.note(f"sent {partition} {value}")
        found.sent[value] = _Sent(producer, found.sent_counts[producer], key)
        found.sent_counts[producer] += 1

    def acknowledged(self, partition: str, value: str, offset: int | None = None) -> None:
        """The broker said that it has the value, and where, if it said that."""
        self.note(f"acknowledged {partition} {value} at {offset}")
        found = self._partitions[partition]
        found.acknowledged.append(_Acknowledged(value, offset))
        if offset is not None:
            # What is acknowledged is visible: from now on the high watermark is behind it.
            now = self.now()
            found.offsets.append(_Offset("high watermark", offset + 1, now, now))

    def polled(self, consumer: str, partition: str, records: Sequence[Read], *, began: int = 0) -> None:
        """A consumer got these, in this order; from a broker that was asked at `began`, or from elsewhere."""
        found = self._partitions[partition]
        if records:
            first = records[0].offset
            self.note(f"polled {partition} {consumer} {first} to {records[-1].offset}")
            for each in found.deletions:
                if each.ended < began and first < each.offset:
                    detail = f"{consumer} read {first}, deleted before {each.offset}"
                    found.deleted_wrongly.append((Kind.DELETED_AND_READ, detail))
        found.runs.setdefault(consumer, [[]])[-1].extend(records)

    def sought(self, consumer: str, partition: str) -> None:
        """The consumer's next poll may begin anywhere."""
        self._partitions[partition].runs.setdefault(consumer, []).append([])

    def saw_offsets(self, partition: str, *, began: int, log_start_offset: int, high_watermark: int) -> None:
        """A reply to a request that was sent at `began` named these."""
        self.note(f"saw {partition} log start {log_start_offset} high watermark {high_watermark}")
        found = self._partitions[partition]
        found.offsets.append(_Offset("log start", log_start_offset, began, self.now()))
        found.offsets.append(_Offset("high watermark", high_watermark, began, self.now()))
        if log_start_offset > found.deletable_before:
            detail = f"the log starts at {log_start_offset}, {found.deletable_before} was wanted"
            found.deleted_wrongly.append((Kind.DELETED_UNASKED, detail))

    def deleting(self, partition: str, before_offset: float) -> None:
        """Somebody is about to have deleted what is before an offset, or lets retention delete what it likes: inf."""
        self.note(f"deleting {partition} before {before_offset}")
        found = self._partitions[partition]
        found.deletable_before = max(found.deletable_before, before_offset)

    def deleted(self, partition: str, log_start_offset: int) -> None:
        """The broker has acknowledged it."""
        self.note(f"deleted {partition} before {log_start_offset}")
        found, now = self._partitions[partition], self.now()
        deletion = _Offset("log start", log_start_offset, now, now)
        found.offsets.append(deletion)
        found.deletions.append(deletion)

    def committing(self, group: str, partition: str, offset: int) -> None:
        """The group's only committer is about to commit an offset, not less than any before."""
        self._groups[group, partition].tried.add(offset)

    def committed(self, group: str, partition: str, offset: int) -> None:
        """The broker has acknowledged the commit."""
        self.note(f"committed {partition} {group} {offset}")
        found = self._groups[group, partition]
        found.acknowledged = max(found.acknowledged, offset)

    def fetched_commit(self, group: str, partition: str, offset: int) -> None:
        """The broker says that this is the group's offset, -1 for none; asked while no commit was under way."""
        self.note(f"fetched commit {partition} {group} {offset}")
        found = self._groups[group, partition]
        if offset < found.acknowledged or offset not in {-1, *found.tried}:
            detail = f"{offset} after {found.acknowledged} was acknowledged"
            found.fetched.append(Anomaly(Kind.LOST_COMMIT, f"group {group}, {partition}", detail))
        found.acknowledged = max(found.acknowledged, offset)

    # ---- what follows from it ---------------------------------------------------------------------------------

    @property
    def acknowledged_count(self) -> int:
        """How many values were acknowledged."""
        return sum(len(found.acknowledged) for found in self._partitions.values())

    def anomalies(self) -> list[Anomaly]:
        """All that must not be; empty for a broker that kept its promises."""
        found = [anomaly for group in self._groups.values() for anomaly in group.fetched]
        for name, partition in sorted(self._partitions.items()):
            for check in (_written, _placed, _ordered, _read, _moved):
                found += [Anomaly(kind, name, detail) for kind, detail in check(partition)]
            found += [Anomaly(kind, name, detail) for kind, detail in partition.deleted_wrongly]
        return found


def _values_by_offset(partition: _Partition) -> dict[int, set[str]]:
    values: defaultdict[int, set[str]] = defaultdict(set)
    for runs in partition.runs.values():
        for read in (each for run in runs for each in run):
            values[read.offset].add(read.value)
    return values


def _written(partition: _Partition) -> Iterator[_Finding]:
    """Everything acknowledged must have been read, as far as anybody has read."""
    values = _values_by_offset(partition)
    removable = _compacted_offsets(partition, values)
    log_start_offset = max((each.offset for each in partition.offsets if each.name == "log start"), default=0)
    seen = set().union(*values.values())
    last_read = max(values, default=-1)
    last_number: Counter[str] = Counter()
    for value in seen & partition.sent.keys():
        sent = partition.sent[value]
        last_number[sent.producer] = max(last_number[sent.producer], sent.number)
    for each in partition.acknowledged:
        if each.value in seen or each.offset in removable:
            continue
        if each.offset is not None and each.offset < log_start_offset:
            continue
        sent = partition.sent[each.value]
        passed = last_number[sent.producer] > sent.number if each.offset is None else last_read >= each.offset
        yield Kind.LOST_WRITE if passed else Kind.UNSEEN, f"{each.value}, acknowledged at {each.offset}"


def _placed(partition: _Partition) -> Iterator[_Finding]:
    """An offset has one value and a value one offset, whoever tells."""
    values = _values_by_offset(partition)
    for each in partition.acknowledged:
        if each.offset is not None:
            values.setdefault(each.offset, set()).add(each.value)
    offsets: defaultdict[str, list[int]] = defaultdict(list)
    for offset, found in sorted(values.items()):
        if len(found) > 1:
            yield Kind.TWO_VALUES, f"offset {offset} has {', '.join(sorted(found))}"
        for value in sorted(found):
            offsets[value].append(offset)
            if value not in partition.sent:
                yield Kind.UNKNOWN_VALUE, f"{value} at offset {offset}"
    for value, where in offsets.items():
        if len(where) > 1:
            yield Kind.DUPLICATE, f"{value} at offsets {', '.join(map(str, where))}"


def _ordered(partition: _Partition) -> Iterator[_Finding]:
    last: dict[str, tuple[int, str]] = {}
    placed: set[str] = set()
    for _, values in sorted(_values_by_offset(partition).items()):
        for value in sorted(values - placed):
            if (sent := partition.sent.get(value)) is None:
                continue
            placed.add(value)
            number, before = last.get(sent.producer, (-1, ""))
            if sent.number < number:
                yield Kind.REORDERING, f"{value} comes behind {before}"
            else:
                last[sent.producer] = (sent.number, value)


def _compacted_offsets(partition: _Partition, values: Mapping[int, set[str]]) -> set[int]:
    """Where compaction may have left nothing: none, unless there are keys that several values may have."""
    placed = {offset: min(found) for offset, found in values.items()}
    placed |= {each.offset: each.value for each in partition.acknowledged if each.offset is not None}
    removable: set[int] = set()
    later_keys: set[str] = set()
    for offset, value in sorted(placed.items(), reverse=True):
        sent = partition.sent.get(value)
        if sent is not None and sent.key is not None:
            if sent.key in later_keys:
                removable.add(offset)
            later_keys.add(sent.key)
    if later_keys:
        removable |= set(range(max(placed))) - placed.keys()
    return removable


def _read(partition: _Partition) -> Iterator[_Finding]:
    removable = _compacted_offsets(partition, _values_by_offset(partition))
    for consumer, runs in partition.runs.items():
        for run in runs:
            for before, after in pairwise(run):
                if after.offset <= before.offset:
                    yield Kind.NON_MONOTONIC_POLL, f"{consumer} read {after.offset} after {before.offset}"
                elif any(
                    offset >= partition.deletable_before and offset not in removable
                    for offset in range(before.offset + 1, after.offset)
                ):
                    yield Kind.GAP, f"{consumer} read {after.offset} after {before.offset}"


def _moved(partition: _Partition) -> Iterator[_Finding]:
    """What was known before the question was asked can't have been further than the answer."""
    for name in ("high watermark", "log start"):
        seen = [each for each in partition.offsets if each.name == name]
        ended = sorted(seen, key=lambda each: each.ended)
        known, position = -1, 0
        for each in sorted(seen, key=lambda each: each.began):
            while position < len(ended) and ended[position].ended < each.began:
                known = max(known, ended[position].offset)
                position += 1
            if each.offset < known and each.began != each.ended:
                yield Kind.MOVED_BACK, f"{name} {each.offset} after {known}"
