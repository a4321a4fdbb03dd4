"""Moves the partitions of a broker whose disk is full to others, until there is room again.

A full disk ends no broker, and readers are served on. But a broker with a log of its own acknowledges nothing then, and
it changes no metadata that can wait, such as transactions of new producers, for an unknown time. Kafka takes a log
directory offline that it can't write to, and others lead its partitions. So here:

    no room for FULL_SECONDS         its record says so. Its partitions move as those of a drained broker, complete; it
                                     gets no new ones, and is the controller only if there is no other
    there was some for ROOM_SECONDS  its record says that, and it gets partitions by balance

This does not happen while the bucket is away, since nothing moves then. Nor if it would leave less than half of the
brokers, or only those of the same machine: if they share one disk, the last of them would have to lead everything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Set

import attrs
import trio

from kafscale.cluster.membership.records import BrokerRecord, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.concurrency.clocks import elapsed
from kafscale.errors import KafkaError, StorageFull, StoreError

FULL_SECONDS = 10.0  # half of what who produces is kept waiting for
ROOM_SECONDS = 60.0
LOOK_SECONDS = 1.0
AWAY_SECONDS = 10.0  # since the last look at the bucket, of which there are some in this time

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class DiskRoom:
    """Watches the disk of an incarnation of broker `broker_id`; `run` it.

    `check_metadata` raises StorageFull while there is no room for metadata that can wait, and `log_lacks_room` tells
    whether what is appended waits for room on the disk. `looked_at` tells when the bucket was looked at last.
    """

    broker_id: int
    incarnation: int
    state: ClusterState
    check_metadata: Callable[[], Awaitable[None]]
    log_lacks_room: Callable[[], bool]
    looked_at: Callable[[], float]
    _has_room: bool = attrs.field(default=True, init=False)
    _since: float = attrs.field(default=-math.inf, init=False)

    async def run(self) -> None:
        """Say whether there is room, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            try:
                await self._look()
            except (StoreError, KafkaError) as exc:
                logger.warning("the others can't be told now whether the disk has room: %s", exc)

    async def _look(self) -> None:
        has_room, now = await self._find_room(), trio.current_time()
        if has_room != self._has_room or elapsed() - self.looked_at() > AWAY_SECONDS:
            self._has_room, self._since = has_room, now
        if now - self._since >= (ROOM_SECONDS if has_room else FULL_SECONDS) and self._untold() is not None:
            await self.state.commit(self._plan, lambda: map(record_key, self.state.brokers))

    def _plan(self) -> Transaction | None:
        """Update the record with whether there is room; whether it may, depends on the other brokers."""
        record = self._untold()
        if record is None:
            return None
        if self._has_room:
            logger.info("the disk has room: this broker may lead partitions again")
        elif self._has_targets(record):
            logger.error("the disk is full, or a quota: others are to lead what this broker leads until there is room")
        else:
            return None
        changed = attrs.evolve(record, has_no_room=not self._has_room)
        return Transaction(puts={record_key(self.broker_id): encode(changed)})

    def _untold(self) -> BrokerRecord | None:
        """Return this broker's record if it says otherwise."""
        record = self.state.brokers.get(self.broker_id)
        if record is None or record.incarnation != self.incarnation or record.has_no_room is not self._has_room:
            return None
        return record

    async def _find_room(self) -> bool:
        try:
            await self.check_metadata()
        except StorageFull:
            return False
        return not self.log_lacks_room()

    def _has_targets(self, own: BrokerRecord) -> bool:
        live = self.state.live()
        targets = [record for broker_id, record in live.items() if broker_id != self.broker_id and record.may_lead]
        return 2 * len(targets) >= len(live) and any(not _hosts(own) & _hosts(record) for record in targets)


def _hosts(record: BrokerRecord) -> Set[str]:
    return {endpoint.host for endpoint in record.endpoints.values() if endpoint is not None}
