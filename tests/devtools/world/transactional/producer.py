"""A transactional producer: begins, writes to several partitions, and commits, aborts, abandons or is too late.

Several may share one transactional id: each new one fences the earlier ones, which notice, and begin anew some time
later. Unanswered requests are repeated on the next connection, with the same sequence numbers and epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection, Reply
from kafscale.errors import BrokerUnavailable
from kafscale.wire.batch_header import TRANSACTIONAL
from kafscale.wire.messages.records import ProduceResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.history.seen import Attempt, Identity, Sent, TransactionsSeen
from tests.devtools.world.producers import Maker
from tests.devtools.world.transactional.calls import Answer, Calls, Place, Protocol, by_place
from tests.devtools.world.workload import Connect, Topic, content_of, reconnecting

IN_FLIGHT_MAX_COUNT = 5
BATCHES_MAX_COUNT = 4  # of a transaction
RETRY_MAX_SECONDS = 0.1
ABSENCE_MAX_SECONDS = 0.3  # of a producer that was fenced


class Ending(Enum):
    COMMIT = "commit"
    ABORT = "abort"
    LEAVE = "leave"  # it crashes in the middle, and the next one begins
    DELAY = "delay"  # it goes on, and wants to commit, when the transaction has timed out, or is about to


ENDINGS = [Ending.COMMIT] * 6 + [Ending.ABORT] * 2 + [Ending.LEAVE] + [Ending.DELAY] * 2
DELAYS = (0.5, 3.0)  # as parts of the time-out
INTRUSION_PROBABILITY = 0.1
NAMED_PROBABILITY = 0.2


class OutOfOffice(Exception):
    """This producer's epoch is over: it has to begin anew."""


@attrs.frozen(kw_only=True)
class LoadedTopic:
    topic: Topic
    keys_count: int | None = None
    is_compacted: bool = False


@attrs.frozen(eq=False)
class Batch:
    topic: Topic
    partition: int
    data: bytearray
    values: Sequence[str]

    @property
    def place(self) -> Place:
        return self.topic.name, self.partition


