"""Whoever asks for a producer id where the bucket is away for long tries again."""

from __future__ import annotations

from trio.testing import MockClock

from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, NONE
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.cluster.membership.test_several import Machine


async def test_where_no_block_of_producer_ids_is_to_be_had_producers_try_again(autojump_clock: MockClock) -> None:
    """REQUEST_TIMED_OUT, which others are told then, ends a producer of the Java client."""
    store = FaultyStore(MemoryStore())
    async with Machine(store, 1).run() as running:
        client = await running.connect()
        client.timeout_seconds = 600.0

        async def code() -> int:
            request = InitProducerIdRequest(transaction_timeout_ms=1_000)
            return (await client.request(request, InitProducerIdResponse)).error_code

        store.fail(On("put*", "*/head"))
        assert await code() == COORDINATOR_LOAD_IN_PROGRESS
        store.heal()
        assert await code() == NONE
