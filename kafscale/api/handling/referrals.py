"""Consumers that this broker has sent to another one in their rack.

That one may be unable to serve them: it does not reach the bucket, or is of a version that can't. Then they come back
at once, and are served here for a while instead of being sent to and fro.
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.api.handling.calls import Peer
from kafscale.formats.manifest import PartitionId

BACK_SECONDS = 30.0  # who comes back so soon was not served there; Kafka's consumers look again after five minutes
STAY_SECONDS = 300.0


@attrs.define(eq=False, repr=False)
class _Referral:
    sent_at: float = -math.inf
    stays_until: float = -math.inf


@attrs.define(eq=False, repr=False)
class Referrals:
    """Remembers what each connection was told of which partition."""

    _told: WeakKeyDictionary[Peer, dict[PartitionId, _Referral]] = attrs.field(factory=WeakKeyDictionary, init=False)

    def may_send(self, peer: Peer, partition_id: PartitionId) -> bool:
        """Tell whether a consumer is to be sent to another broker; it is remembered as sent."""
        now = trio.current_time()
        referral = self._told.setdefault(peer, {}).setdefault(partition_id, _Referral())
        if now < referral.stays_until:
            return False
        if now < referral.sent_at + BACK_SECONDS:
            referral.stays_until = now + STAY_SECONDS
            return False
        referral.sent_at = now
        return True
