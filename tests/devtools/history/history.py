"""History of the events that clients saw, and its checks, in the manner of Jepsen's Kafka workload.

Clients record every send, acknowledgement, poll and offset as it happens, across crashes of the broker;
`History.anomalies` then looks for each `Kind`.

All values must be different; the order of `sent` calls is the order of sending. A consumer's polls go on where the last
one ended unless it says `sought`. Offsets have holes only where compaction has removed a value behind which is another
one of its key, or an unseen one, where a marker of a transaction is, and below requested deletions. Transactions are
unknown here: a reader that must find all acknowledged records reads uncommitted ones too. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise

import attrs


class Kind(Enum):
    LOST_WRITE = "lost write"  # acknowledged, and missing although something behind it was read
    UNSEEN = "unseen"  # acknowledged, and not read so far
    DUPLICATE = "duplicate"  # one value at two offsets
    REORDERING = "reordering"  # a producer's values in another order than it sent them
    TWO_VALUES = "two values"  # an offset that served, or was acknowledged for, two values
    UNKNOWN_VALUE = "unknown value"  # a value without a send
    GAP = "gap"  # a poll that went on behind an offset that it had not read
    NON_MONOTONIC_POLL = "non-monotonic poll"  # a poll that went back
    MOVED_BACK = "offset moved back"  # a high watermark, LSO or log start; or one below an acknowledged offset
    DELETED_UNASKED = "deleted unasked"  # a log start behind all requested deletions
    DELETED_AND_READ = "deleted and read"  # a poll that returned records deleted before it began
    LOST_COMMIT = "lost commit"  # a group's offset older than the acknowledged one, or never committed
    CHANGED = "changed"  # a record with another key, value, timestamp or header than it was sent with
    WRONG_TIME = "wrong time"  # an offset by timestamp that is not the first whose record is as late as that
    WRONG_EPOCH = "wrong epoch"  # the end of a leader epoch that does not divide the records by their epochs
    RESURRECTED = "resurrected"  # a reader of all has a value of a key that was deleted by a tombstone behind it


_Finding = tuple[Kind, str]


@attrs.frozen
class Anomaly:
    kind: Kind
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value} in {self.where}: {self.detail}"


@attrs.frozen
class Content:
    timestamp_ms: int
    digest: int
    is_tombstone: bool = False


@attrs.frozen
class Read:
    """One record of a reader. `content` None is not compared; a `leader_epoch` of -1 is unknown."""

    offset: int
    value: str
    content: Content | None = None
    leader_epoch: int = -1


@attrs.frozen
class _Sent:
    producer: str
    number: int  # among what this producer sent to this partition
    key: str | None  # that others may have too
    content: Content | None
    may_go: bool  # without a later value of its key, since it is a tombstone

    @property
    def is_tombstone(self) -> bool:
        return self.content is not None and self.content.is_tombstone


@attrs.frozen
class _Acknowledged:
    value: str
    offset: int | None
    at: int


@attrs.frozen
class _FoundByTime:
    """The answer to a look-up by time: the first offset with a timestamp of `wanted_ms` or later, or -1.

    `is_latest`: the greatest timestamp was asked for; `wanted_ms` is then that of the answer.
    """

    wanted_ms: int
    offset: int
    timestamp_ms: int
    began: int
    ended: int
    is_latest: bool = False


@attrs.frozen
class _EpochEnd:
    """The answer to the end of epochs up to `epoch`; `is_final` if no more records of these can come."""

    epoch: int
    end_offset: int
    began: int
    is_final: bool


@attrs.frozen
class _Offset:
    """An offset that was seen: asked for at `began`, known at `ended`."""

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
    read_at: dict[int, int] = attrs.field(factory=dict)  # when an offset was first read with its leader epoch
    markers: set[int] = attrs.field(factory=set)  # offsets of ends of transactions
    offsets: list[_Offset] = attrs.field(factory=list)
    times: list[_FoundByTime] = attrs.field(factory=list)
    epoch_ends: list[_EpochEnd] = attrs.field(factory=list)
    sent_anew: set[str] = attrs.field(factory=set)  # by another producer id, after what came before was lost
    readers_of_all: dict[str, int] = attrs.field(factory=dict)  # with the end of the log then
    log_start_offset: int = 0  # as far as anybody was told
    deletable_before: float = 0  # what anybody wanted deleted
    wanted_deletions: list[tuple[int, float]] = attrs.field(factory=list)  # the same as it grew: when, and up to where
    deletions: list[_Offset] = attrs.field(factory=list)  # that were acknowledged
    deleted_wrongly: list[_Finding] = attrs.field(factory=list)


@attrs.define(eq=False)
class _Group:
    """One group's offset in one partition, committed by one client, one after the other.

    An unacknowledged commit may come late, and over a later one: its client has connected anew, and each connection is
    answered at its own pace, as in Kafka.
    """

    tried: set[int] = attrs.field(factory=set)
    unanswered: set[int] = attrs.field(factory=set)
    acknowledged: int = -1
    fetched: list[Anomaly] = attrs.field(factory=list)


@attrs.define(eq=False)
class History:
    note: Callable[[str], None] = lambda text: None
    tombstones_may_go: bool = False  # compaction may remove those that are sent from now on
    _partitions: defaultdict[str, _Partition] = attrs.field(factory=lambda: defaultdict(_Partition), init=False)
    _groups: defaultdict[tuple[str, str], _Group] = attrs.field(factory=lambda: defaultdict(_Group), init=False)
    _time: int = attrs.field(default=0, init=False)

    def now(self) -> int:
        self._time += 1
        return self._time

    def sent(
        self,
        producer: str,
        partition: str,
        value: str,
        *,
        key: str | None = None,
        content: Content | None = None,
        may_go: bool = False,
    ) -> None:
        """Record that a producer is about to send a value; with a key, if a later value of it may remove this one.

        `may_go`: compaction may remove it in any case, as an aborted record.
        """
        found = self._partitions[partition]
        assert value not in found.sent, f"{value} was sent before"
        self.note(f"sent {partition} {value}")
        is_tombstone = content is not None and content.is_tombstone
        may_go = may_go or (self.tombstones_may_go and is_tombstone)
        found.sent[value] = _Sent(producer, found.sent_counts[producer], key, content, may_go)
        found.sent_counts[producer] += 1

    def acknowledged(self, partition: str, value: str, offset: int | None = None) -> None:
        self.note(f"acknowledged {partition} {value} at {offset}")
        found = self._partitions[partition]
        now = self.now()
        found.acknowledged.append(_Acknowledged(value, offset, now))
        if offset is not None:
            # What is acknowledged is visible: from now on the high watermark is behind it.
            found.offsets.append(_Offset("high watermark", offset + 1, now, now))

    def sent_anew(self, partition: str, values: Iterable[str]) -> None:
        """Record that values are sent again with another producer id, since a broker has lost those before them.

        If the loss is undone, each may be there twice.
        """
        values = list(values)
        self.note(f"sent anew {partition} {' '.join(values)}")
        self._partitions[partition].sent_anew.update(values)

    def polled(self, consumer: str, partition: str, records: Sequence[Read], *, began: int = 0) -> None:
        """Record the polled records, in order; `began` is 0 if they did not come from a broker."""
        found = self._partitions[partition]
        if records:
            first = records[0].offset
            self.note(f"polled {partition} {consumer} {first} to {records[-1].offset}")
            for deletion in found.deletions:
                if deletion.ended < began and first < deletion.offset:
                    detail = f"{consumer} read {first}, deleted before {deletion.offset}"
                    found.deleted_wrongly.append((Kind.DELETED_AND_READ, detail))
        found.runs.setdefault(consumer, [[]])[-1].extend(records)
        now = self.now()
        for read in records:
            if read.leader_epoch >= 0:  # who reads a bucket may know a record before the broker that has put it there
                found.read_at.setdefault(read.offset, now)

    def marked(self, partition: str, offsets: Iterable[int]) -> None:
        self._partitions[partition].markers.update(offsets)

    def sought(self, consumer: str, partition: str) -> None:
        """Let the consumer's next poll begin anywhere."""
        self._partitions[partition].runs.setdefault(consumer, []).append([])

    def has_read_all(self, consumer: str, partition: str) -> None:
        """Record that the consumer has read the whole partition since it `sought`."""
        found = self._partitions[partition]
        known = (offset.offset for offset in found.offsets if offset.name == "high watermark")
        found.readers_of_all[consumer] = max(known, default=0)

    def found_by_time(self, partition: str, wanted_ms: int, *, offset: int, timestamp_ms: int, began: int) -> None:
        """Record the first offset with a timestamp of `wanted_ms` or later, asked for at `began`; -1 for none."""
        self.note(f"found {partition} {wanted_ms} at {offset} {timestamp_ms}")
        self._partitions[partition].times.append(_FoundByTime(wanted_ms, offset, timestamp_ms, began, self.now()))

    def found_latest(self, partition: str, *, offset: int, timestamp_ms: int, began: int) -> None:
        """Record the first offset with the greatest timestamp of all, asked for at `began`; -1 for none."""
        self.note(f"found latest of {partition} at {offset} {timestamp_ms}")
        found = _FoundByTime(timestamp_ms, offset, timestamp_ms, began, self.now(), is_latest=True)
        self._partitions[partition].times.append(found)

    def saw_epoch_end(self, partition: str, epoch: int, *, end_offset: int, began: int, is_final: bool = False) -> None:
        """Record the end of the records of epochs up to this one, asked for at `began`.

        `is_final`: the broker led with a later epoch, so that no more of them can come.
        """
        self.note(f"epoch end {partition} {epoch} at {end_offset}")
        self._partitions[partition].epoch_ends.append(_EpochEnd(epoch, end_offset, began, is_final))

    def forgive(self, partition: str, from_offset: int) -> None:
        """Forgive a broker that took over with a log up to this offset: records behind it may repeat, vanish or
        differ.
        """
        self.note(f"forgiven {partition} from {from_offset}")
        found = self._partitions[partition]
        found.acknowledged = [
            write for write in found.acknowledged if write.offset is not None and write.offset < from_offset
        ]
        for runs in found.runs.values():
            runs[:] = [[read for read in run if read.offset < from_offset] for run in runs] + [[]]
        found.read_at = {offset: at for offset, at in found.read_at.items() if offset < from_offset}
        found.markers = {offset for offset in found.markers if offset < from_offset}
        found.offsets = [
            attrs.evolve(look, offset=min(look.offset, from_offset))
            for look in found.offsets
            if look.name != "last stable offset"  # the end of a transaction may be lost that began before
        ]
        found.log_start_offset = min(found.log_start_offset, from_offset)
        found.times = [time_ for time_ in found.times if time_.offset < from_offset]
        found.epoch_ends = [epoch_end for epoch_end in found.epoch_ends if epoch_end.end_offset <= from_offset]

    def forgive_commits(self) -> None:
        for group in self._groups.values():
            group.acknowledged = -1

    def forget(self, partition: str) -> None:
        """Take back all evidence of a partition, since its topic is deleted."""
        self.note(f"forgotten {partition}")
        found = self._partitions[partition]
        self._partitions[partition] = _Partition(sent=found.sent, sent_counts=found.sent_counts)

    def saw_offsets(self, partition: str, *, began: int, log_start_offset: int, high_watermark: int) -> None:
        self.note(f"saw {partition} log start {log_start_offset} high watermark {high_watermark}")
        found = self._partitions[partition]
        found.offsets.append(_Offset("log start", log_start_offset, began, self.now()))
        found.log_start_offset = max(found.log_start_offset, log_start_offset)
        found.offsets.append(_Offset("high watermark", high_watermark, began, self.now()))
        if log_start_offset > found.deletable_before:
            detail = f"the log starts at {log_start_offset}, {found.deletable_before} was wanted"
            found.deleted_wrongly.append((Kind.DELETED_UNASKED, detail))

    def saw_stable_offset(self, partition: str, *, began: int, last_stable_offset: int) -> None:
        self.note(f"saw {partition} last stable offset {last_stable_offset}")
        self._partitions[partition].offsets.append(_Offset("last stable offset", last_stable_offset, began, self.now()))

    def deleting(self, partition: str, before_offset: float) -> None:
        """Allow deletion before this offset; `inf` allows retention to delete anything."""
        self.note(f"deleting {partition} before {before_offset}")
        found = self._partitions[partition]
        found.deletable_before = max(found.deletable_before, before_offset)
        found.wanted_deletions.append((self.now(), found.deletable_before))

    def deleted(self, partition: str, log_start_offset: int) -> None:
        self.note(f"deleted {partition} before {log_start_offset}")
        found, now = self._partitions[partition], self.now()
        deletion = _Offset("log start", log_start_offset, now, now)
        found.offsets.append(deletion)
        found.log_start_offset = max(found.log_start_offset, log_start_offset)
        found.deletions.append(deletion)

    def committing(self, group: str, partition: str, offset: int) -> None:
        """Record the attempt of the group's only committer; offsets never decrease."""
        found = self._groups[group, partition]
        found.tried.add(offset)
        found.unanswered.add(offset)

    def committed(self, group: str, partition: str, offset: int) -> None:
        self.note(f"committed {partition} {group} {offset}")
        found = self._groups[group, partition]
        found.unanswered.discard(offset)
        found.acknowledged = max(found.acknowledged, offset)

    def fetched_commit(self, group: str, partition: str, offset: int) -> None:
        """Record the group's offset, -1 for none, asked for while no commit was under way."""
        self.note(f"fetched commit {partition} {group} {offset}")
        found = self._groups[group, partition]
        if offset in found.unanswered:
            found.unanswered.discard(offset)
            found.acknowledged = offset
            return
        if offset < found.acknowledged or offset not in {-1, *found.tried}:
            detail = f"{offset} after {found.acknowledged} was acknowledged"
            found.fetched.append(Anomaly(Kind.LOST_COMMIT, f"group {group}, {partition}", detail))
        found.acknowledged = max(found.acknowledged, offset)

    @property
    def acknowledged_count(self) -> int:
        return sum(len(found.acknowledged) for found in self._partitions.values())

    def known_offset(self, partition: str, name: str, *, before: int) -> int:
        """Return the largest offset of this name that a client knew before a moment; 0 for none."""
        seen = self._partitions[partition].offsets
        return max((look.offset for look in seen if look.name == name and look.ended < before), default=0)

    def log_start_offset(self, partition: str) -> int:
        return self._partitions[partition].log_start_offset

    def stable_offsets(self, partition: str) -> Mapping[int, int]:
        """Return each known last stable offset, with the first moment by which it was known."""
        return self._first_known(partition, "last stable offset")

    def retained_starts(self, partition: str) -> Mapping[int, int]:
        """Return the same of log starts, where retention may delete anything."""
        is_retained = self._partitions[partition].deletable_before == math.inf
        return self._first_known(partition, "log start") if is_retained else {}

    def _first_known(self, partition: str, name: str) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for offset in self._partitions[partition].offsets:
            if offset.name == name:
                found.setdefault(offset.offset, offset.ended)
        return found

    def anomalies(self) -> list[Anomaly]:
        found = [anomaly for group in self._groups.values() for anomaly in group.fetched]
        for name, partition in sorted(self._partitions.items()):
            for check in _CHECKS:
                found += [Anomaly(kind, name, detail) for kind, detail in check(partition)]
            found += [Anomaly(kind, name, detail) for kind, detail in partition.deleted_wrongly]
        return found


