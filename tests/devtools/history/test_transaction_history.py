"""The checker is itself checked: a sound history has no anomaly, and each one that is planted is found."""

from __future__ import annotations

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st

from tests.devtools.history.transaction_history import (
    PROMISED,
    Anomaly,
    End,
    Kind,
    Placed,
    Poll,
    Send,
    Transaction,
    _circles,
    anomalies,
)

X, Y = "x-0", "y-0"


def sent(name: str, *sends: Send, end: End = End.COMMITTED, ending_at: int = 0, plain: bool = False) -> Transaction:
    return Transaction(
        name=name, process=name, operations=sends, end=end, ending_at=ending_at, is_transactional=not plain
    )


def polled(name: str, *polls: Poll, process: str = "c") -> Transaction:
    return Transaction(name=name, process=process, operations=polls)


def poll(*records: tuple[str, int, str], at: int = 0, sought: bool = False) -> Poll:
    return Poll(tuple(Placed(*record) for record in records), at=at, sought=sought)


def sound_history() -> list[Transaction]:
    """Two transactions that are committed, with a marker and an aborted value between them, and two consumers."""
    return [
        sent("t0", Send(X, "a", 0), Send(X, "b", 1), Send(Y, "c", 0), ending_at=10),
        sent("t1", Send(X, "gone", 3), end=End.ABORTED),
        sent("t2", Send(X, "d", 5), Send(Y, "e"), end=End.UNKNOWN, ending_at=20),
        polled("c0", poll((X, 0, "a"), (X, 1, "b"), at=11)),
        polled("c1", poll((X, 5, "d"), (Y, 0, "c"), at=21), poll((Y, 2, "e"), at=22)),
        polled("c2", poll((X, 1, "b"), at=30, sought=True)),
        polled("d0", poll((X, 0, "a"), (X, 1, "b"), (X, 5, "d"), at=31), process="d"),
    ]


def test_a_sound_history_has_no_anomaly() -> None:
    assert anomalies(sound_history()) == []


PLANTED: list[tuple[Kind, list[Transaction]]] = [
    (
        Kind.G0,
        [
            sent("t0", Send(X, "a", 0), Send(Y, "b", 1)),
            sent("t1", Send(X, "c", 1), Send(Y, "d", 0)),
        ],
    ),
    (Kind.G1A, [sent("t0", Send(X, "a", 0), end=End.ABORTED), polled("c0", poll((X, 0, "a")))]),
    (Kind.G1B, [sent("t0", Send(X, "a", 0), ending_at=10), polled("c0", poll((X, 0, "a"), at=9))]),
    (
        Kind.G1C,
        [
            Transaction(name="t0", process="p", operations=(poll((X, 0, "b")), Send(Y, "a", 0))),
            Transaction(name="t1", process="q", operations=(poll((Y, 0, "a")), Send(X, "b", 0))),
        ],
    ),
    (Kind.ABORTED_READ, [sent("s", Send(X, "a", 0), end=End.ABORTED, plain=True), polled("c0", poll((X, 0, "a")))]),
    (
        Kind.LOST_WRITE,
        [
            sent("t0", Send(X, "a", 0), Send(X, "b", 1)),
            polled("c0", poll((X, 1, "b"))),
        ],
    ),
    (Kind.DUPLICATE, [sent("t0", Send(X, "a", 0)), polled("c0", poll((X, 0, "a"), (X, 1, "a")))]),
    (
        Kind.INCONSISTENT_OFFSETS,
        [
            sent("t0", Send(X, "a", 0)),
            sent("t1", Send(X, "b")),
            polled("c0", poll((X, 0, "b"))),
            polled("d0", poll((X, 0, "a")), process="d"),
        ],
    ),
    (
        Kind.POLL_SKIP,
        [
            sent("t0", Send(X, "a", 0), Send(X, "b", 1), Send(X, "c", 2)),
            polled("d0", poll((X, 0, "a"), (X, 1, "b"), (X, 2, "c")), process="d"),
            polled("c0", poll((X, 0, "a"))),
            polled("c1", poll((X, 2, "c"))),
        ],
    ),
    (
        Kind.NONMONOTONIC_POLL,
        [
            sent("t0", Send(X, "a", 0), Send(X, "b", 1)),
            polled("c0", poll((X, 0, "a"), (X, 1, "b"))),
            polled("c1", poll((X, 1, "b"))),
        ],
    ),
    (
        Kind.INT_POLL_SKIP,
        [
            sent("t0", Send(X, "a", 0), Send(X, "b", 1), Send(X, "c", 2)),
            polled("d0", poll((X, 1, "b")), process="d"),
            polled("c0", poll((X, 0, "a")), poll((X, 2, "c"))),
        ],
    ),
    (
        Kind.INT_NONMONOTONIC_POLL,
        [
            sent("t0", Send(X, "a", 0), Send(X, "b", 1)),
            polled("c0", poll((X, 0, "a"), (X, 1, "b"), (X, 0, "a"))),
        ],
    ),
    (
        Kind.INT_SEND_SKIP,
        [
            sent("t0", Send(X, "a", 0), Send(X, "b", 2)),
            sent("t1", Send(X, "c", 1)),
        ],
    ),
    (Kind.INT_NONMONOTONIC_SEND, [sent("t0", Send(X, "a", 1), Send(X, "b", 0))]),
]
BESIDE = {Kind.INT_SEND_SKIP: {Kind.G0}}  # a value between two values of another transaction is in a circle with it


