"""Changes of placements that several brokers make at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import NEXT_NUMBER_KEY, Placement, rows_of
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import PLAN_ATTEMPTS_MAX_COUNT
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.metadata_head import NONCE_BYTES, Head, HeadEntry, encode_head, head_key
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.memory import MemoryStore
from kafscale.store.version_writer import VersionWriter
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.simulated_store import SimulatedStore

BROKERS = 3 * PLAN_ATTEMPTS_MAX_COUNT
NUMBER = 90


def topic_id(number: int) -> bytes:
    return bytes([number + 1] * 16)


def decided(current: Placement, _number: int) -> Placement:
    return attrs.evolve(current, decided_epoch=current.epoch)


def led_by(broker_id: int, current: Placement, number: int) -> Placement:
    return attrs.evolve(current, leader=broker_id, epoch=number)


@asynccontextmanager
async def writers_of(count: int, topics_count: int) -> AsyncIterator[Sequence[PlacementWriter]]:
    """As many brokers, which all know of topics with one partition each, led by broker 1 and not decided."""
    store = SimulatedStore(MemoryStore())
    versions = VersionWriter(store=store, namespace="default", kind="checkpoint", epoch=1)
    await Checkpointer(versions=versions, local=MemoryMetadataStore(), position=lambda: WalPosition(1, 0)).write()
    puts = {NEXT_NUMBER_KEY: encode(NUMBER)}
    for topic in range(topics_count):
        puts |= rows_of(topic_id(topic), [Placement(1, 5, 4, 0)], [0])
    entry = HeadEntry(bytes(NONCE_BYTES), encode_transaction(Transaction(puts=puts)))
    await store.put_if_absent(head_key("default"), encode_head(Head(1, 0, (entry,))))
    async with trio.open_nursery() as nursery:
        yield [await writer_of(store, nursery) for _ in range(count)]
        nursery.cancel_scope.cancel()


async def writer_of(store: SimulatedStore, nursery: trio.Nursery) -> PlacementWriter:
    metadata = await SharedMetadataStore.join(MemoryMetadataStore(), store, "default")
    await nursery.start(metadata.run)
    state = ClusterState(metadata)
    await state.load()
    return PlacementWriter(state)


async def test_many_brokers_that_decide_at_once_are_not_in_each_others_way(autojump_clock: MockClock) -> None:
    async with writers_of(BROKERS, BROKERS) as writers:
        made: list[bool] = []

        async def decide(number: int, writer: PlacementWriter) -> None:
            made.append(await writer.change(topic_id(number), 0, 5, decided))

        async with trio.open_nursery() as deciding:
            for number, writer in enumerate(writers):
                deciding.start_soon(decide, number, writer)
        assert made == [True] * BROKERS
        entry = await writers[0].state.store.get(NEXT_NUMBER_KEY)
        assert entry is not None
        assert decode(int, entry.value) == NUMBER


async def test_a_leader_epoch_is_given_once_also_to_brokers_that_ask_at_once(autojump_clock: MockClock) -> None:
    async with writers_of(2, 2) as writers:
        async with trio.open_nursery() as leading:
            for number, writer in enumerate(writers):
                leading.start_soon(writer.change, topic_id(number), 0, 5, partial(led_by, number))
        for writer in writers:
            await writer.change(topic_id(0), 0, -1, decided)  # nothing, but what others have done is known
        epochs = {row[0].epoch for row in writers[0].state.placements.values()} | {
            row[0].epoch for row in writers[1].state.placements.values()
        }
        assert epochs >= {NUMBER, NUMBER + 1}


async def test_a_cancelled_change_is_not_made_by_a_later_commit(autojump_clock: MockClock) -> None:
    """A client has gone that asked for a move, and much later somebody else changes something."""
    async with writers_of(1, 3) as (writer,):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.change, topic_id(0), 0, 5, decided)
            await wait_all_tasks_blocked()  # that one is being committed
            with trio.move_on_after(0.001) as client:
                await writer.change(topic_id(1), 0, 5, partial(led_by, 2))
        assert client.cancelled_caught
        assert not writer._waiting, "nor is it kept until somebody does"
        assert await writer.change(topic_id(2), 0, 5, decided)
        assert [writer.state.placements[topic_id(topic)][0].leader for topic in range(3)] == [1, 1, 1]
