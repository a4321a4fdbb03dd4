"""Offsets of partitions by time, or at either end of the log."""

from __future__ import annotations

from collections.abc import Mapping

from kafscale.client.client import Client
from kafscale.client.connection import DEFAULT_TIMEOUT_SECONDS, Connection
from kafscale.client.isolation import IsolationLevel
from kafscale.client.retrying import STALE_LEADER, retried
from kafscale.login.failures import check
from kafscale.wire.messages.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST = -1
EARLIEST = -2
REMOTE_TIMEOUT_MS = int(DEFAULT_TIMEOUT_SECONDS * 1000)  # of a broker that looks into remote storage


@retried
async def list_offsets(
    client: Client,
    topic: str,
    timestamps: Mapping[int, int],
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[int, int]:
    """The offset for a timestamp in each partition: the first record not older, else the end of the log.

    Timestamps are milliseconds since 1970, or LATEST or EARLIEST. At READ_COMMITTED the log ends at its last stable
    offset. Raises KafkaError, BrokerUnavailable.
    """
    by_leader: dict[Connection, list[ListOffsetsPartition]] = {}
    for partition, timestamp in timestamps.items():
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        by_leader.setdefault(await client.leader(topic, partition), []).append(wanted)
    offsets = {}
    for leader, partitions in by_leader.items():
        topics = [ListOffsetsTopic(name=topic, partitions=partitions)]
        request = ListOffsetsRequest(topics=topics, timeout_ms=REMOTE_TIMEOUT_MS, isolation_level=int(isolation_level))
        response = await leader.request(request, ListOffsetsResponse)
        for each in (part for found in response.topics for part in found.partitions):
            if each.error_code in STALE_LEADER:
                client.forget(topic)
            check(each.error_code, f"partition {each.partition_index} of topic '{topic}'")
            offsets[each.partition_index] = each.offset
    newer_than_all = [partition for partition, offset in offsets.items() if offset < 0]
    if newer_than_all:
        offsets |= await list_offsets(client, topic, dict.fromkeys(newer_than_all, LATEST), isolation_level)
    return offsets
