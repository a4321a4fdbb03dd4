"""The recreated topic, and a member of a consumer group that subscribes to it by its name.

The member's coordinator assigns partitions by topic id. Its commits and offset requests use the id too, so a deleted
topic is refused, and a new one starts at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.errors import BrokerUnavailable
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from tests.devtools.history.group_reads import GroupReads, MemberReads
from tests.devtools.history.history import History
from tests.devtools.world.consumer_members import GONE, STALE, Coordinates
from tests.devtools.world.group_offsets import commit_offsets, fetch_offsets, note_offsets
from tests.devtools.world.topic_clients import ClusterRecreator
from tests.devtools.world.workload import Connect, Knows, Topic, reconnecting, was_done

MEMBER_ID = "visitor"
REBALANCE_TIMEOUT_MS = 3_000
PAUSE_SECONDS = (0.3, 0.6)
SETTLE_SECONDS = 60.0  # simulated: longer than a session
SETTLE_POLL_SECONDS = 1.0


@attrs.define(eq=False, kw_only=True)
class Visitor:
    name: str
    topics: Callable[[], list[Topic]]
    connect: Connect
    history: History
    random: Random
    knows: Knows
    coordinates: Coordinates
    group: str = "visitors"
    faults: list[str] = attrs.field(factory=list, init=False)
    _epoch: int = attrs.field(default=0, init=False)
    _assigned: dict[bytes, frozenset[int]] = attrs.field(factory=dict, init=False)  # by topic id
    _reads: dict[bytes, GroupReads] = attrs.field(factory=dict, init=False)
    _readers: dict[bytes, MemberReads] = attrs.field(factory=dict, init=False)

    async def run(self) -> None:
        await reconnecting(self.connect, self._use, while_true=lambda: True)

    async def wait_settled(self) -> None:
        """Wait until it has all partitions of the current topic, and has read them, after the last write."""
        detail = "nothing"
        with trio.move_on_after(SETTLE_SECONDS) as waiting:
            while detail:
                await trio.sleep(SETTLE_POLL_SECONDS)
                before, detail = detail, self._unsettled(self.topics()[-1])
                if detail != before:  # it is slow where the bucket is, and not at an end
                    waiting.deadline = trio.current_time() + SETTLE_SECONDS
        if waiting.cancelled_caught:
            self.faults.append(f"{self.group}: {detail}")

    def _unsettled(self, topic: Topic) -> str:
        wanted = {topic.topic_id: frozenset(range(topic.partition_count))}
        if self._assigned != wanted:
            has = {topic_id.hex(): sorted(partitions) for topic_id, partitions in self._assigned.items()}
            return f"the member of {self.name} has {has}, and not all of {topic.label}, {topic.topic_id.hex()}"
        missing = self._reads_of(topic).missing()
        return f"no member has read {topic.label} from {missing} on" if missing else ""

    async def _use(self, connection: Connection) -> None:
        is_new = True
        while True:
            is_new = not await self._beat(connection, is_new=is_new)
            for topic in self.topics():
                if topic.topic_id in self._assigned:
                    await self._visit(connection, topic, self._assigned[topic.topic_id])
            await trio.sleep(self.random.uniform(*PAUSE_SECONDS))

    async def _beat(self, connection: Connection, *, is_new: bool) -> bool:
        is_full = is_new or not self._epoch
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=MEMBER_ID,
            member_epoch=self._epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
            subscribed_topic_names=[self.name] if is_full else None,
            topic_partitions=_owned(self._assigned if self._epoch else {}),
        )
        answer = await connection.request(request, ConsumerGroupHeartbeatResponse)
        if answer.error_code in GONE:
            self._epoch, self._assigned = 0, {}
            return False
        if not was_done(answer.error_code, f"heartbeat of {MEMBER_ID}"):
            return False
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assigned = {
                topic_partition.topic_id: frozenset(topic_partition.partitions)
                for topic_partition in answer.assignment.topic_partitions
            }
        return True

    async def _visit(self, connection: Connection, topic: Topic, partitions: frozenset[int]) -> None:
        reads = self._readers.setdefault(topic.topic_id, self._reads_of(topic).by(MEMBER_ID))
        reads.keep(partitions)
        if new := sorted(partitions - reads.positions.keys()):
            await self._fetch_offsets(connection, topic, new, reads)
        await reads.poll(connection)
        if reads.positions:
            await self._commit(connection, topic, reads.positions)

    def _reads_of(self, topic: Topic) -> GroupReads:
        made = GroupReads(topic=topic, history=self.history, knows=self.knows)
        return self._reads.setdefault(topic.topic_id, made)

    async def _fetch_offsets(
        self, connection: Connection, topic: Topic, partitions: list[int], reads: MemberReads
    ) -> None:
        found = await fetch_offsets(
            connection,
            self.group,
            topic,
            partitions,
            by_topic_id=True,
            member_id=MEMBER_ID,
            member_epoch=self._epoch,
        )
        if found.error_code not in STALE and was_done(found.error_code, f"offsets for {MEMBER_ID}"):
            if self.coordinates(connection, self.group):
                note_offsets(self.history, self.group, topic, found)
            reads.begin_all(found)

    async def _commit(self, connection: Connection, topic: Topic, positions: Mapping[int, int]) -> None:
        partition = self.random.choice(sorted(positions))
        offset, where = positions[partition], topic.partition_name(partition)
        self.history.committing(self.group, where, offset)
        member = {"member_id": MEMBER_ID, "generation_id_or_member_epoch": self._epoch}
        codes = await commit_offsets(connection, self.group, topic, {partition: offset}, by_topic_id=True, **member)
        code = codes[partition]
        if code not in STALE and was_done(code, f"commit of {MEMBER_ID}"):
            self.history.committed(self.group, where, offset)


def _owned(assigned: Mapping[bytes, frozenset[int]]) -> list[HeartbeatTopicPartitions]:
    return [
        HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in assigned.items()
    ]


RETRY_SECONDS = 0.1


@attrs.define(eq=False)
class TemporaryTopic:
    """A `tests.devtools.world.world.Part`."""

    recreator: ClusterRecreator
    visitor: Visitor

    @property
    def all_topics(self) -> Sequence[Topic]:
        return self.recreator.topics[-1:]

    async def create_topics(self) -> None:
        await trio.lowlevel.checkpoint()

    def start_readers(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.visitor.run)

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        assert stopping is self.recreator.stopping
        nursery.start_soon(self.recreator.run)

    async def wait_settled(self, name: str) -> None:
        await self.visitor.wait_settled()

    async def read_back(self, name: str) -> None:
        """Read the current topic. Raises KafkaError."""
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
        return [*self.recreator.faults, *self.visitor.faults]
