"""Decisions of operators: drain, give up or remove brokers, and move partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.membership.placement.writer import Change, PlacementWriter
from kafscale.cluster.membership.records import (
    BrokerRecord,
    BrokerState,
    Placement,
    broker_prefix,
    changed_rows,
    record_key,
)
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.topic_records import Topic
from kafscale.errors import KafkaError, StoreError
from kafscale.wire.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REQUEST,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
)


@attrs.frozen(eq=False, repr=False)
class BrokerAdministration:
    """Changes registrations of brokers; each change is a commit of the metadata.

    `catch_up` returns when all earlier commits of other brokers are known here: the operator may have seen one of them
    stop a moment ago. Methods raise KafkaError BROKER_ID_NOT_REGISTERED, and REQUEST_TIMED_OUT if the store is away.
    """

    state: ClusterState
    catch_up: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    @property
    def records(self) -> Mapping[int, BrokerRecord]:
        """Return the registered brokers by id. A lone broker is not registered."""
        return self.state.registered

    async def set_draining(self, broker_id: int, is_draining: bool) -> None:
        """Set the draining flag. Raises KafkaError INVALID_REQUEST if no other broker may lead."""

        def change() -> Transaction | None:
            record = self._record(broker_id)
            if record.is_draining == is_draining:
                return None
            if is_draining and not any(
                other_id != broker_id and other.may_lead for other_id, other in self.state.live().items()
            ):
                raise KafkaError(
                    INVALID_REQUEST,
                    f"Broker {broker_id} can't be drained: no other broker runs that may lead what it leads. Start "
                    "one, or have one that is drained lead again (kafscale brokers undrain).",
                )
            return Transaction(puts={record_key(broker_id): encode(attrs.evolve(record, is_draining=is_draining))})

        await self._commit(change)

    async def give_up(self, broker_id: int) -> None:
        """Fence a broker that does not serve, so that others get its partitions; records only on its disk are lost.

        The controller assigns its partitions when the broker has had the time to notice. Raises KafkaError
        INVALID_REQUEST if it serves.
        """

        def change() -> Transaction | None:
            record = self._record(broker_id)
            if record.state is BrokerState.LIVE:
                raise KafkaError(INVALID_REQUEST, f"Broker {broker_id} serves: drain it, and nothing is lost.")
            if record.is_given_up:
                return None
            given_up = attrs.evolve(record, state=BrokerState.FENCED, is_given_up=True)
            return Transaction(puts={record_key(broker_id): encode(given_up)})

        await self._commit(change)

    async def unregister(self, broker_id: int) -> None:
        """Forget a broker. Raises KafkaError INVALID_REQUEST if it serves or leads something."""

        def change() -> Transaction:
            record = self._record(broker_id)
            if record.state is BrokerState.LIVE:
                raise KafkaError(INVALID_REQUEST, f"Broker {broker_id} serves: stop it before it is removed.")
            led_count = sum(1 for _ in self.state.led_by(broker_id))
            if led_count:
                raise KafkaError(
                    INVALID_REQUEST,
                    f"Broker {broker_id} can't be removed: {led_count} partitions wait for it. Start it and drain it, "
                    "or have others lead them, where what it has not uploaded is lost (kafscale brokers replace).",
                )
            puts = changed_rows(self.state.placements, self.state.without_targets([broker_id]))
            return Transaction(puts=puts, delete_prefixes=(broker_prefix(broker_id),))

        await self._commit(change)

    def _record(self, broker_id: int) -> BrokerRecord:
        record = self.state.brokers.get(broker_id)
        if record is None:
            raise KafkaError(BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not registered.")
        return record

    async def _commit(self, change: Callable[[], Transaction | None]) -> None:
        await self.catch_up()
        try:
            await self.state.commit(change, self.state.broker_keys)
        except StoreError as exc:
            raise KafkaError(REQUEST_TIMED_OUT, f"The metadata can't be changed just now, try again: {exc}") from exc


@attrs.frozen(eq=False, repr=False)
class Mover:
    """Moves partitions to other brokers: a target is named, and the leader hands over when it sees that.

    `move`, `stay` and `release` return when the change is committed; the hand-over follows. They raise KafkaError
    REQUEST_TIMED_OUT if the leader changes meanwhile or the store is away. For a lone broker they do nothing.
    """

    state: ClusterState
    writer: PlacementWriter

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        """Assign a partition to brokers; the first is to lead it whenever it can. Replaces an earlier assignment."""

        def assign(current: Placement, _number: int) -> Placement:
            target = None if current.leader == replicas[0] else replicas[0]
            return attrs.evolve(current, target=target, replicas=tuple(replicas))

        await self._change(topic, index, assign)

    async def stay(self, topic: Topic, index: int) -> None:
        """Cancel the move of a partition, and assign it to its present leader."""

        def keep(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, target=None, replicas=(current.leader,) * topic.replication_factor)

        await self._change(topic, index, keep)

    async def release(self, topic: Topic, index: int) -> None:
        """Remove the assignment of a partition, so that balance chooses its leader."""
        await self._change(topic, index, lambda current, _number: attrs.evolve(current, replicas=()))

    async def _change(self, topic: Topic, index: int, change: Change) -> None:
        if not self.state.registered:
            return  # a lone broker leads every partition
        placement = self.state.placement(topic.topic_id, index)
        if placement is None:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION)
        if change(placement, 0) == placement:
            return
        try:
            is_made = await self.writer.change(topic.topic_id, index, placement.epoch, change)
        except StoreError as exc:
            raise KafkaError(REQUEST_TIMED_OUT, f"The metadata can't be changed just now, try again: {exc}") from exc
        if not is_made:
            raise KafkaError(REQUEST_TIMED_OUT, f"{topic.name}-{index} has got another leader meanwhile: try again.")

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when `is_so` returns True; it is called again whenever brokers or placements change."""
        await self.state.wait_until(is_so)

    def targets(self, topic: Topic) -> Mapping[int, int]:
        """Return the partitions of a topic that are on their way to another broker, each with that broker."""
        row = self.state.placements.get(topic.topic_id, ())
        return {index: placement.target for index, placement in enumerate(row) if placement.target is not None}

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        """Return the assigned partitions of a topic, each with its brokers."""
        row = self.state.placements.get(topic.topic_id, ())
        return {index: placement.replicas for index, placement in enumerate(row) if placement.replicas}
