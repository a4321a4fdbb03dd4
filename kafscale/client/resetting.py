"""The new committed offsets of a group that is reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from kafscale.client.client import Client
from kafscale.client.consumer import EARLIEST, LATEST, list_offsets
from kafscale.client.groups import TopicPartition
from kafscale.errors import NotFound


@attrs.frozen(kw_only=True)
class Target:
    """The new position of offsets: one field is given."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None


async def all_partitions(client: Client, topics: Iterable[str], partitions: Iterable[int] = ()) -> list[TopicPartition]:
    """Return all partitions of topics, or those given. Raises NotFound for a partition that no topic has, KafkaError
    for a missing topic.
    """
    found = [await client.topic(name) for name in sorted(topics)]
    missing = set(partitions).difference(*(topic.leaders for topic in found))
    if missing:
        raise NotFound(f"--partition: none of the topics has a partition {min(missing)}")
    return [
        TopicPartition(topic.name, partition)
        for topic in found
        for partition in sorted(topic.leaders)
        if not partitions or partition in partitions
    ]


async def target_offsets(
    client: Client, wanted: list[TopicPartition], before: Mapping[TopicPartition, int], target: Target
) -> dict[TopicPartition, int]:
    """Return the new offset of each partition. A `shift` needs all of `wanted` in `before`. Raises KafkaError,
    BrokerUnavailable.
    """
    if target.earliest:
        return await _offsets_at(client, wanted, EARLIEST)
    if target.latest:
        return await _offsets_at(client, wanted, LATEST)
    if target.time_ms is not None:
        return await _offsets_at(client, wanted, target.time_ms)
    if target.shift is not None:
        return await within_logs(client, {place: before[place] + target.shift for place in wanted})
    return await within_logs(client, dict.fromkeys(wanted, target.offset or 0))


async def within_logs(client: Client, moved: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return offsets, each at the nearer end of its log if outside of it. Raises KafkaError, BrokerUnavailable."""
    earliest = await _offsets_at(client, moved, EARLIEST)
    latest = await _offsets_at(client, moved, LATEST)
    return {place: min(max(offset, earliest[place]), latest[place]) for place, offset in moved.items()}


async def _offsets_at(client: Client, wanted: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    by_topic: dict[str, dict[int, int]] = {}
    for place in wanted:
        by_topic.setdefault(place.topic, {})[place.partition] = timestamp
    return {
        TopicPartition(topic, partition): offset
        for topic, timestamps in by_topic.items()
        for partition, offset in (await list_offsets(client, topic, timestamps)).items()
    }
