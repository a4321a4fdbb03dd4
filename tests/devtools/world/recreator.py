"""A topic of a simulated cluster that is deleted and created anew, with clients that have not heard of it.

Brokers hear of a deletion one after the other, and requests may arrive long after, so all writes, commits and deletions
here name the topic by its id. Some clients go on with a deleted topic: they must be refused, also while there is
another topic of its name, which must not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tests.devtools.world.producers import BY_TOPIC_ID, IdempotentProducer
from tests.devtools.world.routes import Routes
from tests.devtools.world.topic_clients import TIMEOUT_MS, Recreator
from tests.devtools.world.workload import Committer, Knows, Reader, Run, Topic

GROUP = "guides"
PAUSE_MAX_SECONDS = 0.5
READER_PAUSE_SECONDS = 0.3
OFFSETS_APART_COUNT = 1_000_000  # what is committed of two topics differs


@attrs.define(eq=False, kw_only=True)
class ClusterRecreator(Recreator):
    """A `Recreator` whose clients find leaders and coordinators by `routes`. `knows` is as for a `Reader`."""

    routes: Routes
    knows: Knows
    _clients: trio.Nursery = attrs.field(init=False)
    _loading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)  # the latest topic's
    _committer: Committer = attrs.field(init=False)

    async def run(self) -> None:
        async with trio.open_nursery() as self._clients:
            await Recreator.run(self)
            self._clients.cancel_scope.cancel()
        for topic in self.topics[:-1]:
            self._forget(topic)  # what has been acknowledged by brokers that had not heard of the deletion

    async def read_to_end(self, name: str) -> None:
        """Read the current topic, and ask for its offsets. Raises KafkaError, BrokerUnavailable."""
        topic = self.topics[-1]
        await self._reader(name, topic).read_to_end()
        for index in range(topic.partition_count):
            self.history.has_read_all(name, topic.partition_name(index))
        await self._committer.check()

    async def _load(self, topic: Topic) -> None:
        """Load a topic: its clients end, are cut off, or go on until the load of the next topic ends."""
        self._clients.start_soon(self._reader("follower", topic).run)
        stopping, has_stopped, loading = trio.Event(), trio.Event(), trio.CancelScope()
        runs = list(self._writers(topic, stopping))

        async def load() -> None:
            with loading:
                async with trio.open_nursery() as writers:
                    for run in runs:
                        writers.start_soon(run)
            has_stopped.set()

        self._clients.start_soon(load)
        await self._wait_life()
        self._loading.cancel()
        self._loading = loading
        ending = self.random.randrange(3)
        if self.stopping.is_set() or ending == 0:
            stopping.set()
            await has_stopped.wait()
        elif ending == 1:
            loading.cancel()

    def _writers(self, topic: Topic, stopping: trio.Event) -> Iterator[Run]:
        for index in range(topic.partition_count):
            producer = IdempotentProducer(
                name=f"{topic.label}-producer{index}",
                topic=topic,
                connect=self.routes.to_leader(topic, index),
                history=self.history,
                random=Random(self.random.random()),
                stopping=stopping,
                pause_max_seconds=PAUSE_MAX_SECONDS,
                partitions=[index],
                version=BY_TOPIC_ID,
            )
            yield producer.run
        self._committer = Committer(
            group=GROUP,
            topic=topic,
            connect=self.routes.to_coordinator(GROUP),
            history=self.history,
            random=Random(self.random.random()),
            stopping=stopping,
            pause_max_seconds=PAUSE_MAX_SECONDS,
            by_topic_id=True,
            first_offset=len(self.topics) * OFFSETS_APART_COUNT,
        )
        yield self._committer.run

    def _reader(self, name: str, topic: Topic) -> Reader:
        return Reader(
            name=name,
            topic=topic,
            connect=self.connect,
            history=self.history,
            knows=self.knows,
            pause_seconds=READER_PAUSE_SECONDS,
        )

    async def _ask_to_delete(self, connection: Connection, topic: Topic) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic.topic_id)], timeout_ms=TIMEOUT_MS)
        return (await connection.request(request, DeleteTopicsResponse)).responses[0].error_code
