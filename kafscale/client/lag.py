"""Lags of groups: the distance of committed offsets from the ends of the logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from kafscale.client.client import Client
from kafscale.client.consumer import EARLIEST, LATEST
from kafscale.client.groups import TopicPartition, committed_offsets
from kafscale.client.many import offsets_of_groups, offsets_of_topics
from kafscale.errors import KafkaError
from kafscale.wire.client_rules import lag

ONE_BY_ONE_MAX_COUNT = 50  # groups that a broker before Kafka 3.0 is asked for, each alone


@attrs.frozen(kw_only=True)
class GroupPosition:
    """A committed offset between the ends of its log; these are None if no leader told them."""

    committed: int | None
    start: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.start is None or self.end is None:
            return None
        return lag(self.committed, log_start_offset=self.start, end_offset=self.end)


@attrs.frozen
class GroupLag:
    """The positions of a group by partition."""

    positions: Mapping[TopicPartition, GroupPosition]

    @property
    def total(self) -> int:
        """Sum of the known lags."""
        return sum(position.lag or 0 for position in self.positions.values())


async def group_lags(client: Client, groups: Sequence[str]) -> dict[str, GroupLag]:
    """Return the lag of each group whose coordinator answers. Raises KafkaError, BrokerUnavailable."""
    told = await offsets_of_groups(client, groups)
    committed: dict[str, Mapping[TopicPartition, int]] = {
        group: {TopicPartition(*at): offset for at, offset in offsets.items()} for group, offsets in told.items()
    }
    if not told:
        for group in groups[:ONE_BY_ONE_MAX_COUNT]:
            try:
                committed[group] = await committed_offsets(client, group)
            except KafkaError:
                continue
    return await lags_of(client, committed)


async def lags_of(
    client: Client,
    committed: Mapping[str, Mapping[TopicPartition, int]],
    assigned: Collection[TopicPartition] = (),
) -> dict[str, GroupLag]:
    """Return the lag of each group from its committed offsets. All `assigned` partitions are in each group's positions.
    Raises KafkaError, BrokerUnavailable.
    """
    names = {place.topic for offsets in committed.values() for place in offsets}.union(
        place.topic for place in assigned
    )
    topics = (await client.metadata(sorted(names))).topics if names else []
    starts = await offsets_of_topics(client, topics, EARLIEST)
    ends = await offsets_of_topics(client, topics, LATEST)

    def position(place: TopicPartition, offset: int | None) -> GroupPosition:
        at = place.topic, place.partition
        return GroupPosition(committed=offset, start=starts.get(at), end=ends.get(at))

    return {
        group: GroupLag({place: position(place, offsets.get(place)) for place in sorted({*offsets, *assigned})})
        for group, offsets in committed.items()
    }
