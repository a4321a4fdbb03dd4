"""Sends markers that could not be in the group of the decision, until each is written or no longer needed.

Under `segment` these are all markers, otherwise those of partitions that other brokers lead (WriteTxnMarkers) or that
have no leader now. Answers of other brokers mean what they do in Kafka's `TransactionMarkerRequestCompletionHandler`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.coordinator.entries import Appended, EndEntry, InternalLog
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.ledger import MarkersToSend
from kafscale.cluster.transactions.remote_coordinators import RemoteCoordinators
from kafscale.cluster.transactions.values import Marker, end_marker, now_ms
from kafscale.concurrency.signals import Signal
from kafscale.errors import KafkaError, StorageFailed
from kafscale.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    TRANSACTION_COORDINATOR_FENCED,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    UNSUPPORTED_VERSION,
)


class MarkerFate(enum.Enum):
    WRITTEN = enum.auto()  # or not needed: tell the coordinator
    RETRY = enum.auto()  # send it again to the leader of that time
    FENCED = enum.auto()  # resign: another coordinator has written there


def marker_fate(error_code: int) -> MarkerFate:
    """Return what to do after a partition's error in a WriteTxnMarkers response."""
    # INVALID_PRODUCER_EPOCH: the partition knows a later epoch of the producer, as after an administrator's abort, so
    # nothing of this transaction is open there. Kafka leaves the transaction in PREPARE until the coordinator reloads.
    if error_code in (NONE, INVALID_PRODUCER_EPOCH, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_VERSION):
        return MarkerFate.WRITTEN
    return MarkerFate.FENCED if error_code == TRANSACTION_COORDINATOR_FENCED else MarkerFate.RETRY


logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1  # Kafka: retry.backoff.ms of a broker, 100
SENDINGS_AT_ONCE_COUNT = 64

Report = Callable[[TransactionCoordinator, MarkersToSend, frozenset[TopicPartition]], Awaitable[None]]


@attrs.define(eq=False, kw_only=True, repr=False)
class MarkerSender:
    """Writes markers. `progress` wakes when the state of a transaction may have changed."""

    internal: InternalLog
    exists: Callable[[TopicPartition], bool]
    report: Report
    resign: Callable[[TransactionCoordinator], None]
    remote: RemoteCoordinators
    progress: Signal = attrs.field(factory=Signal, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(SENDINGS_AT_ONCE_COUNT), init=False
    )

    async def send(self, coordinator: TransactionCoordinator, sending: MarkersToSend) -> None:
        """Write markers and report them to the coordinator, until all are written or it has resigned."""
        missing: Mapping[TopicPartition, Marker] = {marker.partition: marker for marker in sending.markers}
        while missing and not coordinator.is_resigned:
            async with self._limiter:
                written = await self._attempt(coordinator, missing.values())
            missing = {at: marker for at, marker in missing.items() if at not in written}
            if written:
                await self.report(coordinator, sending, frozenset(written))
                self.progress.wake()
            if missing:
                await trio.sleep(RETRY_SECONDS)
        self.progress.wake()

    async def _attempt(self, coordinator: TransactionCoordinator, markers: Collection[Marker]) -> set[TopicPartition]:
        """Return the partitions whose marker is durable now, or no longer needed."""
        waiting: dict[TopicPartition, Appended] = {}
        fates: dict[TopicPartition, MarkerFate] = {}
        for marker in markers:
            fate = self._append(marker, waiting)
            if fate is not None:
                fates[marker.partition] = fate
        async with trio.open_nursery() as nursery:
            for broker_id, theirs in self._by_leader(
                marker for marker in markers if marker.partition not in waiting
            ).items():
                nursery.start_soon(self._send_to, broker_id, theirs, fates)
            for partition, appended in waiting.items():
                try:
                    await appended.wait()
                    fates[partition] = MarkerFate.WRITTEN
                except StorageFailed as exc:
                    logger.warning("the marker for %s-%d has to be written again: %s", *attrs.astuple(partition), exc)
        if MarkerFate.FENCED in fates.values():
            self.resign(coordinator)
        return {at for at, fate in fates.items() if fate is MarkerFate.WRITTEN}

    def _by_leader(self, markers: Iterable[Marker]) -> Mapping[int, Sequence[Marker]]:
        found: dict[int, list[Marker]] = {}
        for marker in markers:
            leader = self.remote.leader(marker.partition)
            if leader is not None:
                found.setdefault(leader, []).append(marker)
        return found

    async def _send_to(
        self, broker_id: int, markers: Sequence[Marker], fates: dict[TopicPartition, MarkerFate]
    ) -> None:
        for at, error_code in (await self.remote.write_markers(broker_id, markers)).items():
            fates[at] = marker_fate(error_code)

    def _append(self, marker: Marker, waiting: dict[TopicPartition, Appended]) -> MarkerFate | None:
        """Append a marker and note it in `waiting`, or else return its fate."""
        at = marker.partition
        partition = self.internal.partition(at.topic, at.partition)
        if partition is None:
            return MarkerFate.RETRY if self.exists(at) else MarkerFate.WRITTEN
        try:
            appended = self.internal.append_group([EndEntry(partition, end_marker(marker))], now_ms())
        except KafkaError as exc:
            return marker_fate(exc.code)
        except StorageFailed:
            return MarkerFate.RETRY
        if appended is not None:
            waiting[at] = appended
        return None if appended is not None else MarkerFate.RETRY
