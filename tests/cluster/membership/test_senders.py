"""A client that poses as a broker is refused, changes nothing, and costs at most one look at the bucket a second."""

from __future__ import annotations

from base64 import b85encode
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.peer_connections import SECRET_BYTES, hash_of
from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.membership.start.member import SharingMember
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore
from kafscale.wire.error_codes import BROKER_ID_NOT_REGISTERED, CLUSTER_AUTHORIZATION_FAILED, NONE
from kafscale.wire.messages.brokers import BegunPartition, OwnHeartbeatRequest, OwnHeartbeatResponse, ReleasedPartition
from tests.cluster.membership.test_fail_over import Cluster, check_goes_on, cluster, topic_of
from tests.cluster.membership.test_several import Machine, until
from tests.devtools.fakes.broker_network import RunningBroker
from tests.devtools.fakes.memory_broker import MemoryBroker

FAR_AHEAD = 2**40
UNKNOWN_ID = 77
WATCHED_ID = 3  # the broker whose looks are counted, never the controller
QUIET_SECONDS, FLOOD_SECONDS, PAUSE_SECONDS = 15.0, 20.0, 0.05
CONNECTION_COUNT = 5

Forge = Callable[[BrokerRecord], dict[str, Any]]
FORGERIES: dict[str, tuple[Forge, int]] = {
    "without a secret": (lambda record: {}, CLUSTER_AUTHORIZATION_FAILED),
    "with another secret": (lambda record: {"secret": bytes(SECRET_BYTES)}, CLUSTER_AUTHORIZATION_FAILED),
    "with the hash": (lambda record: {"secret": record.secret_hash}, CLUSTER_AUTHORIZATION_FAILED),
    "with a long secret": (lambda record: {"secret": bytes(1 << 20)}, CLUSTER_AUTHORIZATION_FAILED),
    "of a later incarnation": (lambda record: {"broker_epoch": record.incarnation + 1}, BROKER_ID_NOT_REGISTERED),
    "of an unknown broker": (lambda record: {"broker_id": UNKNOWN_ID}, BROKER_ID_NOT_REGISTERED),
}


def forged(broker_id: int, record: BrokerRecord, /, **changes: Any) -> OwnHeartbeatRequest:
    wanted: dict[str, Any] = {"broker_id": broker_id, "broker_epoch": record.incarnation}
    wanted |= {"current_metadata_offset": FAR_AHEAD, "want_fence": False, "want_shut_down": False}
    return OwnHeartbeatRequest(**wanted | changes)


def several_of(running: RunningBroker) -> SharingMember:
    """Return the parts of a broker that know the others."""
    several: SharingMember = running.broker.services.heard_of.__self__  # type: ignore[union-attr]
    return several


async def three() -> tuple[Cluster, FaultyStore]:
    """Return a cluster to start in, whose broker `WATCHED_ID` has a store that counts its calls."""
    bucket = MemoryStore()
    running = Cluster(bucket, AsyncExitStack())
    seen = FaultyStore(bucket)
    running.machines[WATCHED_ID] = Machine(seen, WATCHED_ID)
    return running, seen


async def start_all(running: Cluster) -> None:
    for broker_id in (1, 2, WATCHED_ID):
        await running.start(broker_id)
    await until(lambda: running.controller() == 1)


def looks(seen: FaultyStore) -> int:
    return seen.count("head", "*/head") + seen.count("get", "*/head")


async def flood(broker: MemoryBroker, request: OwnHeartbeatRequest, seconds: float) -> set[int]:
    """Send a request over and over, on several connections at once; return the error codes."""
    codes: set[int] = set()

    async def send() -> None:
        client = await broker.connect()
        while True:
            codes.add((await client.request(request, OwnHeartbeatResponse)).error_code)
            await trio.sleep(PAUSE_SECONDS)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTION_COUNT):
                nursery.start_soon(send)
    return codes


def states(running: Cluster) -> Sequence[object]:
    """Return everything that the watched broker knows of brokers and placements."""
    state = running.state(WATCHED_ID)
    return [dict(state.brokers), state.controller, {key: list(each) for key, each in state.placements.items()}]


