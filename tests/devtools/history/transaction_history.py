"""Checker of the sends and polls of transactions, by Jepsen's names for Kafka-likes (`Kind`).

After the documentation of jepsen.tests.kafka (https://jepsen-io.github.io/jepsen/jepsen.tests.kafka.html), from which
the edges between transactions are taken too: *ww* between the writers of neighbouring values, *wr* from the writer of
the last value that a transaction polled. Offsets have holes where markers and aborted values are, so only values that
some transaction committed, or a consumer polled, can be skipped. G1b is the form of an intermediate read in a log.

G0, G1c and int-send-skip are legal in Kafka, whose transactions do not isolate writers from each other; `wanted`
selects the anomalies. Values must be different. Pure functions; `anomalies` calls them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise

import attrs


class Kind(Enum):
    G0 = "G0"  # transactions whose values lie before each other's in a circle: each before the next one's
    G1A = "G1a"  # a value of an aborted transaction was polled
    G1B = "G1b"  # a value was polled before its transaction had asked to be committed
    G1C = "G1c"  # the same circle as G0, in which some are ordered only because one polled the other's value
    ABORTED_READ = "aborted-read"  # a value was polled whose sending, outside transactions, had failed
    LOST_WRITE = "lost-write"  # committed, never polled, and something behind it was polled
    DUPLICATE = "duplicate"  # one value at two offsets
    INCONSISTENT_OFFSETS = "inconsistent-offsets"  # an offset that had two values
    POLL_SKIP = "poll-skip"  # a consumer's next transaction went on behind a value that it had not polled
    NONMONOTONIC_POLL = "nonmonotonic-poll"  # it went back
    INT_POLL_SKIP = "int-poll-skip"  # a skip within one transaction
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"  # likewise, it went back
    INT_SEND_SKIP = "int-send-skip"  # others are between two values that a transaction sent, one after the other
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"  # a later one lies before an earlier one


# What a broker with Kafka's promises never lets happen.
PROMISED = frozenset(Kind) - {Kind.G0, Kind.G1C, Kind.INT_SEND_SKIP}


class End(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@attrs.frozen
class Placed:
    partition: str
    offset: int
    value: str


@attrs.frozen
class Send:
    partition: str
    value: str
    offset: int | None = None


@attrs.frozen
class Poll:
    records: tuple[Placed, ...]
    at: int = 0  # when it returned; 0: unknown
    sought: bool = False  # the consumer's position was moved before: by a seek, an abort or a rebalance


@attrs.frozen(kw_only=True)
class Transaction:
    """One transaction, or one send or poll outside of any; a process's transactions are in order."""

    name: str
    process: str
    operations: tuple[Send | Poll, ...]
    end: End = End.COMMITTED
    ending_at: int = 0  # when its commit was asked for; 0: unknown
    is_transactional: bool = True

    @property
    def sends(self) -> Iterator[Send]:
        return (operation for operation in self.operations if isinstance(operation, Send))

    @property
    def polls(self) -> Iterator[Poll]:
        return (operation for operation in self.operations if isinstance(operation, Poll))

    @property
    def polled(self) -> Iterator[Placed]:
        return (record for poll in self.polls for record in poll.records)


@attrs.frozen
class Anomaly:
    kind: Kind
    detail: str


@attrs.frozen
class _Edges:
    ww: frozenset[tuple[int, int]]
    wr: frozenset[tuple[int, int]]


def anomalies(history: Sequence[Transaction], wanted: Iterable[Kind] = tuple(Kind)) -> list[Anomaly]:
    kinds = frozenset(wanted)
    return [anomaly for check in _CHECKS for anomaly in check(history) if anomaly.kind in kinds]


def places(history: Sequence[Transaction]) -> set[Placed]:
    sent = {
        Placed(send.partition, send.offset, send.value)
        for transaction in history
        for send in transaction.sends
        if send.offset is not None
    }
    return sent | {record for transaction in history for record in transaction.polled}


def version_order(history: Sequence[Transaction]) -> dict[str, list[Placed]]:
    """Return the values of each partition in the order of consumption: committed, or polled by a consumer."""
    writers = _writers(history)
    polled = {record.value for transaction in history for record in transaction.polled}
    order: defaultdict[str, list[Placed]] = defaultdict(list)
    for placed in places(history):
        writer = writers.get(placed.value)
        if placed.value in polled or (writer is not None and history[writer].end is End.COMMITTED):
            order[placed.partition].append(placed)
    for records in order.values():
        records.sort(key=lambda placed: placed.offset)
    return dict(order)


