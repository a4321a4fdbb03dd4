"""The services that group handlers need, with `__consumer_offsets` and the metadata in memory; and clients of them.

    world = await GroupWorld.begun(nursery, t=4)
    client = ConsumerMember(world, "m", topics=("t",))
    await client.beat()
    await world.restart()                      as after a kill: what was durable is there

What clients ask goes through the bytes of requests and responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
import trio

from kafscale.api.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    offset_commit,
    offset_fetch,
)
from kafscale.api.handling.access import Access
from kafscale.api.handling.calls import Peer
from kafscale.cluster.groups.common.assignors import Partitions
from kafscale.cluster.groups.common.patterns import Piece
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.security.authorizer import AclAuthorizer
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes as e
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.api.handlers import LOCAL_LOG, ask, some_services
from tests.cluster.groups.classic_groups import WALL_CLOCK_START_MS
from tests.cluster.groups.group_log import MemoryOffsetsLog

NODE = Node(node_id=7, cluster_id="c", broker_epoch=0, advertised={"PLAINTEXT": Endpoint("broker", 9999)})
GROUP_ID = "g"


def wall_clock_ms() -> int:
    return WALL_CLOCK_START_MS + int(trio.current_time() * 1000)


async def run_at_once(piece: Piece) -> None:
    """Run a piece of a search without a thread, so that time stands still meanwhile."""
    await trio.lowlevel.checkpoint()
    piece.run()


@attrs.define(eq=False)
class GroupWorld:
    """A broker as far as groups go. `log` and `topics` outlast it."""

    nursery: trio.Nursery
    topics: TopicRegistry
    settings: Settings = attrs.field(factory=Settings)
    log: MemoryOffsetsLog = attrs.field(factory=MemoryOffsetsLog)
    authorizer: AclAuthorizer | None = None
    draining: trio.Event = attrs.field(factory=trio.Event, init=False)
    groups: GroupCoordinator = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    @classmethod
    async def begun(
        cls,
        nursery: trio.Nursery,
        *,
        settings: Settings | None = None,
        authorizer: AclAuthorizer | None = None,
        **topics: int,
    ) -> Self:
        """Start a broker that has these topics, with so many partitions."""
        topic_registry = TopicRegistry(store=MemoryMetadataStore())
        world = cls(nursery, topic_registry, settings or Settings())
        world.authorizer = authorizer
        await world.create(**topics)
        await world.start()
        return world

    async def create(self, **topics: int) -> None:
        await self.topics.create([NewTopic(name=name, partition_count=count) for name, count in topics.items()])

    def coordinator(self) -> GroupCoordinator:
        """Make one that knows the topics, and nothing yet of groups."""
        groups = GroupCoordinator(
            self.log,
            self.settings,
            partition_count=self.log.known_count,
            draining=self.draining,
            has_topic=lambda name: self.topics.get(name) is not None,
            wall_clock_ms=wall_clock_ms,
            run_piece=run_at_once,
            rights=self.authorizer,
        )
        groups.follow_topics(self.topics)
        return groups

    async def start(self) -> None:
        self._scope, self.draining = trio.CancelScope(), trio.Event()
        self.groups = self.coordinator()
        await self.nursery.start(self._run, self.groups, self._scope)
        self.log.load(self.groups)

    async def _run(self, groups: GroupCoordinator, scope: trio.CancelScope, *, task_status: Any) -> None:
        with scope:
            await groups.run(task_status=task_status)

    def kill(self) -> None:
        self._scope.cancel()

    async def restart(self) -> None:
        """End as by a kill, and start again."""
        self.kill()
        await self.start()

    @property
    def services(self) -> Any:
        access = Access(authorizer=self.authorizer)
        return some_services(
            node=NODE,
            topics=self.topics,
            groups=self.groups,
            leadership=self.log,
            internal=LOCAL_LOG,
            access=access,
        )

    async def ask(self, api: Any, request: object, *, version: int | None = None, peer: Peer | None = None) -> Any:
        return await ask(api, self.services, request, version=version, peer=peer)

    async def describe(self, group_id: str = GROUP_ID) -> Any:
        answer = await self.ask(consumer_group_describe.API, ConsumerGroupDescribeRequest(group_ids=[group_id]))
        (group,) = answer.groups
        return group

    def topic_id(self, name: str) -> bytes:
        topic = self.topics.get(name)
        assert topic is not None
        return topic.topic_id

    def name_of(self, topic_id: bytes) -> str:
        topic = self.topics.by_id(topic_id)
        return "?" if topic is None else topic.name


@attrs.define(eq=False, kw_only=True)
class ConsumerMember:
    """A client of the consumer protocol: it says everything, and gives up at once what it is told to."""

    world: GroupWorld
    member_id: str
    topics: tuple[str, ...] | None = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    group_id: str = GROUP_ID
    peer: Peer | None = None
    epoch: int = attrs.field(default=0, init=False)
    owned: Partitions = attrs.field(factory=dict, init=False)

    def request(self, **more: Any) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=None if self.topics is None else list(self.topics),
            subscribed_topic_regex=self.regex,
            topic_partitions=[
                HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in self.owned.items()
            ],
        )
        return attrs.evolve(request, **more)

    async def beat(self, *, version: int | None = None, **more: Any) -> Any:
        """Send a heartbeat, and do what the answer says."""
        answer = await self.world.ask(
            consumer_group_heartbeat.API, self.request(**more), version=version, peer=self.peer
        )
        if answer.error_code == e.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                parts = answer.assignment.topic_partitions
                self.owned = {part.topic_id: frozenset(part.partitions) for part in parts}
        elif answer.error_code in (e.FENCED_MEMBER_EPOCH, e.UNKNOWN_MEMBER_ID, e.GROUP_ID_NOT_FOUND):
            self.epoch, self.owned = 0, {}
        return answer

    async def leave(self, epoch: int = -1) -> Any:
        answer = await self.beat(member_epoch=epoch, topic_partitions=None)
        self.epoch, self.owned = 0, {}
        return answer

    @property
    def assigned(self) -> Mapping[str, set[int]]:
        return {self.world.name_of(topic_id): set(numbers) for topic_id, numbers in self.owned.items()}

    async def commit(self, offset: int, *, version: int = 9, **more: Any) -> int:
        """Commit an offset of t-0: the error code."""
        request = OffsetCommitRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.epoch,
            group_instance_id=self.instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name="t" if version < 10 else "",
                    topic_id=self.world.topic_id("t"),
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
                )
            ],
        )
        answer = await self.world.ask(offset_commit.API, attrs.evolve(request, **more), version=version)
        return int(answer.topics[0].partitions[0].error_code)

    async def fetch(self, *, version: int = 9, **more: Any) -> tuple[int, int]:
        """The error code, and the offset that is committed of t-0, or -1."""
        group = OffsetFetchRequestGroup(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch, topics=None
        )
        request = OffsetFetchRequest(groups=[attrs.evolve(group, **more)])
        (answer,) = (await self.world.ask(offset_fetch.API, request, version=version)).groups
        return answer.error_code, answer.topics[0].partitions[0].committed_offset if answer.topics else -1


async def settle(*members: ConsumerMember, rounds: int = 10) -> None:
    """Let members send heartbeats until nothing changes any more."""
    for _ in range(rounds):
        before = [(client.epoch, client.owned) for client in members]
        for member in members:
            await member.beat()
        if before == [(client.epoch, client.owned) for client in members]:
            return
    raise AssertionError(f"no end in {rounds} rounds")
