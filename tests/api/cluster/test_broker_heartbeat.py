"""BrokerHeartbeat: what another broker says of itself is passed on, and its time counts for nobody."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kafscale.api.cluster.broker_heartbeat import API
from kafscale.server.kafka.dispatch import UNCOUNTED
from kafscale.wire import error_codes
from kafscale.wire.messages.brokers import BrokerHeartbeatResponse, OwnHeartbeatRequest, OwnHeartbeatResponse
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts

REQUEST = OwnHeartbeatRequest(
    broker_id=2, broker_epoch=20, current_metadata_offset=200, want_fence=False, want_shut_down=False
)


async def test_a_single_broker_answers_heartbeats_with_broker_id_not_registered(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts()) as running:
        client = await running.connect()
        response = await client.request(REQUEST, BrokerHeartbeatResponse)
        assert (response.error_code, response.is_fenced) == (error_codes.BROKER_ID_NOT_REGISTERED, True)


async def test_the_membership_watcher_receives_and_answers_heartbeats(autojump_clock: MockClock) -> None:
    heard: list[OwnHeartbeatRequest] = []

    async def hear(request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
        heard.append(request)
        await trio.lowlevel.checkpoint()
        return OwnHeartbeatResponse(is_caught_up=True, is_fenced=len(heard) == 1)

    async with memory_broker(memory_parts()) as running:
        running.broker.services.heard_of = hear
        client = await running.connect()
        for is_current in (False, True):
            response = await client.request(REQUEST, BrokerHeartbeatResponse)
            assert (response.error_code, response.is_caught_up) == (error_codes.NONE, True)
            assert response.is_fenced == (not is_current)
        assert heard == [REQUEST] * 2


def test_broker_heartbeats_are_exempt_from_quotas() -> None:
    assert API.key in UNCOUNTED
