"""Several whole brokers on one bucket in memory, which listen on the loopback: for what connects by TCP.

    async with loopback_cluster(2) as cluster:
        await cluster.stop(2)
        await cluster.start(2)

A broker keeps its port, its disk and its metadata while it is stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from kafscale.broker import Broker
from kafscale.broker_storage import StorageParts
from kafscale.cli import output
from kafscale.client.connection import Connection, connect_to
from kafscale.cluster.membership.peers import heartbeats, lease
from kafscale.cluster.membership.placement import controller, leaving
from kafscale.cluster.membership.start import member
from kafscale.config import Address, Durability, Listener
from kafscale.log import load
from kafscale.server.kafka.binding import bind
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.fakes.memory_broker import memory_settings

HOST = "127.0.0.1"
SOON_SECONDS = 30.0
LOOK_SECONDS = 0.05  # in the place of what brokers otherwise wait
_WAITS = (
    (controller, "LOOK_SECONDS"),
    (controller, "BALANCE_SECONDS"),
    (heartbeats, "SAMPLE_SECONDS"),
    (load, "SAMPLE_SECONDS"),
    (load, "MATURE_SECONDS"),
    (lease, "GIVEN_UP_WAIT_SECONDS"),
    (member, "LOOK_SECONDS"),
    (leaving, "PAUSE_SECONDS"),
    (output, "LOOK_SECONDS"),
)


@attrs.define(eq=False)
class _Member:
    """The place of a broker, which outlasts it, and the broker while it runs."""

    parts: StorageParts
    disk: MemoryDisk
    port: int = 0
    broker: Broker | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    running: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class LoopbackCluster:
    """`changes` are settings of all brokers that begin from now on."""

    nursery: trio.Nursery
    changes: dict[str, Any]
    bucket: MemoryStore = attrs.field(factory=MemoryStore)
    members: dict[int, _Member] = attrs.field(factory=dict)

    async def start(self, broker_id: int, **changes: Any) -> Broker:
        """Start a broker that does not run; one that is new joins."""
        member = self.members.get(broker_id)
        if member is None:
            disk = MemoryDisk()
            parts = StorageParts(store=self.bucket, metadata=MemoryMetadataStore(), disk=disk)
            member = self.members[broker_id] = _Member(parts, disk)
        bound = await bind("PLAINTEXT", Address(HOST, member.port), option="--listen")
        member.port = bound.port
        settings = memory_settings(
            broker_id=broker_id,
            listeners=(Listener("PLAINTEXT", HOST, bound.port),),
            **{"several_brokers": True, "durability": Durability.WAL, **self.changes, **changes},
        )
        member.broker = Broker(settings)
        member.broker.listeners = [bound]
        member.ended, member.running = trio.Event(), trio.CancelScope()
        await self.nursery.start(self._run, member)
        return member.broker

    async def _run(self, member: _Member, *, task_status: trio.TaskStatus[Broker]) -> None:
        assert member.broker is not None
        try:
            with member.running:
                await member.broker.run_on(member.parts, task_status=task_status)
        finally:
            member.broker = None
            member.ended.set()

    async def stop(self, broker_id: int) -> None:
        """Stop a broker in order; the others know of it then."""
        member = self.members[broker_id]
        assert member.broker is not None
        member.broker.stop()
        await member.ended.wait()
        for other in self.members.values():
            if other.broker is not None:
                await other.broker.services.catch_up()

    async def kill(self, broker_id: int) -> None:
        """End a broker at once; its disk has what was synced."""
        member = self.members[broker_id]
        member.running.cancel()
        await member.ended.wait()
        member.disk.crash()

    def broker(self, broker_id: int) -> Broker:
        """Return a broker that runs."""
        broker = self.members[broker_id].broker
        assert broker is not None
        return broker

    @asynccontextmanager
    async def client(self, broker_id: int) -> AsyncIterator[Connection]:
        """Give a connection to a broker for the block."""
        connection = await connect_to(self.address(broker_id), "test")
        try:
            yield connection
        finally:
            await connection.aclose()

    def address(self, broker_id: int) -> Address:
        return Address(HOST, self.members[broker_id].port)

    def led_by(self, broker_id: int, topic: str) -> list[int]:
        """Return which partitions of a topic a broker serves."""
        partitions = self.broker(broker_id).services.log.by_name.get(topic, [])
        return [index for index, led in enumerate(partitions) if led is not None]

    async def until_led(self, topic: str, counts: dict[int, int]) -> None:
        """Wait until brokers serve so many partitions of a topic."""
        with trio.fail_after(SOON_SECONDS):
            while {count: len(self.led_by(count, topic)) for count in counts} != counts:
                await trio.sleep(0.02)


@asynccontextmanager
async def loopback_cluster(count: int, **changes: Any) -> AsyncIterator[LoopbackCluster]:
    """Run brokers 1 to `count` for the block; they look often, so that a test need not wait."""
    with pytest.MonkeyPatch.context() as patched:
        for module, name in _WAITS:
            patched.setattr(module, name, LOOK_SECONDS)
        async with trio.open_nursery() as nursery:
            cluster = LoopbackCluster(nursery, changes)
            for broker_id in range(1, count + 1):
                await cluster.start(broker_id)
            yield cluster
            nursery.cancel_scope.cancel()
