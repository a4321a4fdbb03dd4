"""Measures what deciding for many brokers costs: 100 of them with 100,000 partitions, by the code that brokers run.

    CPU       real time of one controller and one other broker, with their SQLite files, on a bucket in memory
    rounds    simulated time of a hundred brokers on a bucket that takes some milliseconds for an answer

What a commit, a look and a fail-over cost in CPU, and how many bytes of the bucket they read and write, is measured on
the full size. How long brokers wait for each other when they all commit at once is simulated, with fewer partitions, as
a hundred brokers in one process have all metadata a hundred times.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import attrs
import trio
from trio.testing import MockClock

from bench.cluster.jobs import CONTROLLER, Job
from bench.figures import percentile
from bench.options import RunOptions
from kafscale.cluster.membership.leading.leading import EpochStarts
from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.peers.peer_connections import BrokerCalls
from kafscale.cluster.membership.placement.choice import Move, moves_for_balance
from kafscale.cluster.membership.placement.controller import FailOver
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import (
    CONTROLLER_KEY,
    NEXT_NUMBER_KEY,
    BrokerRecord,
    BrokerState,
    ControllerRecord,
    Placement,
    record_key,
    rows_of,
)
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import LocalMetadataStore, Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.config.units import KIB
from kafscale.formats.manifest import PartitionId
from kafscale.formats.metadata_head import Head, encode_head, head_key
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.partition.partition import Partition
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.store.version_writer import VersionWriter
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.messages.brokers import BegunPartition, OwnHeartbeatRequest
from tests.devtools.fakes.simulated_store import SimulatedStore

NAMESPACE = "default"
EPOCH = 1
FIRST_INCARNATION = 10
CONTROLLER_ID, MEMBER_ID, DEAD_ID = 1, 2, 3
SESSION_SECONDS = 3.0
COMMITS_COUNT = 100
MOVES_COUNT = 50  # that the controller has on their way at once
COSTS_LOAD = "CPU and bytes"
FAIL_OVER_FIGURES = (
    "fail-over, CPU ms",
    "fail-over, CPU ms of another",
    "epoch starts, CPU ms",
    "epoch starts, CPU ms of another",
)
LATENCY_SECONDS = 0.025  # of an operation of a bucket in the same region
ASK_SECONDS = 0.001  # for a request to another broker to arrive there, and for its answer


@attrs.frozen(kw_only=True)
class Size:
    """A cluster: `topics` of `partitions` each, spread evenly over brokers 1 to `brokers`."""

    brokers: int
    topics: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.brokers:,} brokers, {self.topics * self.partitions:,} partitions"


SIZES = (
    Size(brokers=3, topics=10, partitions=100),
    Size(brokers=100, topics=1000, partitions=100),
)
RACES = (
    Size(brokers=10, topics=20, partitions=50),
    Size(brokers=100, topics=200, partitions=50),
    Size(brokers=100, topics=1000, partitions=100),
)


def jobs() -> Sequence[Job]:
    """Return what is measured."""
    costs = [Job(group=CONTROLLER, load=COSTS_LOAD, system=str(size), measure=partial(_cost, size)) for size in SIZES]
    races = [
        Job(group=CONTROLLER, load=f"fail-over, {LATENCY_SECONDS * 1000:.0f} ms an operation", system=str(size),
            measure=partial(_race, size))
        for size in RACES
    ]  # fmt: skip
    return [*costs, *races]


# ---- a cluster that has all of it ------------------------------------------------------------------------------------


def _metadata(size: Size) -> Transaction:
    """All brokers serve, and lead evenly; broker 1 is the controller."""
    puts = {
        CONTROLLER_KEY: encode(ControllerRecord(broker_id=CONTROLLER_ID, incarnation=FIRST_INCARNATION + 1, term=2)),
        NEXT_NUMBER_KEY: encode(FIRST_INCARNATION + size.brokers + 1),
    }
    for broker_id in range(1, size.brokers + 1):
        record = BrokerRecord(
            incarnation=FIRST_INCARNATION + broker_id,
            state=BrokerState.LIVE,
            endpoints={"PLAINTEXT": Endpoint(f"10.0.{broker_id // 256}.{broker_id % 256}", 9092)},
            directory_id=f"{broker_id:032x}",
            acknowledges_locally=False,
            has_stream=True,
            version="1.0.0",
        )
        puts[record_key(broker_id)] = encode(record)
    for topic in range(size.topics):
        row = []
        for index in range(size.partitions):
            leader = (topic + index) % size.brokers + 1
            epoch = FIRST_INCARNATION + leader
            row.append(Placement(leader, epoch, epoch, 1_000_000 + index))
        puts |= rows_of(_topic_id(topic), row, range(size.partitions))
    return Transaction(puts=puts)


def _topic_id(topic: int) -> bytes:
    return (topic + 1).to_bytes(16, "big")


@attrs.define(eq=False)
class _Member:
    """The metadata of a broker, without a log."""

    metadata: SharedMetadataStore
    state: ClusterState
    writer: PlacementWriter
    epoch_starts: EpochStarts


@attrs.define(eq=False)
class _Calls(BrokerCalls):
    """Hands what is told to the brokers of this process."""

    members: Mapping[int, _Member] = attrs.field(factory=dict)

    async def ask(self, broker_id: int, message: object, response_class: type, **_: object) -> Any:
        assert isinstance(message, OwnHeartbeatRequest)
        await trio.sleep(ASK_SECONDS)
        await self.members[broker_id].epoch_starts.take(message)
        await trio.sleep(ASK_SECONDS)


async def _found(store: ObjectStore, local: LocalMetadataStore, size: Size) -> Checkpointer:
    """Make a bucket with the head and a checkpoint."""
    await local.commit(_metadata(size))
    versions = VersionWriter(store=store, namespace=NAMESPACE, kind="checkpoint", epoch=EPOCH)
    checkpointer = Checkpointer(versions=versions, local=local, position=lambda: WalPosition(EPOCH, 0))
    await checkpointer.write()
    await store.put_if_absent(head_key(NAMESPACE), encode_head(Head(EPOCH)))
    return checkpointer


async def _join(
    store: ObjectStore,
    local: LocalMetadataStore,
    nursery: trio.Nursery,
    broker_id: int,
    others: Mapping[int, _Member] | None = None,
) -> _Member:
    metadata = await SharedMetadataStore.join(local, store, NAMESPACE)
    await nursery.start(metadata.run)
    state = ClusterState(metadata, broker_id, FIRST_INCARNATION + broker_id)
    await state.load()
    writer = PlacementWriter(state)
    epoch_starts = EpochStarts(
        metadata=metadata,
        state=state,
        writer=writer,
        calls=_Calls(state, None, members=others or {}),
    )
    return _Member(metadata, state, writer, epoch_starts)


# ---- CPU and bytes ---------------------------------------------------------------------------------------------------


def _cost(size: Size, _options: RunOptions) -> Mapping[str, float]:
    return trio.run(_measure_cost, size)


@asynccontextmanager
async def _two(size: Size) -> AsyncIterator[tuple[_Member, _Member, Mapping[str, float]]]:
    """The controller and another broker, and what the other one's start has cost."""
    bucket = MemoryStore()
    with TemporaryDirectory(prefix="kafscale-bench-") as directory:
        async with (
            SqliteMetadataStore.open(Path(directory) / "first.db") as first,
            SqliteMetadataStore.open(Path(directory) / "member.db") as second,
            trio.open_nursery() as nursery,
        ):
            checkpointer = await _found(bucket, first, size)
            controller = await _join(bucket, first, nursery, CONTROLLER_ID)
            began = process_time()
            member = await _join(bucket, second, nursery, MEMBER_ID)
            start_seconds = process_time() - began
            written = await _timed(checkpointer.write)
            sizes = [info.size_bytes async for page in bucket.list("") for info in page if "checkpoint" in info.key]
            yield (
                controller,
                member,
                {
                    "start, CPU s": start_seconds,
                    "checkpoint, KiB": max(sizes) / KIB,
                    "checkpoint, CPU s": written,
                },
            )
            nursery.cancel_scope.cancel()


