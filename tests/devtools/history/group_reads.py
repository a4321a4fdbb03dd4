"""Reads of the members of a group: each member goes on where the group has committed, and commits then.

Acknowledged records must be delivered to the group at least once. A member may be assigned a partition that another one
still reads, so each member's reads are a run of their own in the history, which finds gaps within a run; `missing`
finds records in no run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire.messages.offsets import OffsetFetchResponseGroup
from tests.devtools.history.history import History
from tests.devtools.world.workload import Knows, Reader, Topic, knows_all

POLLS_MAX_COUNT = 8  # one after the other: a fetch may bring no more than a segment
POLL_MAX_SECONDS = 1.0  # then its heartbeats come first, as in a client whose fetches don't delay them


@attrs.define(eq=False, kw_only=True)
class GroupReads:
    """Reads of all members of a group, of a topic without deletions. `knows` is as for a Reader."""

    topic: Topic
    history: History
    knows: Knows = knows_all
    _runs: defaultdict[int, list[tuple[int, int]]] = attrs.field(factory=lambda: defaultdict(list), init=False)

    def by(self, name: str) -> MemberReads:
        return MemberReads(self, name)

    def passed(self, partition: int, start: int, end: int) -> None:
        self._runs[partition].append((start, end))

    def missing(self) -> Mapping[int, int]:
        """Return the first unread offset of each partition that has records behind it."""
        found = {}
        for partition in range(self.topic.partition_count):
            end, now = 0, self.history.now()
            for start, run_end in sorted(self._runs[partition]):
                if start <= end:
                    end = max(end, run_end)
            where = self.topic.partition_name(partition)
            if end < self.history.known_offset(where, "high watermark", before=now):
                found[partition] = end
        return found


@attrs.define(eq=False)
class MemberReads:
    """Reads of one process. `positions` are the next offsets to be read of its current partitions."""

    _reads: GroupReads
    _name: str
    positions: dict[int, int] = attrs.field(factory=dict, init=False)

    def begin(self, partition: int, committed_offset: int) -> None:
        self._reads.history.sought(self._name, self._reads.topic.partition_name(partition))
        self.positions[partition] = max(0, committed_offset)

    def begin_all(self, found: OffsetFetchResponseGroup) -> None:
        for answer in (partition for of_topic in found.topics for partition in of_topic.partitions):
            if not answer.error_code:
                self.begin(answer.partition_index, answer.committed_offset)

    def keep(self, partitions: Collection[int]) -> None:
        for partition in self.positions.keys() - partitions:
            del self.positions[partition]

    async def poll(self, connection: Connection) -> None:
        """Fetch from each partition, several times while there is more. Raises as a Reader does."""
        if not self.positions:
            return
        reader = Reader(
            name=self._name,
            topic=self._reads.topic,
            connect=_never,
            history=self._reads.history,
            positions=self.positions,
            partitions=sorted(self.positions),
            knows=self._reads.knows,
        )
        with trio.move_on_after(POLL_MAX_SECONDS):
            for _ in range(POLLS_MAX_COUNT):
                if not await self._poll_once(reader, connection):
                    return

    async def _poll_once(self, reader: Reader, connection: Connection) -> bool:
        before = dict(self.positions)
        try:
            await reader.poll(connection)
        finally:  # it may have read some when it fails
            for partition, start in before.items():
                if (end := self.positions[partition]) > start:
                    self._reads.passed(partition, start, end)
        return before != self.positions


async def _never() -> Connection:
    raise AssertionError("it reads by the connection that it is given")
