"""The topic that is deleted and created anew, and the member of a group that reads it, as a part of the clients."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from kafscale.errors import BrokerUnavailable
from tests.devtools.world.recreator import ClusterRecreator
from tests.devtools.world.visitor import Visitor
from tests.devtools.world.workload import Topic

RETRY_SECONDS = 0.1


@attrs.define(eq=False)
class TemporaryTopic:
    """A part of the clients (`tests.devtools.world.cluster_clients.Part`)."""

    recreator: ClusterRecreator
    visitor: Visitor

    @property
    def all_topics(self) -> Sequence[Topic]:
        """The one that is there, once there is one."""
        return self.recreator.topics[-1:]

    async def create_topics(self) -> None:
        """Leave that to the load."""
        await trio.lowlevel.checkpoint()

    def start_readers(self, nursery: trio.Nursery) -> None:
        """Visit until cancelled."""
        nursery.start_soon(self.visitor.run)

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        """Delete it and create it anew until `stopping`, which is that of the recreator."""
        assert stopping is self.recreator.stopping
        nursery.start_soon(self.recreator.run)

    async def wait_settled(self, name: str) -> None:
        """Wait until the member has read all."""
        await self.visitor.wait_settled()

    async def read_back(self, name: str) -> None:
        """Read the one that is there. Raises KafkaError."""
        while True:
            try:
                await self.recreator.read_to_end(name)
                return
            except BrokerUnavailable:
                for topic in self.all_topics:
                    for index in range(topic.partition_count):
                        self.recreator.history.sought(name, topic.partition_name(index))
                await trio.sleep(RETRY_SECONDS)

    def problems(self) -> Sequence[str]:
        """Return what must not be, besides what the history tells."""
        return [*self.recreator.faults, *self.visitor.faults]