@pytest.mark.parametrize(("kind", "history"), PLANTED, ids=[kind.value for kind, _ in PLANTED])
def test_each_planted_anomaly_is_reported_and_no_others(kind: Kind, history: list[Transaction]) -> None:
    found = {anomaly.kind for anomaly in anomalies(history)}
    assert found == {kind} | BESIDE.get(kind, set())
    assert {anomaly.kind for anomaly in anomalies(history, {kind})} == {kind}
    assert bool(anomalies(history, PROMISED)) == (kind in PROMISED)


def test_each_kind_is_planted() -> None:
    assert {kind for kind, _ in PLANTED} == set(Kind)


def test_an_anomaly_names_the_poll_the_record_and_the_transaction() -> None:
    history = [sent("t0", Send(X, "a", 0), end=End.ABORTED), polled("c0", poll((X, 0, "a")))]
    assert anomalies(history) == [Anomaly(Kind.G1A, "c0 polled a of t0")]


def test_unread_records_of_aborted_or_unknown_transactions_give_no_anomaly() -> None:
    history = sound_history()
    for end in (End.ABORTED, End.UNKNOWN):
        history[1] = attrs.evolve(history[1], end=end)
        assert anomalies(history) == []


def test_a_consumer_that_sought_may_read_from_any_offset() -> None:
    history = [
        sent("t0", Send(X, "a", 0), Send(X, "b", 1), Send(X, "c", 2)),
        polled("d0", poll((X, 0, "a"), (X, 1, "b"), (X, 2, "c")), process="d"),
        polled("c0", poll((X, 0, "a"))),
        polled("c1", poll((X, 2, "c"), sought=True)),
        polled("c2", poll((X, 0, "a"), sought=True)),
    ]
    assert anomalies(history) == []


@hypothesis.given(st.frozensets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda e: e[0] != e[1])))
def test_circles_are_groups_of_nodes_that_reach_each_other(edges: frozenset[tuple[int, int]]) -> None:
    reach = set(edges)
    for middle in range(8):
        reach |= {(a, d) for a, b in reach if b == middle for c, d in reach if c == middle}
    groups = _circles(edges)
    together = {(a, b) for group in groups for a in group for b in group if a != b}
    assert together == {(a, b) for a, b in reach if (b, a) in reach and a != b}