def _values_by_offset(partition: _Partition) -> dict[int, set[str]]:
    values: defaultdict[int, set[str]] = defaultdict(set)
    for runs in partition.runs.values():
        for read in (read for run in runs for read in run):
            values[read.offset].add(read.value)
    return values


def _written(partition: _Partition) -> Iterator[_Finding]:
    values = _values_by_offset(partition)
    removable = _compacted_offsets(partition, values)
    log_start_offset = partition.log_start_offset
    seen = set().union(*values.values())
    last_read = max(values, default=-1)
    last_number: Counter[str] = Counter()
    for value in seen & partition.sent.keys():
        sent = partition.sent[value]
        last_number[sent.producer] = max(last_number[sent.producer], sent.number)
    for write in partition.acknowledged:
        if write.value in seen or write.offset in removable:
            continue
        if write.offset is not None and write.offset < log_start_offset:
            continue
        sent = partition.sent[write.value]
        passed = last_number[sent.producer] > sent.number if write.offset is None else last_read >= write.offset
        yield Kind.LOST_WRITE if passed else Kind.UNSEEN, f"{write.value}, acknowledged at {write.offset}"


def _placed(partition: _Partition) -> Iterator[_Finding]:
    values = _values_by_offset(partition)
    for write in partition.acknowledged:
        if write.offset is not None:
            values.setdefault(write.offset, set()).add(write.value)
    offsets: defaultdict[str, list[int]] = defaultdict(list)
    for offset, found in sorted(values.items()):
        if len(found) > 1:
            yield Kind.TWO_VALUES, f"offset {offset} has {', '.join(sorted(found))}"
        for value in sorted(found):
            offsets[value].append(offset)
            if value not in partition.sent:
                yield Kind.UNKNOWN_VALUE, f"{value} at offset {offset}"
    for value, where in offsets.items():
        if len(where) > (2 if value in partition.sent_anew else 1):
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
    """Return the offsets where compaction may have left nothing: those of values with keys, or of duplicates.

    A client need not have seen such a record: compaction may remove an aborted one before any read.
    """
    placed = {offset: min(found) for offset, found in values.items()}
    placed |= {write.offset: write.value for write in partition.acknowledged if write.offset is not None}
    removable: set[int] = set()
    later_keys: set[str] = set()
    later_anew: set[str] = set()
    for offset, value in sorted(placed.items(), reverse=True):
        sent = partition.sent.get(value)
        if sent is not None and sent.key is not None:
            if sent.key in later_keys or sent.may_go:
                removable.add(offset)
            later_keys.add(sent.key)
        elif value in partition.sent_anew:
            if value in later_anew:
                removable.add(offset)
            later_anew.add(value)
    if any(sent.key is not None for sent in partition.sent.values()):
        removable |= set(range(max(placed, default=0))) - placed.keys()
    return removable


