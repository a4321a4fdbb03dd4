"""Connections for heartbeats are made anew at once where they were of use, and else after a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.heartbeats import PAUSE_LEAST_SECONDS, TOLD_SECONDS, Heartbeats
from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.cluster.membership.peers.peer_connections import Connect, PeerConnection
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, ControllerRecord
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.errors import BrokerUnavailable, KafkaError, KafScaleError
from kafscale.log.load import LoadMeter
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import UNSUPPORTED_VERSION
from kafscale.wire.messages.brokers import OwnHeartbeatRequest

R = TypeVar("R")
RECORD = BrokerRecord(
    incarnation=20, state=BrokerState.LIVE, endpoints={}, directory_id="two", acknowledges_locally=False
)
SECONDS, INTERVAL_SECONDS = 10.0, 0.5


@attrs.define(eq=False)
class Late:
    """A connection whose answers have lain in a socket for long when they are taken, as behind a suspension."""

    seconds: float

    async def request(self, message: object, response_class: type[R]) -> R:
        await trio.sleep(self.seconds)
        return response_class()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Useless:
    """A connection to somebody who ends it at the first request, as where another login is wanted, or refuses that."""

    failure: KafScaleError

    async def request(self, message: object, response_class: type[R]) -> R:
        await trio.lowlevel.checkpoint()
        raise self.failure

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def heartbeats_by(connect: Connect) -> Heartbeats:
    state = ClusterState(MemoryMetadataStore(), 1, 10)
    state.brokers[2] = RECORD
    return Heartbeats(
        state=state,
        liveness=Liveness(6 * INTERVAL_SECONDS),
        connect=connect,
        revision=lambda: 1,
        look_soon=lambda _revision: None,
        load=LoadMeter().load,
        take_surplus=lambda _surplus: None,
        store_loss=cast(Any, SimpleNamespace(heard=lambda *_: None)),
    )


@pytest.mark.parametrize(("seconds", "is_answering"), [(1.0, True), (2.0, False)])
async def test_heartbeat_answers_that_come_too_late_do_not_count(
    autojump_clock: MockClock, seconds: float, is_answering: bool
) -> None:
    async def connect(_broker_id: int, _record: BrokerRecord) -> PeerConnection:
        await trio.lowlevel.checkpoint()
        return Late(seconds)

    heartbeats = heartbeats_by(connect)
    heartbeats.liveness.is_watching = True
    found: set[bool] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeats.run)
        with trio.move_on_after(SECONDS):
            while True:
                await trio.sleep(INTERVAL_SECONDS / 10)
                found.add(heartbeats.liveness.hears_half())
        nursery.cancel_scope.cancel()
    assert (True in found) == is_answering


@pytest.mark.parametrize("failure", [BrokerUnavailable("closed the connection"), KafkaError(UNSUPPORTED_VERSION)])
async def test_a_connection_that_is_of_no_use_is_not_made_again_at_once(
    autojump_clock: MockClock, failure: KafScaleError
) -> None:
    """Both event loops would be busy with nothing else."""
    count = 0
    async with trio.open_nursery() as nursery:

        async def connect(_broker_id: int, _record: BrokerRecord) -> PeerConnection:
            nonlocal count
            count += 1
            if count > 10 * SECONDS / INTERVAL_SECONDS:
                nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint()
            return Useless(failure)

        nursery.start_soon(heartbeats_by(connect).run)
        await trio.sleep(SECONDS)
        nursery.cancel_scope.cancel()
    assert count <= SECONDS / INTERVAL_SECONDS + 1


async def test_a_broker_is_up_to_date_when_the_controller_reports_its_revision(autojump_clock: MockClock) -> None:
    heartbeats = heartbeats_by(no_line)
    heartbeats.state.controller = ControllerRecord(broker_id=2, incarnation=20, term=3)
    assert not heartbeats.is_told_of_all()
    heartbeats.heard(2, 19, revision=1)  # an earlier incarnation
    assert not heartbeats.is_told_of_all()
    heartbeats.heard(2, 20, revision=1)
    assert heartbeats.is_told_of_all()
    heartbeats.heard(2, 20, revision=2)  # something that is not here yet
    assert not heartbeats.is_told_of_all()
    heartbeats.heard(2, 20, revision=1)
    await trio.sleep(TOLD_SECONDS + 0.1)
    assert not heartbeats.is_told_of_all()


async def test_each_commit_sends_a_heartbeat_at_once(autojump_clock: MockClock) -> None:
    """Topics, settings and users as well, which concern no broker."""
    told: list[tuple[float, int]] = []

    class Noting(Late):
        async def request(self, message: object, response_class: type[R]) -> R:
            assert isinstance(message, OwnHeartbeatRequest)
            told.append((trio.current_time(), message.current_metadata_offset))
            return await super().request(message, response_class)

    async def connect(_broker_id: int, _record: BrokerRecord) -> PeerConnection:
        await trio.lowlevel.checkpoint()
        return Noting(0.0)

    heartbeats = heartbeats_by(connect)
    store = heartbeats.state.store
    heartbeats.revision = lambda: store.revision
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeats.run)
        await trio.sleep(SECONDS + 1.5 * PAUSE_LEAST_SECONDS)
        committed_at = trio.current_time()
        revision = await store.commit(Transaction(puts={"topics/orders": b""}))
        await trio.sleep(PAUSE_LEAST_SECONDS + 0.01)
        at, latest = told[-1]
        assert (latest, at - committed_at <= PAUSE_LEAST_SECONDS) == (revision, True)
        nursery.cancel_scope.cancel()


async def no_line(_broker_id: int, _record: BrokerRecord) -> PeerConnection:
    raise BrokerUnavailable("nobody is there")
