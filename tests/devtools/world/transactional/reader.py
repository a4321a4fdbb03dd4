"""Consumers of topics with transactions, at one isolation level each."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.client.connection import Connection
from kafscale.client.consumer import LATEST, IsolationLevel
from kafscale.wire.messages.records import FetchRequest, PartitionData
from kafscale.wire.records import iterate_records
from tests.devtools.fakes.transactions import counted_batches
from tests.devtools.history.history import History
from tests.devtools.history.seen import CommittedRead, TransactionsSeen
from tests.devtools.world.workload import (
    Knows,
    Reader,
    Repeating,
    Topic,
    ask_offset,
    batches_of,
    content_of,
    knows_all,
    value_of,
)


@attrs.define(eq=False, kw_only=True)
class UncommittedReader(Reader):
    """Reads all records, committed or not, and records the last stable offsets."""

    def _note_stable_offset(self, answer: PartitionData, began: int) -> None:
        where = self.topic.partition_name(answer.partition_index)
        self.history.saw_stable_offset(where, began=began, last_stable_offset=answer.last_stable_offset)
        assert answer.last_stable_offset <= answer.high_watermark, where

    def _take(self, answer: PartitionData, began: int) -> None:
        self._note_stable_offset(answer, began)
        Reader._take(self, answer, began)


@attrs.define(eq=False, kw_only=True)
class CommittedReader(UncommittedReader):
    """Reads committed records, as Java's consumer does, up to the last stable offset."""

    seen: TransactionsSeen

    def _request(self) -> FetchRequest:
        return Reader._request(self).evolve(isolation_level=IsolationLevel.READ_COMMITTED)

    def _sought(self, where: str) -> None:
        self.seen.sought(self.name, where)

    def _take(self, answer: PartitionData, began: int) -> None:
        self._note_stable_offset(answer, began)
        index = answer.partition_index
        self.ends[index] = answer.last_stable_offset
        self._note_offsets(answer, began)
        data = batches_of(answer)
        reads = self._reads(data, answer)
        if reads:
            where = self.topic.partition_name(index)
            self.seen.polled(self.name, where, reads, stable_offset=answer.last_stable_offset)
        self._advance(index, data)

    def _reads(self, data: Sequence[memoryview], answer: PartitionData) -> list[CommittedRead]:
        aborted = [(aborted.first_offset, aborted.producer_id) for aborted in answer.aborted_transactions or ()]
        position = self.positions[answer.partition_index]
        return [
            CommittedRead(record.offset, value_of(record), (record.key or b"").decode(), content_of(record))
            for batch, _ in counted_batches(data, aborted)
            for record in iterate_records(batch)
            if record.offset >= position
        ]


@attrs.define(eq=False, kw_only=True)
class StabilityAsker(Repeating):
    """Asks for last stable offsets again and again, as a consumer does that begins at the end."""

    topics: Sequence[Topic]
    history: History
    knows: Knows = knows_all

    async def _step(self, connection: Connection) -> None:
        topic = self.random.choice(self.topics)
        index = self.random.randrange(topic.partition_count)
        began = self.history.now()
        answer = await ask_offset(connection, topic, index, LATEST, level=IsolationLevel.READ_COMMITTED)
        if answer is not None:
            where, is_known = topic.partition_name(index), self.knows(connection, topic, index)
            self.history.saw_stable_offset(where, began=began if is_known else 0, last_stable_offset=answer.offset)