@pytest.mark.parametrize("kind", FORGERIES)
async def test_forged_heartbeats_are_refused_and_cost_at_most_one_look_a_second(
    autojump_clock: MockClock, kind: str
) -> None:
    running, seen = await three()
    async with running.stack:
        await start_all(running)
        topic = await topic_of(running, 6)
        await trio.sleep(QUIET_SECONDS)
        before, began = states(running), looks(seen)
        await trio.sleep(FLOOD_SECONDS)
        usual = looks(seen) - began
        record = running.state(WATCHED_ID).brokers[2]
        forge, code = FORGERIES[kind]
        begun = BegunPartition(topic_id=topic.topic_id, partition_index=0, leader_epoch=0, offset=999, recover=[])
        released = ReleasedPartition(topic_id=topic.topic_id, partition_index=0, leader_epoch=0, contents=b"forged")
        request = forged(2, record, begun=[begun], released=[released], **forge(record))
        began = looks(seen)
        assert await flood(running.brokers[WATCHED_ID], request, FLOOD_SECONDS) == {code}
        assert looks(seen) - began - usual <= FLOOD_SECONDS + 1
        if code == CLUSTER_AUTHORIZATION_FAILED:
            assert looks(seen) - began <= usual + 1
        assert states(running) == before
        assert several_of(running.brokers[WATCHED_ID]).released_contents.take((topic.topic_id, 0), 0) is None
        assert several_of(running.brokers[2]).liveness.disowned_at < 0
        await check_goes_on(running, 6, [1, 2, WATCHED_ID])


async def test_a_silent_broker_is_not_kept_alive_by_forged_heartbeats(autojump_clock: MockClock) -> None:
    async with cluster(3) as running:
        await topic_of(running, 6)
        controller = running.controller()
        silent, other = running.others(controller)
        record, began = running.state(controller).brokers[silent], trio.current_time()
        running.network.cut(silent, controller, other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, running.brokers[controller], forged(silent, record), 60.0)
            await until(lambda: running.all_led(6, [controller, other]))
            assert trio.current_time() - began <= 10.0
            nursery.cancel_scope.cancel()
        assert running.state(controller).brokers[silent].state is BrokerState.FENCED


async def test_a_heartbeat_of_an_outdated_incarnation_is_fenced_and_changes_nothing(autojump_clock: MockClock) -> None:
    running, seen = await three()
    async with running.stack:
        await start_all(running)
        await trio.sleep(QUIET_SECONDS)
        record = running.state(WATCHED_ID).brokers[2]
        client = await running.brokers[WATCHED_ID].connect()
        began = looks(seen)
        for _ in range(10):
            request = forged(2, record, broker_epoch=record.incarnation - 1)
            response = await client.request(request, OwnHeartbeatResponse)
            assert (response.error_code, response.is_fenced) == (NONE, True)
            await trio.sleep(PAUSE_SECONDS)
        assert looks(seen) - began <= 1


async def test_each_start_has_a_distinct_secret_that_never_enters_the_bucket(autojump_clock: MockClock) -> None:
    async with cluster(2) as running:
        hear = running.brokers[1].broker.services.heard_of
        assert hear is not None
        secrets: dict[int, bytes] = {}

        async def remember(request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
            response = await hear(request)
            if response.error_code == NONE:
                secrets[request.broker_epoch] = request.secret
            return response

        running.brokers[1].broker.services.heard_of = remember
        await trio.sleep(QUIET_SECONDS)
        running.brokers[2].kill()
        await running.start(2)
        await until(lambda: len(secrets) == 2)
        record = running.state(1).brokers[2]
        assert record.secret_hash == hash_of(secrets[record.incarnation])
        assert len(set(secrets.values())) == 2
        keys = [found.key async for page in running.bucket.list("") for found in page]
        assert keys
        for key in keys:
            data = bytes((await running.bucket.get(key)).data)
            for secret in secrets.values():
                assert not any(each in data for each in (secret, b85encode(secret), secret.hex().encode()))


async def test_enrolled_partitions_are_revealed_to_brokers_only(autojump_clock: MockClock) -> None:
    async with cluster(2) as running:
        client = await running.brokers[1].connect()
        response = await client.request(
            forged(2, running.state(1).brokers[2], secret=b"", producer_ids=[1]), OwnHeartbeatResponse
        )
        assert response.error_code == CLUSTER_AUTHORIZATION_FAILED
        remote = running.brokers[2].broker.services.transactions.remote
        assert (await remote.known(1, [1])).enrolled == {}
