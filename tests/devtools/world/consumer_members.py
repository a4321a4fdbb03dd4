"""Members of consumer groups of Kafka 4's protocol (KIP-848), as processes that join, work, pause, leave and die.

They give up revoked partitions sooner or later or never, and commit offsets of their partitions at their epoch. Now and
then one commits as a former member, which must be refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any, ClassVar, Self

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire import error_codes
from kafscale.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from tests.devtools.history.group_reads import GroupReads, MemberReads
from tests.devtools.history.history import History
from tests.devtools.history.member_history import Assigned, Membership, MembersRecord, MembersSeen
from tests.devtools.world.group_offsets import commit_offsets, fetch_offsets, note_offsets
from tests.devtools.world.workload import Connect, Knows, Topic, reconnecting, was_done

TAKES_PART_PROBABILITY = 0.4  # that there is a group
MEMBERS_MAX_COUNT = 3
SESSIONS_SECONDS = [0.6, 2.0, 10.0]
GIVE_UP_MAX_SECONDS = 0.5
AGREE_SECONDS = 60.0  # simulated: longer than all sessions, one after the other
AGREE_POLL_SECONDS = 1.0

GONE = frozenset({error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH, error_codes.GROUP_ID_NOT_FOUND})
STALE = GONE | {error_codes.STALE_MEMBER_EPOCH}

Coordinates = Callable[[Connection, str], bool]  # whether who answers for a group can't be behind another broker


def coordinates_all(connection: Connection, group: str) -> bool:
    """Accept any answer as the coordinator's, as with one broker."""
    return True


@attrs.define(eq=False, kw_only=True)
class ProcessesInGroup(ABC):
    """One process of a group after another, until cancelled; once `stopping` is set, the current one stays.

    All pauses are `pace` times as long as with one broker. A broker that does not `coordinate` the group any more may
    give outdated answers.
    """

    LIFE_MAX_SECONDS = 1.5
    BEAT_SECONDS = (0.05, 0.15)

    name: str
    group: str
    topic: Topic
    connect: Connect
    history: History
    seen: MembersRecord
    random: Random
    stopping: trio.Event
    reads: GroupReads | None = None
    coordinates: Coordinates = coordinates_all
    pace: float = 1.0
    member: Any = attrs.field(default=None, init=False)  # of this process, if it is one
    _reads: MemberReads | None = attrs.field(default=None, init=False)  # of this process
    _former: Any = attrs.field(default=None, init=False)  # a member that it has been
    _count: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        while True:
            name = f"{self.name}.{self._count}"
            self._reads = None if self.reads is None else self.reads.by(name)
            self._count += 1
            self._begin(name)
            await self._live(trio.current_time() + self._life_seconds())
            await trio.sleep(self.random.uniform(0, 0.5))

    def _life_seconds(self) -> float:
        return self.pace * self.random.uniform(0.1, self.LIFE_MAX_SECONDS)

    async def _live(self, until: float) -> None:
        is_alive = True

        async def use(connection: Connection) -> None:
            nonlocal is_alive, until
            self._connected()
            while self.stopping.is_set() or trio.current_time() < until:
                if not await self._work(connection):
                    is_alive = False
                    return
                await trio.sleep(self.pace * self.random.uniform(*self.BEAT_SECONDS))
            ending = self.random.randrange(4)
            if ending == 0:  # it hangs, and goes on as if nothing had happened
                await trio.sleep(self.random.uniform(0, 2 * self.seen.session_seconds))
                until = trio.current_time() + self._life_seconds()
                await self._commit(connection)
                return
            is_alive = False
            if ending < 3:
                await self._leave(connection)

        await reconnecting(self.connect, use, while_true=lambda: is_alive)
        self.member = self._former = None

    @abstractmethod
    def _begin(self, name: str) -> None:
        """Begin a process of this name."""

    def _connected(self) -> None:  # noqa: B027 # only some need it
        """Take notice of a new connection."""

    @abstractmethod
    async def _work(self, connection: Connection) -> bool:
        """Do one step: join or beat, and read; False if the process has to end."""

    @abstractmethod
    async def _commit(self, connection: Connection) -> None: ...

    @abstractmethod
    async def _leave(self, connection: Connection) -> None: ...


