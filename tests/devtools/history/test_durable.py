"""Tests of the checker of durable data, in each mode; and of late markers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kafscale.cluster.transactions import marker_sender as sending
from kafscale.cluster.transactions import service as transactions
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.values import Marker
from kafscale.config import Durability
from kafscale.log.partition.transactions import Transactions
from kafscale.store.memory import MemoryStore
from kafscale.wire import error_codes as e
from kafscale.wire.control_records import EndMarker
from tests.devtools.fakes.memory_broker import memory_parts
from tests.devtools.fakes.transactional_producer import TOPIC, Producer, broker
from tests.devtools.history.durable import DurableLog
from tests.devtools.history.history import History
from tests.devtools.history.in_log import LogRules
from tests.devtools.world.links import BucketLine
from tests.devtools.world.transactional.latecomer import Latecomer
from tests.devtools.world.workload import Topic

PARTITIONS = (0, 1)
LATE_SECONDS = 20.0
all_durabilities = pytest.mark.parametrize("durability", Durability)


@asynccontextmanager
async def watched(durability: Durability) -> AsyncIterator[tuple[Any, Producer, DurableLog]]:
    durable, parts = DurableLog(durability=durability, history=History()), memory_parts()
    bucket = BucketLine(MemoryStore(), spawn=lambda run: None, random=Random(0), on_put=durable.put)
    parts = attrs.evolve(parts, store=bucket, disk=durable.watched(parts.disk))
    async with broker(durability, parts, flush_interval_seconds=0.01) as (running, client):
        producer = Producer(client)
        await producer.init()
        yield running, producer, durable


async def transact(producer: Producer, *, committed: bool) -> None:
    for index in PARTITIONS:
        await producer.write(index, b"v")
    assert await producer.end(committed=committed) == e.NONE


async def rules_after(durability: Durability) -> LogRules:
    """Run two transactions, one of them aborted."""
    async with watched(durability) as (running, producer, durable):
        await transact(producer, committed=True)
        await transact(producer, committed=False)
        return durable.rules(running.broker.services.log)


@all_durabilities
async def test_a_broker_that_keeps_the_rules_has_no_faults(durability: Durability) -> None:
    rules = await rules_after(durability)
    assert rules.faults == []
    assert rules.marker_count == 2 * len(PARTITIONS)


@all_durabilities
async def test_markers_of_another_outcome_than_was_decided_are_found(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(marker: Marker) -> EndMarker:
        return EndMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            is_commit=not marker.committed,
        )

    for module in (sending, transactions):
        monkeypatch.setattr(module, "end_marker", turned)
    faults = (await rules_after(durability)).faults
    assert sum("no coordinator has decided on" in fault for fault in faults) == 2 * len(PARTITIONS), faults


@pytest.mark.parametrize("durability", [Durability.WAL, Durability.S3_WAL])
async def test_a_decision_that_is_written_behind_its_markers_is_found(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish: Callable[..., Any] = TransactionCoordinator._finish

    def turned(coordinator: TransactionCoordinator, *args: Any, **kwargs: Any) -> Any:
        ended = finish(coordinator, *args, **kwargs)
        decision, *markers = ended.entries
        return attrs.evolve(ended, entries=(*markers, decision))

    monkeypatch.setattr(TransactionCoordinator, "_finish", turned)
    faults = (await rules_after(durability)).faults
    assert sum("no coordinator has decided on" in fault for fault in faults) == 2 * len(PARTITIONS), faults


async def test_a_last_stable_offset_beyond_an_open_transaction_is_reported() -> None:
    async with watched(Durability.WAL) as (running, producer, durable):
        await producer.write(0, b"v")
        durable.history.saw_stable_offset(f"{TOPIC}-0", began=0, last_stable_offset=1)
        await producer.end(committed=True)
        faults = list(durable.faults(running.broker.services.log))
    assert faults == [f"{TOPIC}-0 1: the last stable offset was there, and a transaction was open from 0 on"]


async def late_markers(durability: Durability) -> Latecomer:
    """Send some, beside a producer that has got several epochs."""
    async with watched(durability) as (running, producer, _):
        for committed in (True, False, True):
            await transact(producer, committed=committed)
        topic = running.broker.services.topics.get(TOPIC)
        latecomer = Latecomer(
            topics=[Topic(TOPIC, topic.topic_id, len(PARTITIONS))],
            connect=running.connect,
            random=Random(1),
            pause_max_seconds=1.0,
            faults=[],
        )
        with trio.move_on_after(LATE_SECONDS):
            await latecomer.run()
        return latecomer


@all_durabilities
async def test_late_markers_are_refused(durability: Durability, autojump_clock: trio.testing.MockClock) -> None:
    latecomer = await late_markers(durability)
    assert latecomer.faults == []
    assert latecomer.refused_count > 5


async def test_late_markers_that_are_taken_are_found(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(Transactions, "check_marker", lambda *_: True)
    latecomer = await late_markers(Durability.WAL)
    assert "which comes too late, was taken in" in latecomer.faults[0]


async def test_a_log_start_that_retention_has_moved_beyond_an_open_transaction_is_found() -> None:
    async with watched(Durability.WAL) as (running, producer, durable):
        await producer.write(0, b"v")
        durable.history.deleting(f"{TOPIC}-0", math.inf)
        durable.history.saw_offsets(f"{TOPIC}-0", began=0, log_start_offset=1, high_watermark=1)
        await producer.end(committed=True)
        faults = list(durable.faults(running.broker.services.log))
    assert faults == [f"{TOPIC}-0 1: the log started there, and a transaction was open from 0 on"]
