"""Checker of transactional clients and of the answers to them, across crashes of the broker.

Besides the anomalies of `transaction_history` that Kafka excludes, `TransactionsSeen.problems` looks for

    half a transaction     a reader of all committed records found some records of a transaction and not the others, or
                           not all of a committed one
    zombie                 a request of a producer succeeded after a later one of its transactional id had its epoch
    identity given twice   two producers with one producer id and epoch
    beyond the end         a committed record from behind the last stable offset of its answer
    resurrected            a value of a key that a committed tombstone, compacted away since, had deleted
    changed                a committed record with another content than it was sent with

A transaction without a request to commit is an aborted one, and so is one whose only request was refused. Records may
be gone from a log below its start, and before later committed values of the same keys. Moments are those of one
`History`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from tests.devtools.history.history import Content, History
from tests.devtools.history.transaction_history import PROMISED, End, Kind, Placed, Poll, Send, Transaction, anomalies

# What compaction, retention and deletion make of a history without anything being wrong.
_OF_WHAT_IS_KEPT = frozenset({Kind.LOST_WRITE, Kind.POLL_SKIP, Kind.INT_POLL_SKIP})


@attrs.frozen
class Sent:
    partition: str
    value: str
    key: str
    content: Content
    offset: int | None = None


@attrs.frozen
class CommittedRead:
    offset: int
    value: str
    key: str
    content: Content


@attrs.define(eq=False, kw_only=True)
class Attempt:
    """A transaction, as its producer knows it. `copied` are the polled records whose offsets it commits."""

    name: str
    sends: dict[str, Sent] = attrs.field(factory=dict, init=False)  # by value
    copied: list[Placed] = attrs.field(factory=list, init=False)
    is_to_commit: bool = attrs.field(default=False, init=False)
    asked_at: int = attrs.field(default=0, init=False)
    asked_count: int = attrs.field(default=0, init=False)  # how often, with an answer or without
    was_told: bool = attrs.field(default=False, init=False)  # that it has ended so
    was_refused: bool = attrs.field(default=False, init=False)

    @property
    def end(self) -> End:
        if not self.is_to_commit or (self.was_refused and self.asked_count == 1):
            return End.ABORTED
        return End.COMMITTED if self.was_told else End.UNKNOWN


@attrs.frozen
class _Poll:
    reads: Sequence[CommittedRead]
    at: int
    sought: bool


@attrs.frozen(kw_only=True)
class Identity:
    """Identity of a producer: `incarnation` names one call of InitProducerId."""

    transactional_id: str
    incarnation: str
    producer_id: int
    producer_epoch: int

    def precedes(self, other: Identity) -> bool:
        """Tell whether the other one fences it; epochs are never used up here, so ids change only by a loss."""
        return self.producer_id != other.producer_id or self.producer_epoch < other.producer_epoch


@attrs.define(eq=False)
class TransactionsSeen:
    """A record of events; partitions are named as in `history`."""

    history: History
    attempts: list[Attempt] = attrs.field(factory=list, init=False)
    _plain: dict[str, Sent] = attrs.field(factory=dict, init=False)  # that were acknowledged outside of transactions
    _polls: defaultdict[tuple[str, str], list[_Poll]] = attrs.field(factory=lambda: defaultdict(list), init=False)
    _readers_of_all: set[tuple[str, str]] = attrs.field(factory=set, init=False)
    _inits: list[tuple[int, Identity]] = attrs.field(factory=list, init=False)  # with when they were told
    _given: dict[tuple[int, int], str] = attrs.field(factory=dict, init=False)
    _findings: list[str] = attrs.field(factory=list, init=False)

    def initialised(self, identity: Identity) -> None:
        self.history.note(f"initialised {identity.incarnation} {identity.producer_id} {identity.producer_epoch}")
        self._inits.append((self.history.now(), identity))
        self.given(identity)

    def given(self, identity: Identity) -> None:
        key = (identity.producer_id, identity.producer_epoch)
        other = self._given.setdefault(key, identity.incarnation)
        if other != identity.incarnation:
            self._findings.append(f"identity given twice: {key} to {other} and {identity.incarnation}")

    def begin(self, incarnation: str) -> Attempt:
        attempt = Attempt(name=f"{incarnation}#{len(self.attempts)}")
        self.attempts.append(attempt)
        return attempt

    def worked(self, identity: Identity, what: str, *, began: int) -> None:
        for at, later in self._inits:
            if at < began and later.transactional_id == identity.transactional_id and identity.precedes(later):
                self._findings.append(f"zombie: {what} of {identity} was done, after {later} was there")

    def sent_plain(self, sent: Sent) -> None:
        self._plain[sent.value] = sent

    def polled(self, consumer: str, partition: str, reads: Sequence[CommittedRead], *, stable_offset: int) -> None:
        self.history.note(f"committed {partition} {consumer} {reads[0].offset} to {reads[-1].offset}")
        if reads[-1].offset >= stable_offset:
            found = f"{consumer} got {partition} {reads[-1].offset}, stable up to {stable_offset}"
            self._findings.append(f"beyond the end: {found}")
        self._polls[consumer, partition].append(_Poll(reads, self.history.now(), sought=False))

    def sought(self, consumer: str, partition: str) -> None:
        self._polls[consumer, partition].append(_Poll((), self.history.now(), sought=True))

    def has_read_all(self, consumer: str, partition: str) -> None:
        """Record that the consumer has read the whole partition, when no transaction was open any more."""
        self._readers_of_all.add((consumer, partition))

    def read_by(self, consumer: str, partition: str) -> Mapping[str, CommittedRead]:
        return {read.value: read for poll in self._polls.get((consumer, partition), ()) for read in poll.reads}

    @property
    def committed_count(self) -> int:
        return sum(attempt.end is End.COMMITTED for attempt in self.attempts)

    def problems(self, *, tombstones_may_go: bool = False) -> list[str]:
        known = _Known.of(self, tombstones_may_go=tombstones_may_go)
        found = [*self._findings, *self._changed(known), *known.halves(), *known.resurrected()]
        transactions = self._transactions(frozenset())
        if not known.removable:
            return found + [str(anomaly) for anomaly in anomalies(transactions, PROMISED)]
        found += [str(anomaly) for anomaly in anomalies(transactions, PROMISED - _OF_WHAT_IS_KEPT)]
        kept = self._transactions(known.removable)
        return found + [str(anomaly) for anomaly in anomalies(kept, _OF_WHAT_IS_KEPT)]

    def _changed(self, known: _Known) -> Iterator[str]:
        for (consumer, partition), polls in self._polls.items():
            for read in (read for poll in polls for read in poll.reads):
                sent = known.sent.get(read.value)
                if sent is not None and sent.content != read.content:
                    yield f"changed: {consumer} read {read} in {partition}, {sent} was sent"

    def _transactions(self, without: frozenset[str]) -> list[Transaction]:
        found = [
            Transaction(
                name=attempt.name,
                process=attempt.name,
                operations=tuple(
                    Send(sent.partition, sent.value, sent.offset)
                    for sent in attempt.sends.values()
                    if sent.value not in without
                ),
                end=attempt.end,
                ending_at=attempt.asked_at,
            )
            for attempt in self.attempts
        ]
        for sent in self._plain.values():
            operations = () if sent.value in without else (Send(sent.partition, sent.value, sent.offset),)
            found.append(Transaction(name=sent.value, process="plain", operations=operations, is_transactional=False))
        for (consumer, partition), polls in self._polls.items():
            name = f"{consumer} of {partition}"
            found.append(Transaction(name=name, process=name, operations=tuple(_without(partition, polls, without))))
        return found


def _without(partition: str, polls: Sequence[_Poll], without: frozenset[str]) -> Iterator[Poll]:
    for poll in polls:
        records = tuple(Placed(partition, read.offset, read.value) for read in poll.reads if read.value not in without)
        yield Poll(records, at=poll.at, sought=poll.sought)


@attrs.frozen(kw_only=True)
class _Known:
    sent: Mapping[str, Sent]  # of all transactions, and what was acknowledged outside
    committed: frozenset[str]  # of these
    removable: frozenset[str]  # of these
    read: Mapping[tuple[str, str], Mapping[str, CommittedRead]]  # by reader of all and partition, and by value
    tombstones: Mapping[tuple[str, str], tuple[int, str]]  # by partition and key: where the last value is one

    @classmethod
    def of(cls, seen: TransactionsSeen, *, tombstones_may_go: bool) -> _Known:
        sent = {send.value: send for attempt in seen.attempts for send in attempt.sends.values()} | seen._plain
        read_by_anybody = {read.value for polls in seen._polls.values() for poll in polls for read in poll.reads}
        committed = {value for value in sent if value in read_by_anybody or value in seen._plain}
        possible: set[str] = set()  # that may have covered others, and be gone
        for attempt in seen.attempts:
            if attempt.end is End.COMMITTED or not committed.isdisjoint(attempt.sends):
                committed |= attempt.sends.keys()
            elif attempt.end is End.UNKNOWN:
                possible |= attempt.sends.keys()
        last = _last(sent[value] for value in committed)
        covering = _last(sent[value] for value in committed | possible)

        def may_be_gone(each: Sent) -> bool:
            assert each.offset is not None
            is_forgotten = tombstones_may_go and each.content.is_tombstone
            is_covered = each.offset < covering[each.partition, each.key][0]
            return is_forgotten or is_covered or each.offset < seen.history.log_start_offset(each.partition)

        return cls(
            sent=sent,
            committed=frozenset(committed),
            removable=frozenset(
                value for value in committed if sent[value].offset is not None and may_be_gone(sent[value])
            ),
            read={key: seen.read_by(*key) for key in sorted(seen._readers_of_all)},
            tombstones={
                key: (offset, value) for key, (offset, value) in last.items() if sent[value].content.is_tombstone
            },
        )

    def halves(self) -> Iterator[str]:
        wanted: defaultdict[str, list[str]] = defaultdict(list)
        for value in sorted(self.committed - self.removable):
            wanted[self.sent[value].partition].append(value)
        for (consumer, partition), read in self.read.items():
            for value in wanted[partition]:
                if value not in read:
                    yield f"half a transaction: {consumer} did not get {self.sent[value]}"

    def resurrected(self) -> Iterator[str]:
        for (consumer, partition), read in self.read.items():
            for record in read.values():
                offset, tombstone = self.tombstones.get((partition, record.key), (-1, ""))
                if record.offset < offset and tombstone not in read:
                    yield f"resurrected: {consumer} got {record} of {partition}, which {tombstone} deleted"


def _last(values: Iterable[Sent]) -> dict[tuple[str, str], tuple[int, str]]:
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for value in values:
        key = (value.partition, value.key)
        if value.offset is not None and value.offset > found.get(key, (-1, ""))[0]:
            found[key] = (value.offset, value.value)
    return found
