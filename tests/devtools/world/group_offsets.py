"""Commits and look-ups of a group's offsets in one topic, and a client that makes both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
)
from tests.devtools.history.history import History
from tests.devtools.world.workload import PAUSE_MAX_SECONDS, Connect, Topic, reconnecting, was_done


async def fetch_offsets(
    connection: Connection,
    group: str,
    topic: Topic,
    partitions: Sequence[int] | None = None,
    *,
    by_topic_id: bool = False,
    require_stable: bool = False,
    **member: Any,
) -> OffsetFetchResponseGroup:
    """Ask for committed offsets, by default of all partitions; `member` has a member's id and epoch."""
    indexes = list(range(topic.partition_count) if partitions is None else partitions)
    wanted = OffsetFetchRequestTopic(name=topic.name, topic_id=topic.topic_id, partition_indexes=indexes)
    groups = [OffsetFetchRequestGroup(group_id=group, topics=[wanted], **member)]
    request = OffsetFetchRequest(groups=groups, require_stable=require_stable)
    version = OffsetFetchRequest.MAX_VERSION if by_topic_id else None
    return (await (await connection.send(request, OffsetFetchResponse, version=version)).wait()).groups[0]


def partitions_of(found: OffsetFetchResponseGroup) -> list[OffsetFetchResponsePartition]:
    return [partition for topic in found.topics for partition in topic.partitions]


def note_offsets(history: History, group: str, topic: Topic, found: OffsetFetchResponseGroup) -> None:
    for answer in partitions_of(found):
        if not answer.error_code:
            history.fetched_commit(group, topic.partition_name(answer.partition_index), answer.committed_offset)


async def commit_offsets(
    connection: Connection,
    group: str,
    topic: Topic,
    offsets: Mapping[int, int],
    *,
    by_topic_id: bool = False,
    **member: Any,
) -> Mapping[int, int]:
    """Commit an offset of each partition; returns their error codes. `member` are fields of the request."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in offsets.items()
    ]
    wanted = OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
    request = OffsetCommitRequest(group_id=group, topics=[wanted], **{"member_id": "", **member})
    version = OffsetCommitRequest.MAX_VERSION if by_topic_id else None
    response = await (await connection.send(request, OffsetCommitResponse, version=version)).wait()
    return {answer.partition_index: answer.error_code for answer in response.topics[0].partitions}


@attrs.define(eq=False, kw_only=True)
class Committer:
    """Commits growing offsets of one group, and asks for the committed one after each reconnection.

    `by_topic_id`: topics of the same name do not share offsets.
    """

    group: str
    topic: Topic
    connect: Connect
    history: History
    random: Random
    stopping: trio.Event
    pause_max_seconds: float = 4 * PAUSE_MAX_SECONDS
    by_topic_id: bool = False
    _offset: int = attrs.field(default=0, alias="first_offset")

    async def run(self) -> None:
        await reconnecting(self.connect, self._use, while_true=lambda: not self.stopping.is_set())

    async def check(self) -> None:
        async with aclosing(await self.connect()) as connection:
            await self._fetch(connection)

    async def _use(self, connection: Connection) -> None:
        await self._fetch(connection)
        while not self.stopping.is_set():
            await self._commit(connection)
            await trio.sleep(self.random.uniform(0, self.pause_max_seconds))

    async def _commit(self, connection: Connection) -> None:
        self._offset += 1
        offsets = dict.fromkeys(range(self.topic.partition_count), self._offset)
        for index in offsets:
            self.history.committing(self.group, self.topic.partition_name(index), self._offset)
        codes = await commit_offsets(connection, self.group, self.topic, offsets, by_topic_id=self.by_topic_id)
        for index, code in codes.items():
            if was_done(code, f"commit of group {self.group}"):
                self.history.committed(self.group, self.topic.partition_name(index), self._offset)

    async def _fetch(self, connection: Connection) -> None:
        found = await fetch_offsets(connection, self.group, self.topic, by_topic_id=self.by_topic_id)
        if not found.error_code:
            note_offsets(self.history, self.group, self.topic, found)
