"""Where epochs begin is committed for many brokers together: each tells the controller, which commits for all.

    a partition has been found, whose epoch is not decided
        tell the controller      with those of others that wait: what comes to it during a commit is in its next one
        look at the metadata     it is there; or nobody was heard of, or did not know what that is
        commit it                by itself, where it is not there

Each commit replaces the head, so those of different brokers are made one after the other, and who is overtaken reads
the head again. When a broker dies that led a little of everything, all others have something to commit at the same
time: that took a look and a write for each of them, 5 s with a hundred.

The controller commits what the teller would have committed: only for the incarnation that leads with this epoch, and
only while nobody has decided where that begins. Who has told goes on when that is in its own metadata, and as it was
told: a word that comes late, of an earlier attempt which has found less, has it begin anew.

When all is flushed that earlier streams had of a partition, its leader says the same once more, without these streams.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress

import attrs

from kafscale.cluster.membership.peers.heartbeats import heartbeat
from kafscale.cluster.membership.peers.peer_calls import BrokerCalls
from kafscale.cluster.membership.placement.writer import Change, PlacementWriter, WantedChange
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.concurrency.sharing import Gathering
from kafscale.errors import BrokerUnavailable, DamagedObject, Fenced, KafkaError, ProtocolError, StoreError
from kafscale.formats.wal_objects import WalObject
from kafscale.log.partition.partition import Partition
from kafscale.wire.messages.brokers import BegunPartition, BrokerHeartbeatResponse, OwnHeartbeatRequest

TOLD_SECONDS = 2.0  # that the controller has to commit them; then this broker does by itself
TOLD_AT_ONCE_MAX_COUNT = 1_000  # partitions in a request, which are some 30 KiB

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class EpochStarts:
    """Commits where epochs begin of what an incarnation of broker `broker_id` leads, and of what others tell it."""

    broker_id: int
    incarnation: int
    metadata: SharedMetadataStore
    state: ClusterState
    writer: PlacementWriter
    calls: BrokerCalls
    _telling: Gathering[BegunPartition, None] = attrs.field(
        default=attrs.Factory(lambda self: Gathering(self._tell_all, TOLD_AT_ONCE_MAX_COUNT), takes_self=True),
        init=False,
    )

    async def commit(self, partition: Partition) -> bool:
        """Commit where the epoch of a partition begins that nobody finds yet, and which was not decided when it came.

        False if it is to be looked for anew: another broker leads by now, or it was committed that it begins elsewhere.
        Raises StoreError, KafkaError.
        """
        placement = self._placement(partition)
        if placement is not None:
            await self._tell(partition, partition.next_offset, _streams_of(partition, placement.recover))
        placement = self._placement(partition)
        if placement is not None and not placement.is_decided:
            await self.writer.change(*partition.partition_id, partition.leader_epoch, _at_end_of(partition))
            placement = self._placement(partition)
        begins_at_end = placement is not None and placement.is_decided_at(partition.next_offset)
        return begins_at_end and self.state.is_current(self.broker_id, self.incarnation)

    async def forget_streams(self, partition: Partition) -> None:
        """Commit that nothing is to be recovered of a partition any more. Raises StoreError, KafkaError."""

        def recovered(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, recover=())

        placement = self._placement(partition)
        if placement is not None:
            await self._tell(partition, placement.decided_offset, ())
        placement = self._placement(partition)
        if placement is not None and placement.recover:
            await self.writer.change(*partition.partition_id, partition.leader_epoch, recovered)

    def _placement(self, partition: Partition) -> Placement | None:
        """Return it, while this broker leads with this epoch."""
        placement = self.state.placement(*partition.partition_id)
        return placement if placement is not None and placement.epoch == partition.leader_epoch else None

    async def _tell(self, partition: Partition, offset: int, recover: Sequence[int]) -> None:
        """Return when the controller, if that is another one, has been told, and it was looked what became of that."""
        controller = self.state.controller
        if controller is None or controller.broker_id == self.broker_id:
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
            request = heartbeat(self.broker_id, self.incarnation, self.metadata.applied.number)
            request.begun = list(begun)
            with suppress(BrokerUnavailable, ProtocolError, KafkaError):
                await self.calls.ask(
                    controller.broker_id, request, BrokerHeartbeatResponse, within_seconds=TOLD_SECONDS
                )
            self.metadata.note_newer(self.metadata.applied.number + 1)
            with suppress(StoreError, DamagedObject, Fenced):  # which `writer` raises, or who watches that it may act
                await self.metadata.refresh()
        return [None] * len(begun)

    async def take(self, request: OwnHeartbeatRequest) -> None:
        """Commit what another broker has told, as far as it is its to decide. It finds out what has become of it."""
        changes = [
            WantedChange(each.topic_id, each.partition_index, each.leader_epoch, self._change(request, each))
            for each in request.begun
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
    """Commit where the epoch of a partition that nobody finds yet begins; False if another one leads by now.

    Of earlier streams, nobody needs those any more from which nothing is to be flushed. Raises StoreError, KafkaError.
    """
    return await writer.change(*partition.partition_id, partition.leader_epoch, _at_end_of(partition, anew=True))


def _at_end_of(partition: Partition, *, anew: bool = False) -> Change:
    """Begin behind what was found; also where it is decided that it begins elsewhere, if that is to be decided anew."""

    def decided(current: Placement, _number: int) -> Placement:
        if current.is_decided and not anew:
            return current
        return _decided(current, partition.next_offset, _streams_of(partition, current.recover))

    return decided


def _decided(current: Placement, offset: int, recover: tuple[int, ...]) -> Placement:
    return attrs.evolve(current, decided_epoch=current.epoch, decided_offset=offset, recover=recover)


def _streams_of(partition: Partition, recover: Sequence[int]) -> tuple[int, ...]:
    """Return which of these streams have what is in the tail; that of a broker alone is all epochs up to its number.

    What is in another one, of which it was said that nobody needs it, nobody else recovers any more.
    """
    epochs = {batch.file.position.epoch for batch in partition.tail.batches if isinstance(batch.file, WalObject)}
    ascending = sorted(recover)
    needed = {number for epoch in epochs for number in ascending[bisect_left(ascending, epoch) :][:1]}
    return tuple(number for number in recover if number in needed)