@attrs.define(eq=False, kw_only=True)
class TransactionalProducer:
    """Runs one transaction after the other until `stopping`; an open one is then finished, or left to its timeout.

    `has_lost`: a broker may lose its knowledge of producers with a disk.
    """

    name: str
    transactional_id: str
    topics: Sequence[LoadedTopic]
    connect: Connect
    seen: TransactionsSeen
    random: Random
    stopping: trio.Event
    protocol: Protocol
    timeout_ms: int
    pause_max_seconds: float
    has_lost: bool = False
    refused_count: int = attrs.field(default=0, init=False)  # batches of partitions that were not enrolled
    _makers: Mapping[str, Maker] = attrs.field(init=False)
    _incarnations_count: int = attrs.field(default=0, init=False)
    _identity: Identity | None = attrs.field(default=None, init=False)
    _named: Identity | None = attrs.field(default=None, init=False)  # to ask for the epoch behind this one
    _sequences: dict[Place, int] = attrs.field(factory=dict, init=False)
    _attempt: Attempt | None = attrs.field(default=None, init=False)
    _ending: Ending = attrs.field(default=Ending.COMMIT, init=False)
    _late_count: int = attrs.field(default=0, init=False)  # of batches that come after the delay, if there is one
    _unanswered: deque[Batch] = attrs.field(factory=deque, init=False)
    _enrolled: set[Place] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._makers = {
            topic.topic.label: Maker(
                name=f"{self.name}@{topic.topic.label}",
                topic=topic.topic,
                history=self.seen.history,
                random=self.random,
                keys_count=topic.keys_count,
                may_go=topic.is_compacted,
            )
            for topic in self.topics
        }

    async def run(self) -> None:
        await reconnecting(self.connect, self._use, while_true=self._goes_on)

    def _goes_on(self) -> bool:
        return self._attempt is not None or not self.stopping.is_set()

    async def _use(self, connection: Connection) -> None:
        calls = Calls(
            connection=connection,
            protocol=self.protocol,
            transactional_id=self.transactional_id,
            has_lost=self.has_lost,
        )
        error_code = await calls.find_coordinator()
        if calls.judge(error_code, f"coordinator of {self.transactional_id}") is not Answer.DONE:
            raise await self._again("nobody coordinates")
        while self._goes_on():
            try:
                await self._step(calls)
            except OutOfOffice:
                self._begin_anew()
                await self._pause(ABSENCE_MAX_SECONDS)

    async def _step(self, calls: Calls) -> None:
        if self._identity is None:
            self._identity = await self._init(calls)
        if self._attempt is None:
            self._attempt = await self._begin(calls, self._identity)
            if self._attempt is None:
                await self._pause(RETRY_MAX_SECONDS)
                return
            self._late_count = self.random.randrange(len(self._unanswered))
        if self._ending is Ending.DELAY:
            await self._be_late(calls, self._identity)
        await self._send(calls, self._identity)
        await self._send_offsets(calls, self._identity)
        if self._ending is Ending.LEAVE:
            raise OutOfOffice
        await self._end(calls, self._identity, self._attempt)
        await self._pause(self.pause_max_seconds)

    async def _be_late(self, calls: Calls, identity: Identity) -> None:
        """Do a part of the transaction, maybe all of it, and wait until its timeout may be over."""
        await self._send(calls, identity, late_count=self._late_count)
        if not self._late_count and self.random.random() < 0.5:
            await self._send_offsets(calls, identity)
        self._ending = Ending.COMMIT
        await trio.sleep(self.timeout_ms / 1000 * self.random.uniform(*DELAYS))

    def _begin_anew(self) -> None:
        self._identity = self._attempt = None
        self._unanswered.clear()
        self._enrolled.clear()
        self._sequences.clear()

    async def _pause(self, max_seconds: float) -> None:
        await trio.sleep(self.random.uniform(0, max_seconds))

    async def _again(self, what: str) -> BrokerUnavailable:
        await self._pause(RETRY_MAX_SECONDS)
        return BrokerUnavailable(what)

    async def _init(self, calls: Calls) -> Identity:
        answer = await calls.init(self.timeout_ms, self._named)
        verdict = calls.judge(answer.error_code, f"epoch of {self.transactional_id}")
        if verdict is Answer.FENCED and self._named is not None:
            self._named = None
            raise OutOfOffice
        if verdict is not Answer.DONE:
            assert verdict is Answer.AGAIN, f"who names no epoch is never refused, but {verdict}"
            raise await self._again("no epoch")
        self._named = None
        self._incarnations_count += 1
        identity = Identity(
            transactional_id=self.transactional_id,
            incarnation=f"{self.name}/{self._incarnations_count}",
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )
        self.seen.initialised(identity)
        return identity

    async def _begin(self, calls: Calls, identity: Identity) -> Attempt | None:
        """Decide on a transaction, and make its batches; None if there are no records now."""
        await trio.lowlevel.checkpoint()
        attempt = self.seen.begin(identity.incarnation)
        self._ending = self.random.choice(ENDINGS)
        least_count = 2 if self._ending is Ending.DELAY else 1
        for _ in range(self.random.randint(least_count, BATCHES_MAX_COUNT)):
            topic = self.random.choice(self.topics).topic
            partition = self.random.randrange(topic.partition_count)
            records, values = self._makers[topic.label].make(partition)
            self._unanswered.append(self._make(identity, attempt, topic, partition, records, values))
        return attempt

    async def _send_offsets(self, calls: Calls, identity: Identity) -> None:
        """Commit offsets of a group in the transaction, if this kind of producer does."""
        await trio.lowlevel.checkpoint()

    def _make(
        self,
        identity: Identity,
        attempt: Attempt,
        topic: Topic,
        partition: int,
        records: Sequence[Record],
        values: Sequence[str],
    ) -> Batch:
        for record, value in zip(records, values, strict=True):
            where, key = topic.partition_name(partition), (record.key or b"").decode()
            attempt.sends[value] = Sent(where, value, key, content_of(record))
        sequence = self._sequences.get((topic.name, partition), 0)
        self._sequences[topic.name, partition] = sequence + len(records)
        stamp = ProducerStamp(identity.producer_id, identity.producer_epoch, sequence)
        return Batch(topic, partition, build_batch(records, producer=stamp, attributes=TRANSACTIONAL), values)

    async def _send(self, calls: Calls, identity: Identity, *, late_count: int = 0) -> None:
        """Send unanswered batches except the last `late_count`, several in flight, and wait for all answers."""
        may_intrude = not self.protocol.is_new and not self.has_lost and bool(self._unanswered)
        intrudes = may_intrude and self.random.random() < INTRUSION_PROBABILITY
        to_send = deque(islice(self._unanswered, max(0, len(self._unanswered) - late_count)))
        in_flight: deque[tuple[int, Mapping[Place, Batch], Reply[ProduceResponse]]] = deque()
        while to_send or in_flight:
            while to_send and len(in_flight) < IN_FLIGHT_MAX_COUNT:
                together = self._next_request(to_send)
                await self._enrol(calls, identity, together)
                if intrudes:  # not sooner: what comes before the marker of the transaction before belongs to that
                    await self._intrude(calls, identity)
                    intrudes = False
                began = self.seen.history.now()
                reply = await calls.produce({place: batch.data for place, batch in together.items()})
                in_flight.append((began, together, reply))
                if self.random.random() < 0.5:
                    break
            began, together, reply = in_flight.popleft()
            await self._take(calls, identity, together, await reply.wait(), began)

    def _next_request(self, to_send: deque[Batch]) -> Mapping[Place, Batch]:
        first = to_send.popleft()
        together = {first.place: first}
        while to_send and to_send[0].place not in together and self.random.random() < 0.5:
            following = to_send.popleft()
            together[following.place] = following
        return together

    async def _enrol(self, calls: Calls, identity: Identity, together: Mapping[Place, Batch]) -> None:
        missing = [place for place in together if place not in self._enrolled]
        if self.protocol.is_new or not missing:
            return
        verdict = calls.judge(await calls.add(identity, missing), f"enrolment of {missing}")
        if verdict is Answer.FENCED:
            raise OutOfOffice
        if verdict is not Answer.DONE:
            raise await self._again("not enrolled")
        self._enrolled.update(missing)

    async def _take(
        self,
        calls: Calls,
        identity: Identity,
        together: Mapping[Place, Batch],
        response: ProduceResponse,
        began: int,
    ) -> None:
        assert self._attempt is not None
        answers = by_place(response)
        verdicts = set()
        for place, batch in together.items():
            where = batch.topic.partition_name(batch.partition)
            verdict = calls.judge(answers[place].error_code, f"{batch.values[0]} in {where}")
            verdicts.add(verdict)
            if verdict is Answer.DONE:
                self._unanswered.remove(batch)
                self._acknowledged(self._attempt, where, batch.values, answers[place].base_offset)
                self.seen.worked(identity, f"{batch.values[0]} in {where}", began=began)
        assert Answer.REFUSED not in verdicts, f"{identity} has enrolled {list(together)}"
        if Answer.FENCED in verdicts:
            raise OutOfOffice
        if Answer.AGAIN in verdicts:
            raise await self._again("not written")

    def _acknowledged(self, attempt: Attempt, where: str, values: Sequence[str], base_offset: int) -> None:
        for index, value in enumerate(values):
            if (
                not self.has_lost
            ):  # else the epoch may be one that was given before, and the batch be taken for that one's
                self.seen.history.acknowledged(where, value, base_offset + index)
            attempt.sends[value] = attrs.evolve(attempt.sends[value], offset=base_offset + index)

    async def _intrude(self, calls: Calls, identity: Identity) -> None:
        """Write to a partition without enrolling it, which must be refused."""
        taken = {batch.place for batch in self._unanswered} | self._enrolled
        places = [
            (loaded.topic, index)
            for loaded in self.topics
            for index in range(loaded.topic.partition_count)
            if (loaded.topic.name, index) not in taken
        ]
        if not places:
            return
        topic, index = self.random.choice(places)
        sequence = self._sequences.get((topic.name, index), 0)
        uninvited = self.seen.begin(f"{identity.incarnation}, uninvited")
        batch = self._make(identity, uninvited, topic, index, *self._makers[topic.label].make(index))
        self._sequences[topic.name, index] = sequence
        reply = await calls.produce({batch.place: batch.data})
        error_code = by_place(await reply.wait())[batch.place].error_code
        verdict = calls.judge(error_code, f"an intrusion into {topic.partition_name(index)}")
        assert verdict is not Answer.DONE, f"{identity} has written to {batch.place}, which it had not enrolled"
        if verdict is Answer.FENCED:
            raise OutOfOffice
        self.refused_count += verdict is Answer.REFUSED

    async def _end(self, calls: Calls, identity: Identity, attempt: Attempt) -> None:
        attempt.is_to_commit = self._ending is Ending.COMMIT
        attempt.asked_count += 1
        began = self.seen.history.now()
        attempt.asked_at = attempt.asked_at or began
        answer = await calls.end(identity, commit=attempt.is_to_commit)
        verdict = calls.judge(answer.error_code, f"end of {attempt.name}")
        if verdict is Answer.AGAIN:
            raise await self._again("not ended")
        if verdict is not Answer.DONE:
            attempt.was_refused = True
            raise OutOfOffice
        attempt.was_told = True
        self.seen.history.note(f"ended {attempt.name} {attempt.end.value}")
        self.seen.worked(identity, f"the end of {attempt.name}", began=began)
        self._attempt = None
        self._enrolled.clear()
        self._has_ended(is_committed=attempt.is_to_commit)
        if self.protocol.is_new:
            self._go_on_as(identity, answer.producer_id, answer.producer_epoch)
        if self.random.random() < NAMED_PROBABILITY:
            self._named = self._identity
            self._begin_anew()

    def _has_ended(self, *, is_committed: bool) -> None:
        """Take notice of the transaction's outcome."""

    def _go_on_as(self, identity: Identity, producer_id: int, producer_epoch: int) -> None:
        self._identity = attrs.evolve(identity, producer_id=producer_id, producer_epoch=producer_epoch)
        self._sequences.clear()
        self.seen.given(self._identity)
