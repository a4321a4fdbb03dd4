"""Clients that ask brokers about times and leader epochs, and write the answers down."""

from __future__ import annotations

import time

import attrs

from kafscale.client.connection import Connection
from kafscale.wire.messages.records import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.devtools.history.history import History
from tests.devtools.world.producers import CLOCK_SKEW_MAX_MS
from tests.devtools.world.workload import Repeating, Topic, ask_offset, was_done

MAX_TIMESTAMP = -3  # ListOffsets' name of it (KIP-734)
EPOCHS_COUNT = 12  # more than a short history of a topic has
LOOK_BACK_MAX_MS = 2 * CLOCK_SKEW_MAX_MS


@attrs.define(eq=False, kw_only=True)
class _Asking(Repeating):
    topic: Topic
    history: History

    async def _ask_end(self, connection: Connection, index: int, *, epoch: int, leader_epoch: int | None) -> None:
        """Ask for the end of an epoch; named with the leader's epoch, the end is final."""
        began = self.history.now()
        partition = OffsetForLeaderPartition(partition=index, leader_epoch=epoch)
        if leader_epoch is not None:
            partition.current_leader_epoch = leader_epoch
        topic = OffsetForLeaderTopic(topic=self.topic.name, partitions=[partition])
        response = await connection.request(OffsetForLeaderEpochRequest(topics=[topic]), OffsetForLeaderEpochResponse)
        answer = response.topics[0].partitions[0]
        where = self.topic.partition_name(index)
        if was_done(answer.error_code, where) and answer.end_offset >= 0:
            is_final = leader_epoch is not None
            told = epoch if is_final else answer.leader_epoch
            self.history.saw_epoch_end(where, told, end_offset=answer.end_offset, began=began, is_final=is_final)


@attrs.define(eq=False, kw_only=True)
class Asker(_Asking):
    """Asks by ListOffsets for the first record of a time and the latest one, and by OffsetForLeaderEpoch for an
    epoch's end.
    """

    async def _step(self, connection: Connection) -> None:
        index = self.random.randrange(self.topic.partition_count)
        await self.random.choice([self._ask_time, self._ask_latest, self._ask_epoch])(connection, index)

    async def _ask_time(self, connection: Connection, index: int) -> None:
        wanted_ms = time.time_ns() // 1_000_000 - self.random.randint(0, LOOK_BACK_MAX_MS)
        began = self.history.now()
        answer = await ask_offset(connection, self.topic, index, wanted_ms)
        if answer is not None:
            self.history.found_by_time(
                self.topic.partition_name(index),
                wanted_ms,
                offset=answer.offset,
                timestamp_ms=answer.timestamp,
                began=began,
            )

    async def _ask_latest(self, connection: Connection, index: int) -> None:
        began = self.history.now()
        answer = await ask_offset(connection, self.topic, index, MAX_TIMESTAMP)
        if answer is not None:
            where = self.topic.partition_name(index)
            self.history.found_latest(where, offset=answer.offset, timestamp_ms=answer.timestamp, began=began)

    async def _ask_epoch(self, connection: Connection, index: int) -> None:
        epoch = self.random.randint(0, EPOCHS_COUNT)
        await self._ask_end(connection, index, epoch=epoch, leader_epoch=None)


@attrs.define(eq=False, kw_only=True)
class EpochAsker(_Asking):
    """Asks each leader for the end of the epoch before its own, which is final. It names the leader's epoch of the
    metadata.
    """

    async def _step(self, connection: Connection) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic.name)])
        (found,) = (await connection.request(request, MetadataResponse)).topics
        for partition in found.partitions:
            if partition.leader_id >= 0:
                before = partition.leader_epoch - 1
                await self._ask_end(
                    connection, partition.partition_index, epoch=before, leader_epoch=partition.leader_epoch
                )
