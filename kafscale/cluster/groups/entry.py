"""The group of either protocol under one group id, with its committed offsets."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from kafscale.cluster.groups.classic.group import ClassicGroup
from kafscale.cluster.groups.consumer.group import ConsumerGroup
from kafscale.cluster.groups.offsets import GroupOffsets

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup


@attrs.define(eq=False, kw_only=True, repr=False)
class GroupEntry:
    """The group may become one of the other protocol; the offsets stay."""

    group: AnyGroup
    offsets: GroupOffsets

    @property
    def classic(self) -> ClassicGroup | None:
        """The group if it is a classic one, or only ever committed offsets."""
        return self.group if isinstance(self.group, ClassicGroup) else None

    @property
    def consumer(self) -> ConsumerGroup | None:
        """The group if it is one of Kafka 4's protocol."""
        return self.group if isinstance(self.group, ConsumerGroup) else None