async def _measure_cost(size: Size) -> Mapping[str, float]:
    async with _two(size) as (controller, member, figures):
        one = await _commits(controller, member, size)
        head_bytes = controller.metadata.head_bytes
        many = await _timed(lambda: controller.writer.name_targets(_moves(controller.state, size)))
        many_bytes = controller.metadata.head_bytes - head_bytes
        balance = await _timed(partial(_look_for_moves, controller.state, size))
        await member.metadata.refresh()
        head_bytes = controller.metadata.head_bytes
        fail_over = FailOver(controller.state, SESSION_SECONDS)
        record = controller.state.controller
        assert record is not None
        failed = await _timed(lambda: fail_over.run_once(record, {DEAD_ID: "it is killed"}, []))
        followed = await _timed(member.metadata.refresh)
        assert not list(member.state.led_by(DEAD_ID)), "the fail-over has left something"
        fail_over_bytes = controller.metadata.head_bytes - head_bytes
        begun = await _timed(partial(_take_from_all, controller, size))
        begun_followed = await _timed(member.metadata.refresh)
        return {
            **figures,
            **one,
            f"{MOVES_COUNT} moves, CPU ms": many * 1000,
            f"{MOVES_COUNT} moves, KiB": many_bytes / KIB,
            "look for balance, CPU ms": balance * 1000,
            "fail-over, CPU ms": failed * 1000,
            "fail-over, KiB": fail_over_bytes / KIB,
            "fail-over, CPU ms of another": followed * 1000,
            "epoch starts, CPU ms": begun * 1000,
            "epoch starts, CPU ms of another": begun_followed * 1000,
        }


