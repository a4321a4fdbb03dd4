"""A member whose connection goes while its join waits is gone with it: nobody knows its id, and it held memory."""

from __future__ import annotations

from contextlib import suppress

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.client.connection import Connection
from kafscale.config import CoordinatorSettings
from kafscale.errors import KafScaleError
from kafscale.server.kafka.connection import EOF_GRACE_SECONDS
from kafscale.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

SETTINGS = memory_settings(
    coordinator=CoordinatorSettings(group_initial_rebalance_delay_ms=3_000)
)  # for which the first join waits
REQUEST = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    member_id="",
    group_instance_id="me",  # so that no id is given out before
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(10_000))],
)


async def join(client: Connection) -> None:
    with suppress(KafScaleError):  # the connection was closed
        await client.request(REQUEST, JoinGroupResponse)


async def test_a_member_that_disconnects_during_join_is_removed_from_the_group(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts(), SETTINGS) as running, trio.open_nursery() as nursery:
        groups = running.broker.services.groups
        client = await running.connect()
        nursery.start_soon(join, client)
        await wait_all_tasks_blocked()
        group = groups.group("g")
        assert group is not None
        assert len(group.members) == 1
        held_bytes = groups.state_bytes.used_bytes
        await client.aclose()
        await trio.sleep(EOF_GRACE_SECONDS + 0.1)
        assert len(group.members) == 0
        assert groups.state_bytes.used_bytes < held_bytes - 10_000