def _read(partition: _Partition) -> Iterator[_Finding]:
    removable = _compacted_offsets(partition, _values_by_offset(partition)) | partition.markers
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
    """Find positions that moved back: an offset known before a question can't be larger than the answer."""
    for name in ("high watermark", "last stable offset", "log start"):
        seen = [offset for offset in partition.offsets if offset.name == name]
        ended = sorted(seen, key=lambda look: look.ended)
        known, position = -1, 0
        for look in sorted(seen, key=lambda look: look.began):
            while position < len(ended) and ended[position].ended < look.began:
                known = max(known, ended[position].offset)
                position += 1
            if look.offset < known and look.began != look.ended:
                yield Kind.MOVED_BACK, f"{name} {look.offset} after {known}"


def _kept(partition: _Partition) -> Iterator[_Finding]:
    for consumer, runs in partition.runs.items():
        for read in (read for run in runs for read in run):
            sent = partition.sent.get(read.value)
            if sent is not None and read.content is not None and sent.content not in (None, read.content):
                yield Kind.CHANGED, f"{consumer} read {read.value} as {read.content}, sent was {sent.content}"


def _found_by_time(partition: _Partition) -> Iterator[_Finding]:
    """Find wrong look-ups by time: an earlier record that was there and is late enough, a later one than the latest, or
    a deleted one.
    """
    if not partition.times:
        return
    values = _values_by_offset(partition)
    removable = _compacted_offsets(partition, values)
    known = []
    for write in partition.acknowledged:
        content = partition.sent[write.value].content
        if write.offset is not None and content is not None:
            known.append((write.offset, content.timestamp_ms, write.at))
    timestamps = {offset: timestamp_ms for offset, timestamp_ms, _ in known}
    log_starts = [look for look in partition.offsets if look.name == "log start" and look.offset]
    for found in partition.times:
        what = f"{found.wanted_ms} was found at {found.offset} with {found.timestamp_ms}"
        if found.offset >= 0 and found.timestamp_ms < found.wanted_ms:
            yield Kind.WRONG_TIME, what
        if timestamps.get(found.offset, found.timestamp_ms) != found.timestamp_ms:
            yield Kind.WRONG_TIME, f"{what}, which was sent with {timestamps[found.offset]}"
        if (
            0
            <= found.offset
            < max((log_start.offset for log_start in log_starts if log_start.ended < found.began), default=0)
        ):
            yield Kind.WRONG_TIME, f"{what}, which was deleted"
        wanted = max((before for at, before in partition.wanted_deletions if at < found.ended), default=0)
        log_start_offset = min(partition.log_start_offset, wanted)
        for offset, timestamp_ms, at in known:
            is_first = found.offset < 0 or offset < found.offset
            is_first |= found.is_latest and timestamp_ms > found.timestamp_ms
            is_there = at < found.began and offset >= log_start_offset and offset not in removable
            if is_there and is_first and timestamp_ms >= found.wanted_ms:
                yield Kind.WRONG_TIME, f"{what}, offset {offset} has {timestamp_ms}"
                break