@attrs.define(eq=False, kw_only=True)
class GroupMember(ProcessesInGroup):
    """Processes that are members of a group of Kafka 4's protocol; `instance_id` makes them static."""

    seen: MembersSeen
    numbers: Counter[int]  # the last offset that was committed of each partition, where nothing is read
    instance_id: str | None = None
    member: Membership | None = attrs.field(default=None, init=False)
    _former: Membership | None = attrs.field(default=None, init=False)
    _member_id: str = attrs.field(default="", init=False)
    _is_full: bool = attrs.field(default=True, init=False)
    _is_replaced: bool = attrs.field(default=False, init=False)  # it was told that another one has its instance id
    _doomed: Assigned = attrs.field(default=frozenset(), init=False)  # that it has, and is to give up
    _gives_up_at: float = attrs.field(default=0.0, init=False)
    _told: Assigned | None = attrs.field(default=None, init=False)  # what the broker knows that it has

    def _begin(self, name: str) -> None:
        self._member_id, self._is_replaced = name, False

    def _connected(self) -> None:
        self._is_full = True

    async def _work(self, connection: Connection) -> bool:
        await self._beat(connection)
        if self._is_replaced:
            return False
        await self._read(connection)
        return True

    async def _beat(self, connection: Connection) -> None:
        member = self.member
        if member is None:
            member = self.member = self.seen.joining(self._member_id)
            self._doomed, self._told, self._is_full = frozenset(), frozenset(), True
        if self._doomed and trio.current_time() >= self._gives_up_at:
            await self._commit(connection)
            self.seen.gave_up(member, self._doomed)
            self._doomed = frozenset()
        has = member.has if member.epoch else frozenset()
        began = self.seen.sending(member)
        answer = await connection.request(self._heartbeat(member, has), ConsumerGroupHeartbeatResponse)
        code, is_known = answer.error_code, self.coordinates(connection, self.group)
        if code in GONE:
            is_late = code == error_codes.FENCED_MEMBER_EPOCH
            self.seen.refused(member, error_codes.name(code), may_be_late=is_late, is_known=is_known)
            self._former, self.member = (member if is_known else None), None
        elif code == error_codes.FENCED_INSTANCE_ID:  # somebody who had left, where the group was lost with a disk
            self.seen.refused(member, error_codes.name(code), may_be_late=False, is_known=is_known)
            self._is_replaced, self.member = True, None
        elif code == error_codes.UNRELEASED_INSTANCE_ID and not member.epoch:
            if f"owned by member {self._member_id}." in (answer.error_message or ""):
                self.seen.refused_by_itself(member)  # the one before has died, and is on time still, otherwise
        elif was_done(code, f"heartbeat of {self._member_id}"):
            self._is_full, self._told = False, has
            await self._take(connection, member, answer, began)
        else:
            self._is_full = True  # as Java's client: an answer that is lost may have told it what it is to have

    def _heartbeat(self, member: Membership, has: Assigned) -> ConsumerGroupHeartbeatRequest:
        is_full = self._is_full or not member.epoch
        owned = [HeartbeatTopicPartitions(topic_id=self.topic.topic_id, partitions=sorted(has))] if has else []
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=member.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=round(1000 * self.seen.rebalance_seconds) if is_full else -1,
            subscribed_topic_names=[self.topic.name] if is_full else None,
            topic_partitions=owned if is_full or has != self._told else None,
        )

    async def _take(
        self, connection: Connection, member: Membership, answer: ConsumerGroupHeartbeatResponse, began: float
    ) -> None:
        assigned: Assigned | None = None
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            assigned = frozenset(partition for topic in topics for partition in topic.partitions)
        before = member.has
        is_known = self.coordinates(connection, self.group)
        self.seen.answered(member, answer.member_epoch, assigned, began=began, is_known=is_known)
        if assigned is not None:
            if (doomed := member.has - assigned) and not self._doomed:
                is_soon = self.stopping.is_set() or self.random.random() < 0.9
                seconds = self.random.choice([0.0, self.random.uniform(0, GIVE_UP_MAX_SECONDS)])
                self._gives_up_at = trio.current_time() + (seconds if is_soon else 2 * self.seen.rebalance_seconds)
            self._doomed = doomed
        if gained := sorted(member.has - before):
            await self._fetch(connection, gained)
        if self.random.random() < 0.5:
            await self._commit(connection)

    async def _leave(self, connection: Connection) -> None:
        member = self.member
        if member is None or not member.epoch:
            return
        known_until = self.seen.left(member)
        is_for_a_while = self.instance_id is not None and self.random.random() < 0.7
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._member_id,
            member_epoch=-2 if is_for_a_while else -1,
            instance_id=self.instance_id,
        )
        answer = await connection.request(request, ConsumerGroupHeartbeatResponse)
        code = answer.error_code
        if code == error_codes.FENCED_INSTANCE_ID and not self.coordinates(connection, self.group):
            pass  # who coordinates the group may not know of that
        elif code == error_codes.FENCED_INSTANCE_ID:
            self.seen.leave_refused(member, error_codes.name(code), known_until=known_until)
        elif code not in GONE and was_done(code, f"leave of {self._member_id}"):
            self._former = member
            await self._commit_as_former(connection)

    async def _read(self, connection: Connection) -> None:
        member, reads = self.member, self._reads
        if reads is None:
            return
        reads.keep(frozenset() if member is None else member.has)
        if member is not None and (new := sorted(member.has - reads.positions.keys())):
            await self._fetch(connection, new)
        await reads.poll(connection)

    def _next_offset(self, partition: int) -> int | None:
        if self._reads is not None:
            return self._reads.positions.get(partition)
        self.numbers[partition] += 1
        return self.numbers[partition]

    def _offsets_refused(self, connection: Connection, member: Membership, code: int) -> None:
        if self.coordinates(connection, self.group):
            self.seen.commit_refused(member, error_codes.name(code))

    async def _commit(self, connection: Connection) -> None:
        """Commit an offset of one of its partitions; or, seldom, as a former member."""
        if self._former is not None and self.random.random() < 0.2:
            await self._commit_as_former(connection)
        member = self.member
        if member is None or not member.has:
            return
        partition, epoch = self.random.choice(sorted(member.has)), member.epoch
        if epoch > 1 and self.random.random() < 0.1:
            await self._commit_wrongly(connection, member, partition, epoch - 1)
        offset = self._next_offset(partition)
        if offset is None:
            return
        where = self.topic.partition_name(partition)
        self.history.committing(self.group, where, offset)
        code = await self._send_commit(connection, member, partition, offset=offset, epoch=epoch)
        if code in STALE:
            self._offsets_refused(connection, member, code)
        elif was_done(code, f"commit of {self._member_id}"):
            self.history.committed(self.group, where, offset)

    async def _commit_as_former(self, connection: Connection) -> None:
        former, self._former = self._former, None
        if former is None or not former.epoch:
            return
        again = self.member  # under the same id it may get to the same epoch, where the group was lost with a disk
        if again is None or again.member_id != former.member_id or again.epoch > former.epoch:
            partition = self.random.randrange(self.topic.partition_count)
            await self._commit_wrongly(connection, former, partition, former.epoch)

    async def _commit_wrongly(self, connection: Connection, member: Membership, partition: int, epoch: int) -> None:
        """Make a commit that must be refused, of an offset that is never committed otherwise."""
        code = await self._send_commit(connection, member, partition, offset=1_000_000, epoch=epoch)
        if code not in STALE:
            was_done(code, f"commit of {member.member_id} as it was at {epoch}")

    async def _send_commit(
        self, connection: Connection, member: Membership, partition: int, *, offset: int, epoch: int
    ) -> int:
        began = trio.current_time()
        codes = await commit_offsets(
            connection,
            self.group,
            self.topic,
            {partition: offset},
            generation_id_or_member_epoch=epoch,
            member_id=member.member_id,
            group_instance_id=self.instance_id,
        )
        code = codes[partition]
        if not code:
            self.seen.committed(member, partition, epoch=epoch, began=began)
        return code

    async def _fetch(self, connection: Connection, partitions: Sequence[int]) -> None:
        member = self.member
        assert member is not None
        found = await fetch_offsets(
            connection, self.group, self.topic, partitions, member_id=member.member_id, member_epoch=member.epoch
        )
        if found.error_code in STALE:
            self._offsets_refused(connection, member, found.error_code)
        elif was_done(found.error_code, f"offsets for {self._member_id}") and member.has.issuperset(partitions):
            if self.coordinates(connection, self.group):
                note_offsets(self.history, self.group, self.topic, found)
            if self._reads is not None:
                self._reads.begin_all(found)


