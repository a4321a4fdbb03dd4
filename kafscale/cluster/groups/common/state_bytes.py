"""What the state of consumer groups takes in memory, against one bound for all of them: `--group-state-bytes`.

Sizes are estimates: the bytes that clients have sent, and for each thing what its objects take beside them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import attrs

from kafscale.cluster.groups.common.events import GroupProtocol, Join
from kafscale.cluster.groups.common.records import OffsetAndMetadata
from kafscale.metrics import Metrics

logger = logging.getLogger(__name__)

TELL_FULL_EVERY_SECONDS = 60.0
GROUP_BYTES = 2048  # beside its id, members and offsets
MEMBER_BYTES = 1024
PENDING_MEMBER_BYTES = 512
PROTOCOL_BYTES = 128
OFFSET_BYTES = 256


@attrs.define(eq=False, repr=False)
class GroupStateBytes:
    """What is used of it. Nothing is refused here: what was stored before a restart is loaded whatever it takes."""

    max_bytes: float = math.inf
    used_bytes: int = attrs.field(default=0, init=False)
    _told_full_at: float = attrs.field(default=-math.inf, init=False)

    def register(self, metrics: Metrics) -> None:
        """Show what is used to whoever scrapes."""
        help = "Of --group-state-bytes, what consumer groups take."
        metrics.gauge("kafscale_group_state_bytes", help, lambda: self.used_bytes)

    def has_room(self, more_bytes: int) -> bool:
        """Tell whether the state may grow by so much. It may always shrink."""
        return more_bytes <= 0 or self.used_bytes + more_bytes <= self.max_bytes

    def has_room_or_say_so(self, more_bytes: int, *, now_seconds: float) -> bool:
        """Tell whether the state may grow by so much; if not, the log says so, once a minute."""
        if self.has_room(more_bytes):
            return True
        if now_seconds - self._told_full_at >= TELL_FULL_EVERY_SECONDS:
            self._told_full_at = now_seconds
            logger.warning(
                "the state of consumer groups takes %d bytes, and --group-state-bytes allows %d: "
                "new members and offsets are refused until others have expired or been deleted",
                *(self.used_bytes, self.max_bytes),
            )
        return False

    def change(self, by_bytes: int) -> None:
        """The state has grown, or shrunk."""
        self.used_bytes += by_bytes


def protocols_bytes(protocols: Iterable[GroupProtocol]) -> int:
    """Return how many bytes what a member says about itself takes."""
    return sum(PROTOCOL_BYTES + len(protocol.name) + len(protocol.metadata) for protocol in protocols)


def join_bytes(join: Join) -> int:
    """Return how many bytes a member that joins like this will take, before it has an assignment."""
    return MEMBER_BYTES + len(join.client_id) + len(join.group_instance_id or "") + protocols_bytes(join.protocols)


def offset_bytes(offset: OffsetAndMetadata | None) -> int:
    """Return how many bytes a committed offset takes; none takes nothing."""
    return 0 if offset is None else OFFSET_BYTES + len(offset.metadata)