async def _take_from_all(controller: _Member, size: Size) -> None:
    """Commit at the controller what all new leaders send at the same time."""
    async with trio.open_nursery() as nursery:
        for broker_id in range(1, size.brokers + 1):
            request = OwnHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=FIRST_INCARNATION + broker_id,
                current_metadata_offset=0,
                want_fence=False,
                want_shut_down=False,
            )
            request.begun = [
                BegunPartition(
                    topic_id=topic_id, partition_index=index, leader_epoch=placement.epoch, offset=2_000_000, recover=[]
                )
                for topic_id, index, placement in controller.state.led_by(broker_id)
                if not placement.is_decided
            ]
            nursery.start_soon(controller.epoch_starts.take, request)


async def _commits(controller: _Member, member: _Member, size: Size) -> Mapping[str, float]:
    """Change one placement at a time, with the other broker looking."""
    head_bytes = controller.metadata.head_bytes
    own, others = 0.0, 0.0
    for number in range(COMMITS_COUNT):
        topic_id, index = _topic_id(number % size.topics), number % size.partitions
        placement = controller.state.placement(topic_id, index)
        assert placement is not None
        change = partial(_with_replica, number)
        own += await _timed(partial(controller.writer.change, topic_id, index, placement.epoch, change))
        others += await _timed(member.metadata.refresh)
    return {
        "commits, of CPU, 1/s": COMMITS_COUNT / own,
        "commit, KiB": (controller.metadata.head_bytes - head_bytes) / COMMITS_COUNT / KIB,
        "look, CPU ms of another": others / COMMITS_COUNT * 1000,
    }


def _with_replica(number: int, placement: Placement, _next: int) -> Placement:
    return attrs.evolve(placement, replicas=(placement.leader, number))