def aborted_reads(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """G1a, and aborted-read outside of transactions."""
    writers = _writers(history)
    for transaction in history:
        for record in transaction.polled:
            writer = writers.get(record.value)
            if writer is not None and history[writer].end is End.ABORTED:
                kind = Kind.G1A if history[writer].is_transactional else Kind.ABORTED_READ
                yield Anomaly(kind, f"{transaction.name} polled {record.value} of {history[writer].name}")


def intermediate_reads(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """G1b: values polled before their transaction had asked to be committed."""
    writers = _writers(history)
    for transaction in history:
        for poll in transaction.polls:
            for record in poll.records:
                writer = writers.get(record.value)
                if writer is None or not history[writer].is_transactional or not poll.at:
                    continue
                if poll.at < history[writer].ending_at:
                    yield Anomaly(
                        Kind.G1B, f"{transaction.name} polled {record.value} before {history[writer].name} ended"
                    )


def lost_writes(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """Find committed values that no consumer polled although it polled values behind them."""
    polled = {record for transaction in history for record in transaction.polled}
    furthest: dict[str, int] = {}
    for record in polled:
        furthest[record.partition] = max(furthest.get(record.partition, -1), record.offset)
    values = {record.value for record in polled}
    for transaction in history:
        for send in transaction.sends if transaction.end is End.COMMITTED else ():
            is_passed = send.offset is not None and send.offset <= furthest.get(send.partition, -1)
            if is_passed and send.value not in values:
                yield Anomaly(Kind.LOST_WRITE, f"{send.value} of {transaction.name}, at {send.partition} {send.offset}")


def misplaced(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    by_value: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    by_place: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for placed in places(history):
        by_value[placed.value].add((placed.partition, placed.offset))
        by_place[placed.partition, placed.offset].add(placed.value)
    for value, found in by_value.items():
        if len(found) > 1:
            yield Anomaly(Kind.DUPLICATE, f"{value} at {sorted(found)}")
    for place, values in by_place.items():
        if len(values) > 1:
            yield Anomaly(Kind.INCONSISTENT_OFFSETS, f"{sorted(values)} at {place}")


def polls_out_of_order(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """Check that the polls of a consumer go on without gaps, within a transaction and from one to the next."""
    order = version_order(history)
    positions: dict[tuple[str, str], tuple[str, int]] = {}  # process, partition: transaction, offset
    for transaction in history:
        for poll in transaction.polls:
            if poll.sought:
                positions = {key: value for key, value in positions.items() if key[0] != transaction.process}
            for record in poll.records:
                key = (transaction.process, record.partition)
                name, former = positions.get(key, ("", record.offset - 1))
                inside = name == transaction.name
                detail = f"{transaction.name}: {record.partition} {former} to {record.offset}"
                if record.offset <= former:
                    yield Anomaly(Kind.INT_NONMONOTONIC_POLL if inside else Kind.NONMONOTONIC_POLL, detail)
                elif _between(order[record.partition], former, record.offset):
                    yield Anomaly(Kind.INT_POLL_SKIP if inside else Kind.POLL_SKIP, detail)
                positions[key] = (transaction.name, record.offset)


def sends_out_of_order(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """Check that the values of a transaction lie in a partition in order, with none of others between."""
    order = version_order(history)
    where = {placed.value: placed.offset for placed in places(history)}
    for transaction in history:
        by_partition: defaultdict[str, list[int]] = defaultdict(list)
        for send in transaction.sends:
            if send.value in where:
                by_partition[send.partition].append(where[send.value])
        for partition, offsets in by_partition.items():
            for former, following in pairwise(offsets):
                detail = f"{transaction.name}: {partition} {former} and {following}"
                if following <= former:
                    yield Anomaly(Kind.INT_NONMONOTONIC_SEND, detail)
                elif _between(order.get(partition, []), former, following):
                    yield Anomaly(Kind.INT_SEND_SKIP, detail)


def cycles(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """G0, circles of ww edges; G1c, circles with a wr edge in them."""
    edges = _edges(history)
    for group in _circles(edges.ww):
        yield Anomaly(Kind.G0, ", ".join(sorted(history[node].name for node in group)))
    for group in _circles(edges.ww | edges.wr):
        if any(a in group and b in group for a, b in edges.wr):
            yield Anomaly(Kind.G1C, ", ".join(sorted(history[node].name for node in group)))


_CHECKS: tuple[Callable[[Sequence[Transaction]], Iterator[Anomaly]], ...] = (
    aborted_reads,
    intermediate_reads,
    lost_writes,
    misplaced,
    polls_out_of_order,
    sends_out_of_order,
    cycles,
)


def _writers(history: Sequence[Transaction]) -> dict[str, int]:
    writers: dict[str, int] = {}
    for number, transaction in enumerate(history):
        for send in transaction.sends:
            assert send.value not in writers, f"{send.value} was sent before"
            writers[send.value] = number
    return writers


def _between(order: Sequence[Placed], former: int, following: int) -> bool:
    return any(former < record.offset < following for record in order)


def _edges(history: Sequence[Transaction]) -> _Edges:
    writers = _writers(history)
    ww: set[tuple[int, int]] = set()
    for placed in version_order(history).values():
        numbers = [writers[record.value] for record in placed if record.value in writers]
        ww.update((a, b) for a, b in pairwise(numbers) if a != b)
    wr: set[tuple[int, int]] = set()
    for number, transaction in enumerate(history):
        last: dict[str, Placed] = {}
        for record in transaction.polled:
            if record.partition not in last or record.offset > last[record.partition].offset:
                last[record.partition] = record
        wr.update((writers[record.value], number) for record in last.values() if record.value in writers)
    return _Edges(frozenset(ww), frozenset((a, b) for a, b in wr if a != b))


def _circles(edges: frozenset[tuple[int, int]]) -> list[frozenset[int]]:
    """Return the largest groups of which each reaches each other: Kosaraju's two passes, without recursion."""
    ahead: defaultdict[int, list[int]] = defaultdict(list)
    back: defaultdict[int, list[int]] = defaultdict(list)
    for a, b in sorted(edges):
        ahead[a].append(b)
        back[b].append(a)
    finished: list[int] = []
    seen: set[int] = set()
    for start in sorted({*ahead, *back}):
        stack = [] if start in seen else [(start, iter(ahead[start]))]
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            following = next((node for node in rest if node not in seen), None)
            if following is None:
                finished.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(ahead[following])))
    groups: list[frozenset[int]] = []
    taken: set[int] = set()
    for start in reversed(finished):
        group, queue = set[int](), [start]
        while queue:
            node = queue.pop()
            if node not in taken:
                taken.add(node)
                group.add(node)
                queue += back[node]
        if len(group) > 1:
            groups.append(frozenset(group))
    return groups
