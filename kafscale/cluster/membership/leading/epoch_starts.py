"""Commits the offsets at which leader epochs begin, for many brokers together: each tells the controller.

    a partition has been recovered, and the start of its epoch is not decided
        tell the controller      together with others that wait: starts that come during a commit are in the next one
        look at the metadata     the start is there; or the controller did not hear it, or is of an earlier version
        commit it here           if it is not there

Each commit replaces the head, so commits of different brokers are made one after the other, and an overtaken broker
reads the head again. When a broker dies that led a little of every topic, all others have something to commit at once:
a look and a write for each of them took 5 s with a hundred.

The controller commits as the sender would: only for the incarnation that leads with this epoch, and only while the
start is not decided. The sender goes on when its own metadata has the start as it was sent. If a late message of an
earlier attempt, which had found less, was committed instead, the sender recovers the partition again.

When all records of earlier streams are flushed, the leader sends the same again, without these streams.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress

import attrs

from kafscale.cluster.membership.peers.heartbeats import heartbeat
from kafscale.cluster.membership.peers.peer_connections import BrokerCalls
from kafscale.cluster.membership.placement.writer import Change, PlacementWriter, WantedChange
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.concurrency.sharing import Gathering
from kafscale.errors import BrokerUnavailable, DamagedObject, Fenced, KafkaError, ProtocolError, StoreError
from kafscale.formats.wal_objects import WalObject
from kafscale.log.partition.partition import Partition
from kafscale.wire.messages.brokers import BegunPartition, BrokerHeartbeatResponse, OwnHeartbeatRequest

TOLD_SECONDS = 2.0  # for the controller to commit them; then this broker does by itself
TOLD_AT_ONCE_MAX_COUNT = 1_000  # partitions in a request, which are some 30 KiB

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class EpochStarts:
    """Commits the epoch starts of partitions that this broker leads, and those sent by others."""

    metadata: SharedMetadataStore
    state: ClusterState
    writer: PlacementWriter
    calls: BrokerCalls
    _telling: Gathering[BegunPartition, None] = attrs.field(
        default=attrs.Factory(lambda self: Gathering(self._tell_all, TOLD_AT_ONCE_MAX_COUNT), takes_self=True),
        init=False,
    )

    async def commit(self, partition: Partition) -> bool:
        """Commit the start of the undecided epoch of a recovered partition.

        Return False if it must be recovered again: another broker leads it, or another start was committed. Raises
        StoreError, KafkaError.
        """
        placement = self._placement(partition)
        if placement is not None:
            await self._tell(partition, partition.next_offset, _streams_of(partition, placement.recover))
        placement = self._placement(partition)
        if placement is not None and not placement.is_decided:
            await self.writer.change(*partition.partition_id, partition.leader_epoch, _at_end_of(partition))
            placement = self._placement(partition)
        begins_at_end = placement is not None and placement.is_decided_at(partition.next_offset)
        return begins_at_end and self.state.is_own_current()

    async def forget_streams(self, partition: Partition) -> None:
        """Commit that a partition needs no earlier streams any more. Raises StoreError, KafkaError."""

        def recovered(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, recover=())

        placement = self._placement(partition)
        if placement is not None:
            await self._tell(partition, placement.decided_offset, ())
        placement = self._placement(partition)
        if placement is not None and placement.recover:
            await self.writer.change(*partition.partition_id, partition.leader_epoch, recovered)

    def _placement(self, partition: Partition) -> Placement | None:
        placement = self.state.placement(*partition.partition_id)
        return placement if placement is not None and placement.epoch == partition.leader_epoch else None

    async def _tell(self, partition: Partition, offset: int, recover: Sequence[int]) -> None:
        controller = self.state.controller
        if controller is None or controller.broker_id == self.state.broker_id:
            return
        begun = BegunPartition(
            topic_id=partition.topic_id,
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            offset=offset,
            recover=list(recover),
        )
        with suppress(BrokerUnavailable):
            await self._telling.request(begun, BrokerUnavailable("who told the controller was cancelled"))

    async def _tell_all(self, begun: Sequence[BegunPartition]) -> Sequence[None]:
        controller = self.state.controller
        if controller is not None:
            request = heartbeat(self.state, self.metadata.applied.number)
            request.begun = list(begun)
            with suppress(BrokerUnavailable, ProtocolError, KafkaError):
                await self.calls.ask(
                    controller.broker_id, request, BrokerHeartbeatResponse, within_seconds=TOLD_SECONDS
                )
            self.metadata.note_newer(self.metadata.applied.number + 1)
            with suppress(StoreError, DamagedObject, Fenced):  # the writer or the watch raises them
                await self.metadata.refresh()
        return [None] * len(begun)

    async def take(self, request: OwnHeartbeatRequest) -> None:
        """Commit the starts that another broker sends and may decide."""
        changes = [
            WantedChange(
                partition.topic_id, partition.partition_index, partition.leader_epoch, self._change(request, partition)
            )
            for partition in request.begun
        ]
        try:
            await self.writer.change_all(changes)
        except (StoreError, KafkaError) as exc:
            logger.info("broker %d has to commit by itself where epochs begin: %s", request.broker_id, exc)

    def _change(self, request: OwnHeartbeatRequest, begun: BegunPartition) -> Change:
        def decided(current: Placement, _number: int) -> Placement:
            is_its_own = current.leader == request.broker_id
            if not is_its_own or not self.state.is_current(current.leader, request.broker_epoch):
                return current
            if current.is_decided and not current.is_decided_at(begun.offset):
                return current
            recover = tuple(number for number in current.recover if number in begun.recover)
            return _decided(current, begun.offset, recover)

        return decided


async def decide_begin(writer: PlacementWriter, partition: Partition) -> bool:
    """Commit the start of the epoch of a partition, also over another decided start; return False if another broker
    leads it.

    Streams without records of its tail are dropped. Raises StoreError, KafkaError.
    """
    return await writer.change(*partition.partition_id, partition.leader_epoch, _at_end_of(partition, anew=True))


def _at_end_of(partition: Partition, *, anew: bool = False) -> Change:
    """Return a change that begins the epoch behind the recovered records; with `anew` over another decided start."""

    def decided(current: Placement, _number: int) -> Placement:
        if current.is_decided and not anew:
            return current
        return _decided(current, partition.next_offset, _streams_of(partition, current.recover))

    return decided


def _decided(current: Placement, offset: int, recover: tuple[int, ...]) -> Placement:
    return attrs.evolve(current, decided_epoch=current.epoch, decided_offset=offset, recover=recover)


def _streams_of(partition: Partition, recover: Sequence[int]) -> tuple[int, ...]:
    """Return the streams among `recover` that hold records of the tail. A lone broker's stream is all epochs up to it.

    No other broker recovers records of a dropped stream.
    """
    epochs = {batch.file.position.epoch for batch in partition.tail.batches if isinstance(batch.file, WalObject)}
    ascending = sorted(recover)
    needed = {number for epoch in epochs for number in ascending[bisect_left(ascending, epoch) :][:1]}
    return tuple(number for number in recover if number in needed)
