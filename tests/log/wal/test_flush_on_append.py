"""Rounds that only a flush makes durable, each partition's apart from the others'."""

from __future__ import annotations

import pytest

from kafscale.errors import StorageFailed
from kafscale.formats.wal_entries import FileHeader, WalEntry, WalFile
from kafscale.log.wal.journal import FlushOnAppend, Journal, Round


class Bench:
    """A journal, and owners by their names."""

    def __init__(self) -> None:
        self.journal = FlushOnAppend()
        self.next_offsets = dict.fromkeys("ab", 0)

    def append(self, owner: str) -> Round:
        offset = self.next_offsets[owner]
        self.next_offsets[owner] += 1
        return self.journal.append(WalEntry(bytes(16), 0, 0, offset, b"x", owner))

    def begin(self, owner: str) -> int:
        self.journal.flush_began(owner, self.next_offsets[owner])
        return self.next_offsets[owner]


def test_a_flush_of_one_partition_acknowledges_nothing_of_another():
    bench = Bench()
    first, other = bench.append("a"), bench.append("b")
    bench.journal.flush_committed("a", bench.begin("a"))
    assert (first.done, other.done) == (True, False)


def test_records_appended_during_a_flush_wait_for_the_next_one():
    bench = Bench()
    first = bench.append("a")
    end_offset = bench.begin("a")
    second = bench.append("a")
    bench.journal.flush_committed("a", end_offset)
    assert (first.done, second.done) == (True, False)
    bench.journal.flush_committed("a", bench.begin("a"))
    assert second.done


def test_a_flush_that_takes_only_the_beginning_acknowledges_nothing_yet():
    bench = Bench()
    round = bench.append("a")
    assert bench.append("a") is round
    bench.begin("a")
    bench.journal.flush_committed("a", 1)
    assert not round.done
    bench.journal.flush_committed("a", 2)
    assert round.done


async def test_only_waiters_of_a_closed_partition_fail():
    bench = Bench()
    taken = bench.append("a")
    bench.begin("a")
    waiting, other = bench.append("a"), bench.append("b")
    bench.journal.forget("a", StorageFailed("closed"))
    for round in (taken, waiting):
        with pytest.raises(StorageFailed, match="closed"):
            await round.wait()
    assert other.failed is None
    bench.journal.forget("a", StorageFailed("closed"))
    assert bench.append("a").failed is None, "a topic of the same name may come again"


async def test_flush_on_append_keeps_no_entries_and_is_never_full():
    journal: Journal = FlushOnAppend()
    file = WalFile("none", FileHeader(1, 1, 0, 0), 1)
    assert (journal.keeps_entries, journal.is_full, journal.is_crowded, journal.pending_count) == (
        False,
        False,
        False,
        0,
    )
    await journal.replay(lambda entry: pytest.fail("it has kept an entry"))
    await journal.settle()
    with pytest.raises(NotImplementedError):
        journal.release(file)
    with pytest.raises(NotImplementedError):
        await journal.read(file, [(0, 1)])
