"""Segments whose footers do not tell of transactions what their batches say: each way once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio.testing

from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import memory_log
from tests.devtools.fakes.transactions import abort, commit, send
from tests.devtools.history.bucket import BucketSegment, read_bucket, transaction_faults


async def two_segments() -> Sequence[BucketSegment]:
    """The first one has an aborted transaction and one that is open at its end, which the second one ends."""
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), flush_interval_seconds=1e9) as log:
        partition = log.partition()
        await send(partition, b"a", producer_id=1)
        await abort(partition, producer_id=1)
        await send(partition, b"b", producer_id=2)
        await log.log.flusher.flush_all()
        await commit(partition, producer_id=2)
        await log.log.flusher.flush_all()
    (found,) = (await read_bucket(store, "default")).values()
    assert [read.value for read in found.reads] == ["a", "b"]
    return found.segments


def told(segment: BucketSegment, **changes: Any) -> BucketSegment:
    return attrs.evolve(segment, footer=attrs.evolve(segment.footer, **changes))


async def test_sound_footers_agree_with_the_transactions_in_their_batches(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = await two_segments()
    assert list(transaction_faults([first, second])) == []
    assert list(transaction_faults([first])) == ["transactions that never end: {2: 2}"]
    assert list(transaction_faults([first], may_be_open=True)) == []


async def test_a_superseded_segment_that_is_left_below_the_log_start_has_no_open_transactions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = await two_segments()
    store = MemoryStore()
    async with memory_log(store, MemoryDisk(), flush_interval_seconds=1e9) as log:
        partition = log.partition()
        await send(partition, *[b"x"] * 4)
        await log.log.flusher.flush_all()
        await send(partition, b"y", producer_id=3)
        await commit(partition, producer_id=3)
        await log.log.flusher.flush_all()
    (found,) = (await read_bucket(store, "default")).values()
    kept = found.segments[1]
    assert kept.footer.identity.base_offset == second.footer.last_offset + 1
    assert list(transaction_faults([first, kept], log_start_offset=4)) == []
    assert "transactions that never end: {2: 2}" in transaction_faults([first, kept], log_start_offset=2)


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (0, {"aborted": ()}, "the marker at 1 aborts from 0 on, the footer says None"),
        (0, {"aborted": (AbortedTransaction(1, 1, 1, 2),)}, "the marker at 1 aborts from 0 on"),
        (0, {"aborted": (AbortedTransaction(1, 0, 1, 2), AbortedTransaction(9, 0, 2, 2))}, "no marker aborts"),
        (0, {"open_transactions": ()}, "open at 2 are {2: 2}, the footer says {}"),
        (1, {"aborted": (AbortedTransaction(2, 2, 3, 4),)}, "was committed"),
        (1, {"open_transactions": (OpenTransaction(5, 0, 3),)}, "open at 3 are {}, the footer says {5: 3}"),
    ],
)
async def test_a_footer_that_contradicts_its_batches_is_reported(
    autojump_clock: trio.testing.MockClock, number: int, changes: dict[str, Any], message: str
) -> None:
    segments = list(await two_segments())
    segments[number] = told(segments[number], **changes)
    assert any(message in fault for fault in transaction_faults(segments))
