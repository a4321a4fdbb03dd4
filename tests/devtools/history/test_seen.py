"""Tests of the checker of transactional clients: each violation is planted once, and found."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.devtools.history.history import Content, History
from tests.devtools.history.seen import Attempt, CommittedRead, Identity, Sent, TransactionsSeen
from tests.devtools.history.transaction_history import End

X, Y = "payments-0", "payments-1"
CONTENT = Content(1, 2)
TOMBSTONE = Content(1, 3, is_tombstone=True)
FIRST = Identity(transactional_id="tx", incarnation="a/1", producer_id=7, producer_epoch=0)
SECOND = Identity(transactional_id="tx", incarnation="b/1", producer_id=7, producer_epoch=1)


def sent(attempt: Attempt, partition: str, value: str, offset: int | None, *, key: str = "") -> None:
    attempt.sends[value] = Sent(partition, value, key or value, CONTENT, offset)


def end(seen: TransactionsSeen, attempt: Attempt, *, commit: bool = True, told: bool = True) -> Attempt:
    attempt.is_to_commit, attempt.asked_at, attempt.was_told = commit, seen.history.now(), told
    attempt.asked_count = 1
    return attempt


def read(seen: TransactionsSeen, partition: str, *values: tuple[int, str], consumer: str = "all") -> None:
    reads = [CommittedRead(offset, value, value, CONTENT) for offset, value in values]
    if reads:
        seen.polled(consumer, partition, reads, stable_offset=100)
    seen.has_read_all(consumer, partition)


def sound() -> tuple[TransactionsSeen, Attempt]:
    """A committed transaction of two partitions, an aborted one, and one with an unknown end; all are read."""
    seen = TransactionsSeen(History())
    seen.initialised(FIRST)
    first = seen.begin("a/1")
    sent(first, X, "x", 0)
    sent(first, Y, "y", 0)
    seen.worked(FIRST, "x", began=seen.history.now())
    end(seen, first)
    seen.initialised(SECOND)
    sent(seen.begin("b/1"), X, "gone", 2)
    unknown = seen.begin("b/1")
    sent(unknown, X, "maybe", 4)
    end(seen, unknown, told=False)
    read(seen, X, (0, "x"), (4, "maybe"))
    read(seen, Y, (0, "y"))
    return seen, first


def test_a_sound_transactional_history_has_no_problems() -> None:
    seen, _ = sound()
    assert seen.problems() == []
    assert [attempt.end for attempt in seen.attempts] == [End.COMMITTED, End.ABORTED, End.UNKNOWN]
    assert seen.committed_count == 1


def test_a_refused_commit_is_an_abort_and_a_refused_repeated_commit_is_unknown() -> None:
    attempt = Attempt(name="t")
    attempt.is_to_commit = attempt.was_refused = True
    attempt.asked_count = 1
    ends = [attempt.end]
    attempt.asked_count = 2
    assert [*ends, attempt.end] == [End.ABORTED, End.UNKNOWN]


def half_of_a_committed_one(seen: TransactionsSeen, first: Attempt) -> None:
    read(seen, Y, consumer="later")


def half_of_an_unknown_one(seen: TransactionsSeen, first: Attempt) -> None:
    unknown = seen.attempts[2]
    sent(unknown, Y, "other half", 2)


def aborted(seen: TransactionsSeen, first: Attempt) -> None:
    read(seen, X, (0, "x"), (2, "gone"), (4, "maybe"), consumer="later")


def zombie(seen: TransactionsSeen, first: Attempt) -> None:
    seen.worked(FIRST, "late", began=seen.history.now())


def same_identity(seen: TransactionsSeen, first: Attempt) -> None:
    seen.given(attrs.evolve(SECOND, incarnation="c/1"))


def beyond_the_end(seen: TransactionsSeen, first: Attempt) -> None:
    seen.polled("hasty", X, [CommittedRead(0, "x", "x", CONTENT)], stable_offset=0)


def changed(seen: TransactionsSeen, first: Attempt) -> None:
    seen.polled("other", X, [CommittedRead(0, "x", "x", Content(1, 9))], stable_offset=1)


def before_the_end(seen: TransactionsSeen, first: Attempt) -> None:
    first.asked_at = seen.history.now() + 1


def plain_lost(seen: TransactionsSeen, first: Attempt) -> None:
    seen.sent_plain(Sent(Y, "plain", "plain", CONTENT, 1))


def resurrected(seen: TransactionsSeen, first: Attempt) -> None:
    unknown = seen.attempts[2]
    end(seen, unknown)
    unknown.sends["tombstone"] = Sent(X, "tombstone", "x", TOMBSTONE, 5)
    read(seen, X, (0, "x"), (4, "maybe"), consumer="later")


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (half_of_a_committed_one, "half a transaction"),
        (half_of_an_unknown_one, "half a transaction"),
        (aborted, "G1A"),
        (zombie, "zombie"),
        (same_identity, "identity given twice"),
        (beyond_the_end, "beyond the end"),
        (changed, "changed"),
        (before_the_end, "G1B"),
        (plain_lost, "half a transaction"),
        (resurrected, "resurrected"),
    ],
)
def test_each_planted_violation_is_reported(plant: Callable[[TransactionsSeen, Attempt], None], name: str) -> None:
    seen, first = sound()
    plant(seen, first)
    found = seen.problems(tombstones_may_go=True)
    assert found
    assert any(name in problem for problem in found), found


def test_records_removed_by_compaction_or_deletion_are_not_missed() -> None:
    for is_deleted in (True, False):
        seen, _ = sound()
        read(seen, Y, (5, "new"), consumer="later")
        if is_deleted:
            seen.history.saw_offsets(Y, began=seen.history.now(), log_start_offset=3, high_watermark=6)
        later = end(seen, seen.begin("b/2"))
        sent(later, Y, "new", 5, key="new" if is_deleted else "y")
        kept = "y is covered" if not is_deleted else "y is deleted"
        found = [problem for problem in seen.problems() if "later" in problem and "'y'" in problem]
        assert found == [], kept


def test_an_aborted_value_covers_none() -> None:
    seen, _ = sound()
    sent(seen.begin("b/2"), Y, "new", 5, key="y")
    read(seen, Y, consumer="later")
    assert any("half a transaction" in problem for problem in seen.problems())
