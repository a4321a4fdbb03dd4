"""Send markers that could not be written together with the decision, until each is written or needed no more.

Under `segment`, where partitions have no log in common, these are all markers; otherwise those of partitions that other
brokers lead, which get WriteTxnMarkers, or that have no leader just now. The fate of a marker by the answer of another
broker is that of Kafka's `TransactionMarkerRequestCompletionHandler`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.coordinator import Appended, EndEntry, InternalLog
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.remote_coordinators import RemoteCoordinators
from kafscale.cluster.transactions.requests import CoordinatorOutcome, MarkersToSend, MarkersWritten
from kafscale.cluster.transactions.state_records import end_marker, now_ms
from kafscale.cluster.transactions.values import Marker
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
    """The fate of a marker that was sent."""

    WRITTEN = enum.auto()  # or not needed there: tell the coordinator by `MarkersWritten`
    RETRY = enum.auto()  # to the leader of the partition by then
    FENCED = enum.auto()  # another coordinator has written there: resign


def marker_fate(error_code: int) -> MarkerFate:
    """Return what the error of one partition in a WriteTxnMarkers response means.

    INVALID_PRODUCER_EPOCH: the partition knows a later epoch of the producer, as after an administrator's abort, so
    that nothing of this transaction is open there; Kafka leaves such a transaction in PREPARE until the coordinator is
    loaded anew. For the partition of a deleted topic the sender itself counts the marker as written.
    """
    if error_code in (NONE, INVALID_PRODUCER_EPOCH, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_VERSION):
        return MarkerFate.WRITTEN
    return MarkerFate.FENCED if error_code == TRANSACTION_COORDINATOR_FENCED else MarkerFate.RETRY


logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1  # Kafka: retry.backoff.ms of a broker, 100
SENDINGS_AT_ONCE_COUNT = 64

Report = Callable[[TransactionCoordinator, Callable[[int], CoordinatorOutcome[None]]], Awaitable[None]]


@attrs.define(eq=False, kw_only=True, repr=False)
class MarkerSender:
    """Writes markers; `progress` wakes tasks that wait for a transaction to be complete."""

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
        """Write these markers, and tell the coordinator, until all of them are written or it has resigned."""
        missing: Mapping[TopicPartition, Marker] = {marker.partition: marker for marker in sending.markers}
        while missing and not coordinator.is_resigned:
            async with self._limiter:
                written = await self._attempt(coordinator, missing.values())
            missing = {at: marker for at, marker in missing.items() if at not in written}
            if written:
                await self._tell(coordinator, sending, frozenset(written))
                self.progress.wake()
            if missing:
                await trio.sleep(RETRY_SECONDS)
        self.progress.wake()

    async def _tell(
        self, coordinator: TransactionCoordinator, sending: MarkersToSend, written: frozenset[TopicPartition]
    ) -> None:
        told = MarkersWritten(
            transactional_id=sending.transactional_id,
            producer_id=sending.producer_id,
            producer_epoch=sending.producer_epoch,
            partitions=written,
        )
        await self.report(coordinator, lambda now_ms: coordinator.markers_written(told, now_ms=now_ms))

    async def _attempt(self, coordinator: TransactionCoordinator, markers: Collection[Marker]) -> set[TopicPartition]:
        """Return where markers are durable now, or needed no more."""
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
        """The markers of partitions that other brokers lead, as far as this one knows."""
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
        """Append it, and note in `waiting` what makes it durable; otherwise return what becomes of it."""
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
