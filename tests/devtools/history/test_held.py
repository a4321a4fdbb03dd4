"""Test that resources held for ever are found."""

from __future__ import annotations

from trio.testing import MockClock

from kafscale.log.wal.local_wal import Wal
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts
from tests.devtools.history.held import held_too_much


async def test_unreleased_pool_memory_and_pending_entries_are_reported(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts()) as running:
        services = running.broker.services
        assert list(held_too_much(services)) == []
        lease = services.log.pool.acquire_nowait(1)
        assert lease is not None
        journal = services.log.journal
        assert isinstance(journal, Wal)
        journal.files.in_use[-1].pending_count += 1
        pending, held = held_too_much(services)
        assert pending == "1 entries are pending in the log, and tails have 0"
        assert held == f"{lease.held_bytes} bytes of the pool are used, and tails have 0"
        journal.files.in_use[-1].pending_count -= 1
        lease.release()