@attrs.define(eq=False, kw_only=True)
class MembersOfGroup(ABC):
    """Members of one group; a seed may have none.

    With `knows` they read their partitions, and must have read everything at the end.
    """

    RECORD: ClassVar[type[MembersRecord]]
    REBALANCE_SECONDS: ClassVar[float]

    connect: Connect
    history: History
    random: Random
    seen: MembersRecord
    group: str
    coordinates: Coordinates = coordinates_all
    knows: Knows | None = None
    members: list[ProcessesInGroup] = attrs.field(factory=list, init=False)
    _topic: Topic | None = attrs.field(default=None, init=False)
    _reads: GroupReads | None = attrs.field(default=None, init=False)

    @classmethod
    def of(
        cls,
        connect: Connect,
        history: History,
        random: Random,
        note: Callable[[str], None],
        *,
        sessions_seconds: Sequence[float] = SESSIONS_SECONDS,
        **more: Any,
    ) -> Self:
        """Make members with a random session length; `note` gets a line for each of their actions."""
        seen = cls.RECORD(
            now=trio.current_time,
            session_seconds=random.choice(sessions_seconds),
            rebalance_seconds=cls.REBALANCE_SECONDS,
            note=note,
        )
        return cls(connect=connect, history=history, random=random, seen=seen, **more)

    @abstractmethod
    def _member(self, number: int, **shared: Any) -> ProcessesInGroup:
        """Make one of them; `shared` is what all have in common."""

    def start(self, nursery: trio.Nursery, topic: Topic, stopping: trio.Event) -> None:
        if self.random.random() >= TAKES_PART_PROBABILITY:
            return
        self._topic = topic
        if self.knows is not None:
            self._reads = GroupReads(topic=topic, history=self.history, knows=self.knows)
        for number in range(self.random.randint(2, MEMBERS_MAX_COUNT)):
            member = self._member(
                number,
                group=self.group,
                topic=topic,
                connect=self.connect,
                history=self.history,
                random=Random(self.random.random()),
                stopping=stopping,
                reads=self._reads,
                coordinates=self.coordinates,
            )
            self.members.append(member)
            nursery.start_soon(member.run)

    async def wait_agreed(self) -> None:
        """Wait until each partition has one owner and all is read, now that no member comes or goes."""
        if self._topic is None:
            return
        detail, missing = "no member", self._missing()
        with trio.move_on_after(AGREE_SECONDS) as waiting:
            while detail:
                await trio.sleep(AGREE_POLL_SECONDS)
                detail = self._disagreement(range(self._topic.partition_count))
                missing, before = self._missing(), missing
                if missing != before:  # they are slow where the bucket is, and not at an end
                    waiting.deadline = trio.current_time() + AGREE_SECONDS
        if waiting.cancelled_caught:
            self.seen.did_not_agree(detail)

    def _disagreement(self, partitions: Sequence[int]) -> str:
        there = [member.member for member in self.members if member.member is not None]
        if len(there) < len(self.members):
            return f"{len(there)} members of {len(self.members)}"
        missing = self._missing()
        return self.seen.disagreement(there, partitions) or (f"no member has read {missing}" if missing else "")

    def _missing(self) -> Mapping[int, int]:
        return {} if self._reads is None else self._reads.missing()

    async def check_offsets(self) -> None:
        """Check the committed offsets, while no member commits. Raises KafkaError, BrokerUnavailable."""
        if self._topic is None:
            return
        async with aclosing(await self.connect()) as connection:
            found = await fetch_offsets(connection, self.group, self._topic)
        if was_done(found.error_code, f"offsets of {self.group}"):
            note_offsets(self.history, self.group, self._topic, found)


@attrs.define(eq=False, kw_only=True)
class GroupMembers(MembersOfGroup):
    """Members of a group of Kafka 4's protocol; one of them may be static."""

    RECORD = MembersSeen
    REBALANCE_SECONDS = 3.0

    seen: MembersSeen
    group: str = "workers"
    pace: float = 1.0
    _numbers: Counter[int] = attrs.field(factory=Counter, init=False)

    def _member(self, number: int, **shared: Any) -> GroupMember:
        return GroupMember(
            name=f"member{number}",
            seen=self.seen,
            numbers=self._numbers,
            instance_id="static" if number == 0 and self.random.random() < 0.5 else None,
            pace=self.pace,
            **shared,
        )
