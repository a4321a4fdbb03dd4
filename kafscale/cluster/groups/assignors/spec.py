"""What an assignor is told, and what it answers. It must leave no partition of a subscribed topic without a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from kafscale.cluster.groups.assignors.partitions import NO_PARTITIONS, Partitions


@attrs.frozen(kw_only=True)
class MemberSpec:
    """A member: topics by id, and what it was to have before. As in Kafka 4.1 no assignor looks at the rack."""

    instance_id: str | None = None
    rack_id: str | None = None
    topic_ids: frozenset[bytes]
    previous: Partitions = NO_PARTITIONS


@attrs.frozen(kw_only=True)
class GroupSpec:
    """A group: members by id, and the number of partitions of each topic that anybody subscribes to.

    No partition is in the previous assignment of two members, and none is there that does not exist.
    """

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        """All members subscribe to the same topics."""
        return len({member.topic_ids for member in self.members.values()}) <= 1


Assignor: TypeAlias = Callable[[GroupSpec], Mapping[str, Partitions]]