def _moves(state: ClusterState, size: Size) -> Sequence[Move]:
    """Choose what has not been changed by `_commits`, one partition of each topic."""
    moves = []
    for number in range(MOVES_COUNT):
        topic_id, index = _topic_id((COMMITS_COUNT + number) % size.topics), size.partitions - 1 - number // size.topics
        placement = state.placement(topic_id, index)
        assert placement is not None
        moves.append(Move(topic_id, index, placement.epoch, placement.leader % size.brokers + 1))
    return moves


async def _look_for_moves(state: ClusterState, size: Size) -> None:
    """Do what the controller does every few seconds, where one broker has gone and everything of it is to move."""
    live = state.live()
    moves_for_balance(
        state.placements, [broker_id for broker_id in live if broker_id != size.brokers], live, MOVES_COUNT
    )
    await trio.lowlevel.checkpoint()


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU seconds of this process, threads of SQLite among them."""
    began = process_time()
    await work()
    return process_time() - began


# ---- many that commit at once ----------------------------------------------------------------------------------------


def _race(size: Size, _options: RunOptions) -> Mapping[str, float]:
    return trio.run(_measure_race, size, clock=MockClock(autojump_threshold=0))


async def _measure_race(size: Size) -> Mapping[str, float]:
    """One broker is lost: how long until each of the others has committed where what it got begins."""
    store = SimulatedStore(MemoryStore(), latency_seconds=LATENCY_SECONDS)
    async with trio.open_nursery() as nursery:
        await _found(store, first := MemoryMetadataStore(), size)
        members: dict[int, _Member] = {}
        members[CONTROLLER_ID] = await _join(store, first, nursery, CONTROLLER_ID)
        for broker_id in range(1, size.brokers + 1):
            if broker_id not in (CONTROLLER_ID, DEAD_ID):
                members[broker_id] = await _join(store, MemoryMetadataStore(), nursery, broker_id, members)
        began, answered = trio.current_time(), store.answers.total()
        record = members[CONTROLLER_ID].state.controller
        assert record is not None
        await FailOver(members[CONTROLLER_ID].state, SESSION_SECONDS).run_once(record, {DEAD_ID: "it is killed"}, [])
        fenced = trio.current_time() - began
        served: list[float] = []
        async with trio.open_nursery() as deciding:
            for broker_id, member in members.items():
                deciding.start_soon(_take_over, broker_id, member, began, served)
        lost = sum(member.metadata.lost_race_count for member in members.values())
        operations = store.answers.total() - answered
        nursery.cancel_scope.cancel()
    return {
        "fenced after s": fenced,
        "partitions": len(served),
        "served, p50 s": percentile(sorted(served), 0.5),
        "all served after s": max(served, default=math.nan),
        "operations": operations,
        "lost races": lost,
    }


async def _take_over(broker_id: int, member: _Member, began: float, served: list[float]) -> None:
    """Look, and commit where each partition begins that this broker leads now, as `Leading` does."""
    await member.metadata.refresh()
    async with trio.open_nursery() as nursery:
        for topic_id, index, placement in list(member.state.led_by(broker_id)):
            if not placement.is_decided:
                nursery.start_soon(_begin, member, _Found(topic_id, index, placement), began, served)


@attrs.define(eq=False)
class _Found:
    """The part of a partition that `EpochStarts` asks for."""

    topic_id: bytes
    index: int
    placement: Placement
    tail: SimpleNamespace = attrs.field(factory=lambda: SimpleNamespace(batches=()), init=False)

    @property
    def partition_id(self) -> PartitionId:
        return self.topic_id, self.index

    @property
    def leader_epoch(self) -> int:
        return self.placement.epoch

    @property
    def next_offset(self) -> int:
        return self.placement.decided_offset + 1


async def _begin(member: _Member, found: _Found, began: float, served: list[float]) -> None:
    await trio.sleep(LATENCY_SECONDS)  # for what lists its objects
    while not await member.epoch_starts.commit(cast(Partition, found)):
        await trio.lowlevel.checkpoint()
    served.append(trio.current_time() - began)
