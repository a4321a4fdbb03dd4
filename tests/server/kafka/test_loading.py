"""What an API needs is imported when it is first asked for, also where that does not work at once."""

from __future__ import annotations

import errno

import pytest
import trio.testing

from kafscale.api.handling.calls import Api, ListedApi
from kafscale.errors import BrokerUnavailable
from kafscale.server.kafka.dispatch import LOAD_PAUSE_SECONDS
from kafscale.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts


async def test_without_descriptors_a_connection_ends_and_not_the_broker(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ListedApi.load

    def fail(self: ListedApi) -> Api:
        if self.name == "ListGroups":
            raise OSError(errno.EMFILE, "Too many open files")
        return load(self)

    async with memory_broker(memory_parts()) as running:
        running.broker.acceptor.dispatcher._rows.clear()  # as if nobody had asked for anything
        monkeypatch.setattr(ListedApi, "load", fail)
        client = await running.connect()
        with pytest.raises(BrokerUnavailable):
            await client.request(ListGroupsRequest(), ListGroupsResponse)
        await trio.sleep(100 * LOAD_PAUSE_SECONDS)
        monkeypatch.setattr(ListedApi, "load", load)
        client = await running.connect()
        assert not (await client.request(ListGroupsRequest(), ListGroupsResponse)).error_code