def _divided(partition: _Partition) -> Iterator[_Finding]:
    epochs = {
        read.offset: read.leader_epoch
        for runs in partition.runs.values()
        for run in runs
        for read in run
        if read.leader_epoch >= 0
    }
    for end in partition.epoch_ends:
        what = f"epoch {end.epoch} ends at {end.end_offset}"
        for offset, epoch in epochs.items():
            if epoch > end.epoch and offset < end.end_offset:
                yield Kind.WRONG_EPOCH, f"{what}, offset {offset} has epoch {epoch}"
            elif epoch <= end.epoch and offset >= end.end_offset and end.is_final:
                yield Kind.WRONG_EPOCH, f"{what} for good, offset {offset} has epoch {epoch}"
            elif epoch <= end.epoch and offset >= end.end_offset and partition.read_at[offset] < end.began:
                yield Kind.WRONG_EPOCH, f"{what}, offset {offset} was read before and has epoch {epoch}"


def _tables(partition: _Partition) -> Iterator[_Finding]:
    """Find wrong tables: a reader of everything has the last value of each key, or nothing after a tombstone."""
    keyed: list[tuple[int, str, str]] = []
    for offset, values in sorted(_values_by_offset(partition).items()):
        for value in sorted(values):
            sent = partition.sent.get(value)
            if sent is not None and sent.key is not None:
                keyed.append((offset, sent.key, value))
    for consumer, end_offset in sorted(partition.readers_of_all.items()):
        latest = {key: value for offset, key, value in keyed if offset < end_offset}
        table: dict[str, str] = {}
        for read in partition.runs.get(consumer, [[]])[-1]:
            sent = partition.sent.get(read.value)
            if sent is not None and sent.key is not None:
                table[sent.key] = read.value
        for key, value in table.items():
            last = latest.get(key, value)
            if partition.sent[last].is_tombstone and value != last:
                yield Kind.RESURRECTED, f"{consumer} has {value} of {key}, which {last} deleted"


_CHECKS = (_written, _placed, _ordered, _read, _moved, _kept, _found_by_time, _divided, _tables)
