"""Tells a single broker at once of a commit that concerns it, by a heartbeat that waits for no turn.

The new leader of a partition looks at the metadata then: the partition has no leader until it has. The message carries
the partition's contents, so that the new leader need not read the bucket. This only saves time: where the message is
lost, late, or of another epoch than the committed one, the new leader reads the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.cluster.membership.peers.heartbeats import heartbeat
from kafscale.cluster.membership.peers.peer_calls import BrokerCalls
from kafscale.concurrency.signals import Signal
from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.formats.manifest import PartitionId
from kafscale.wire.messages.brokers import BrokerHeartbeatResponse, ReleasedPartition

# Partitions whose contents wait to be told, or to be taken; each is small. Of more the bucket has to tell.
TOLD_MAX_COUNT = 1_000
TOLD_MAX_BYTES = 32 << 20  # of contents that wait to be taken: a thousand times the largest of a partition


@attrs.define(eq=False, kw_only=True, repr=False)
class LeaderNotices:
    """Sends the notices of an incarnation of broker `broker_id`; `run` it. `revision` is that of the metadata, as known
    here.

    A broker that misses a notice learns of it from its next look at the metadata.
    """

    broker_id: int
    incarnation: int
    calls: BrokerCalls
    revision: Callable[[], int]
    _untold: dict[int, list[ReleasedPartition]] = attrs.field(factory=dict, init=False)
    _asking: set[int] = attrs.field(factory=set, init=False)
    _more: Signal = attrs.field(factory=Signal, init=False)

    def tell(self, broker_id: int, released: Sequence[ReleasedPartition] = ()) -> None:
        """Tell a broker to look at the metadata, and send it the contents of released partitions."""
        untold = self._untold.setdefault(broker_id, [])
        untold += released
        del untold[:-TOLD_MAX_COUNT]
        self._more.set()

    async def run(self) -> None:
        """Tell until cancelled; each broker with one request at a time, however much there is to tell."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more.clear()
                for broker_id in self._untold.keys() - self._asking:
                    self._asking.add(broker_id)
                    nursery.start_soon(self._tell, broker_id)

    async def _tell(self, broker_id: int) -> None:
        while broker_id in self._untold:
            request = heartbeat(self.broker_id, self.incarnation, self.revision())
            request.released = self._untold.pop(broker_id)
            with suppress(BrokerUnavailable, ProtocolError, KafkaError):
                await self.calls.ask(broker_id, request, BrokerHeartbeatResponse)
        self._asking.discard(broker_id)


@attrs.define(eq=False, repr=False)
class ReleasedContents:
    """Contents of partitions that other brokers have released, until the new leader takes them."""

    _released: dict[PartitionId, ReleasedPartition] = attrs.field(factory=dict, init=False)
    _size_bytes: int = attrs.field(default=0, init=False)

    def note(self, released: Iterable[ReleasedPartition]) -> None:
        """Keep what a broker has told, and of it all the newest, as far as there is room: anybody may send it."""
        for partition in released:
            partition_id = partition.topic_id, partition.partition_index
            self._remove(partition_id)
            self._released[partition_id] = partition
            self._size_bytes += len(partition.contents)
        while len(self._released) > TOLD_MAX_COUNT or self._size_bytes > TOLD_MAX_BYTES:
            self._remove(next(iter(self._released)))

    def take(self, partition_id: PartitionId, leader_epoch: int) -> bytes | None:
        """Return, once, what there was of a partition when this epoch of it began, if somebody has told that."""
        told = self._remove(partition_id)
        return told.contents if told is not None and told.leader_epoch == leader_epoch else None

    def _remove(self, partition_id: PartitionId) -> ReleasedPartition | None:
        told = self._released.pop(partition_id, None)
        if told is not None:
            self._size_bytes -= len(told.contents)
        return told
