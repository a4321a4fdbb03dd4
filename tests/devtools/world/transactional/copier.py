"""Read, process, write: from one topic to another, with the offsets in the transaction, so that each record comes once.

Of two copiers of one transactional id the later one begins at the group's last committed offsets. A copy names its
source and the attempt: `p:17>copier.0-3`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from kafscale.client.connection import Connection
from kafscale.client.consumer import IsolationLevel
from kafscale.errors import BrokerUnavailable
from kafscale.wire import error_codes
from kafscale.wire.batch_header import parse_header
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafscale.wire.records import Record, iterate_records
from tests.devtools.fakes.transactions import counted_batches
from tests.devtools.history.seen import Attempt, CommittedRead, Identity
from tests.devtools.world.group_offsets import fetch_offsets, partitions_of
from tests.devtools.world.transactional.calls import Answer, Calls
from tests.devtools.world.transactional.producer import ENDINGS, Batch, Ending, OutOfOffice, TransactionalProducer
from tests.devtools.world.workload import (
    Repeating,
    Topic,
    batches_of,
    content_of,
    encode_value,
    value_of,
    was_done,
)

FETCH_MAX_BYTES = 1 << 10  # so that there are several transactions
FETCH_MAX_WAIT_MS = 50


@attrs.define(eq=False, kw_only=True)
class Copier(TransactionalProducer):
    """Copies the committed records of `source` to the first of its topics, each to the partition of its number."""

    source: Topic
    group: str
    asked: set[tuple[int, int]]  # to be committed: partitions, each with an offset
    _positions: dict[int, int] = attrs.field(factory=dict, init=False)  # behind what is copied and not committed
    _committed: dict[int, int] | None = attrs.field(default=None, init=False)  # as the group has them
    _has_sent_offsets: bool = attrs.field(default=False, init=False)
    _tried_count: int = attrs.field(default=0, init=False)

    def _begin_anew(self) -> None:
        TransactionalProducer._begin_anew(self)
        self._committed = None

    async def _begin(self, calls: Calls, identity: Identity) -> Attempt | None:
        if self._committed is None:
            self._committed = await copied_offsets(calls.connection, self.group, self.source)
            if self._committed is None:
                raise await self._again("the group's offsets are not stable")
        self._positions = dict(self._committed)
        found = await self._poll(calls.connection)
        if not found:
            return None
        attempt = self.seen.begin(identity.incarnation)
        self._ending = self.random.choice(ENDINGS)
        self._has_sent_offsets = False
        self._tried_count += 1
        for index, values in found.items():
            copies = [f"{value}>{self.name}-{self._tried_count}" for value in values]
            self._unanswered.append(self._copy(identity, attempt, index, copies))
        return attempt

    def _copy(self, identity: Identity, attempt: Attempt, index: int, values: Sequence[str]) -> Batch:
        topic = self.topics[0].topic
        now_ms = time.time_ns() // 1_000_000
        records = [Record(key=value.encode(), value=encode_value(value, 0), timestamp_ms=now_ms) for value in values]
        for value, record in zip(values, records, strict=True):
            where = topic.partition_name(index)
            self.seen.history.sent(self.name, where, value, content=content_of(record))
        return self._make(identity, attempt, topic, index, records, values)

    async def _poll(self, connection: Connection) -> Mapping[int, Sequence[str]]:
        wanted = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_MAX_BYTES)
            for index, offset in self._positions.items()
        ]
        request = FetchRequest(
            max_wait_ms=FETCH_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_MAX_BYTES,
            isolation_level=IsolationLevel.READ_COMMITTED,
            topics=[FetchTopic(topic=self.source.name, topic_id=self.source.topic_id, partitions=wanted)],
        )
        response = await connection.request(request, FetchResponse)
        found = {}
        for answer in (partition for topic in response.responses for partition in topic.partitions):
            index = answer.partition_index
            if not was_done(answer.error_code, self.source.partition_name(index)):
                continue
            data = batches_of(answer)
            aborted = [(aborted.first_offset, aborted.producer_id) for aborted in answer.aborted_transactions or ()]
            position = self._positions[index]
            values = [
                value_of(record)
                for batch, _ in counted_batches(data, aborted)
                for record in iterate_records(batch)
                if record.offset >= position
            ]
            if data:
                self._positions[index] = parse_header(data[-1]).last_offset + 1
            if values:
                found[index] = values
        return found

    async def _send_offsets(self, calls: Calls, identity: Identity) -> None:
        if self._has_sent_offsets:
            return
        error_code = await calls.commit_offsets(identity, self.group, self.source.name, self._positions)
        verdict = calls.judge(error_code, f"offsets of {self.group}")
        if verdict is Answer.AGAIN:
            raise await self._again("offsets not committed")
        if verdict is not Answer.DONE:
            raise OutOfOffice
        self._has_sent_offsets = True

    async def _end(self, calls: Calls, identity: Identity, attempt: Attempt) -> None:
        if self._ending is Ending.COMMIT:
            self.asked.update(self._positions.items())
        await TransactionalProducer._end(self, calls, identity, attempt)

    def _has_ended(self, *, is_committed: bool) -> None:
        self._committed = dict(self._positions) if is_committed else None


@attrs.define(eq=False, kw_only=True)
class OffsetsAsker(Repeating):
    """Asks for the committed offsets of the copiers' group while they work, as a monitor of its lag does.

    asked: the offsets, by partition, of all requested commits; an answer must not show others.
    """

    group: str
    source: Topic
    asked: set[tuple[int, int]]
    faults: list[str]

    async def _step(self, connection: Connection) -> None:
        offsets = await copied_offsets(connection, self.group, self.source, require_stable=False)
        for at in (offsets or {}).items():
            if at[1] and at not in self.asked:
                self.faults.append(f"{self.group} is at {at}, which no commit has named")


async def copied_offsets(
    connection: Connection, group: str, topic: Topic, *, require_stable: bool = True
) -> dict[int, int] | None:
    """Return the group's next offset in each partition, by transactions that have ended; None if some have not.

    Raises BrokerUnavailable if another broker has to be asked, or this one again.
    """
    found = await fetch_offsets(connection, group, topic, require_stable=require_stable)
    if found.error_code:
        raise BrokerUnavailable(f"the offsets of {group} can't be told: {error_codes.name(found.error_code)}")
    answers = partitions_of(found)
    if any(answer.error_code for answer in answers):
        return None
    return {answer.partition_index: max(0, answer.committed_offset) for answer in answers}


def wrong_copies(
    source: Mapping[int, Mapping[str, CommittedRead]], copies: Iterator[str], offsets: Mapping[int, int]
) -> Iterator[str]:
    """Find wrong copies: each committed record before the group's offsets must have one copy, and later ones none.

    source: the committed records, by partition and value.
    """
    counts = Counter(copy.rpartition(">")[0] for copy in copies)
    for index, found in source.items():
        for value, read in found.items():
            wanted = int(read.offset < offsets[index])
            if counts[value] != wanted:
                yield f"copies of {value}, at {index} {read.offset} with the group at {offsets[index]}: {counts[value]}"
