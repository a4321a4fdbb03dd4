"""A start beside others registers: one commit has its incarnation, and the leader epochs of all that it leads.

It replaces an earlier incarnation of the same id. Who replaces one that ran with `--durability wal` and another data
directory waits until that one has noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from secrets import token_bytes

import attrs
import trio

import kafscale
from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.peers.lease import wait_seconds
from kafscale.cluster.membership.peers.senders import SECRET_BYTES, hash_of
from kafscale.cluster.membership.records import (
    NEXT_NUMBER_KEY,
    BrokerRecord,
    BrokerState,
    Placement,
    changed_rows,
    record_key,
)
from kafscale.cluster.membership.start.takeover import StartSteps
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.config import Durability, Settings
from kafscale.errors import Fenced, PlanOutdated
from kafscale.formats.manifest import PartitionId

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Registration:
    """The registration of one start, with its advertised endpoints. Other brokers know it by its `secret`."""

    start: StartSteps
    endpoints: Mapping[str, Endpoint | None]
    secret: bytes = attrs.field(factory=lambda: token_bytes(SECRET_BYTES), init=False)

    @property
    def _settings(self) -> Settings:
        return self.start.settings

    async def make(self, metadata: SharedMetadataStore, state: ClusterState) -> int:
        """Register, and return the incarnation. Raises Fenced, StoreError."""
        while True:
            await state.load()
            incarnation = max(state.next_number, metadata.applied.epoch + 1)
            transaction = await self.transaction(state, incarnation)
            try:
                await metadata.commit_now(transaction)
            except PlanOutdated:
                await metadata.refresh()
            else:
                break
        if state.brokers[self._settings.broker_id].unsettled:
            seconds = wait_seconds(self._settings.broker_session_timeout_seconds)
            logger.warning(
                "broker %d may be running with another data directory and --durability wal: waiting %g s for it",
                self._settings.broker_id,
                seconds,
            )
            await trio.sleep(seconds)
            await self._settle(metadata, state, incarnation)
        return incarnation

    async def _settle(self, metadata: SharedMetadataStore, state: ClusterState, incarnation: int) -> None:
        """Say that all have been waited for: a start that ends before leaves that to the next one."""
        key = record_key(self._settings.broker_id)
        while True:
            await metadata.refresh()
            own = state.brokers.get(self._settings.broker_id)
            if own is None or own.incarnation != incarnation:
                raise Fenced(f"broker {self._settings.broker_id} was replaced while it started")
            plan = PlannedFrom(revision=state.follower.revision, keys=(key,))
            settled = encode(attrs.evolve(own, unsettled=()))
            with suppress(PlanOutdated):
                await metadata.commit_now(Transaction(puts={key: settled}, planned_from=plan, essential=True))
                return

    async def transaction(self, state: ClusterState, incarnation: int) -> Transaction:
        """Replace an earlier incarnation, and lead with new epochs what that one led."""
        broker_id = self._settings.broker_id
        directory_id = await self.start.directory_id()
        previous = state.brokers.get(broker_id)
        record = BrokerRecord(
            incarnation=incarnation,
            state=BrokerState.LIVE,
            endpoints=self.endpoints,
            directory_id=directory_id,
            acknowledges_locally=self._settings.durability is Durability.WAL,
            has_stream=self._settings.durability is Durability.S3_WAL,
            rack=self._settings.rack,
            is_draining=previous is not None and previous.is_draining,
            version=kafscale.__version__,
            unsettled=() if previous is None else previous.unsettled_for(directory_id),
            secret_hash=hash_of(self.secret),
        )
        puts = {record_key(broker_id): encode(record), NEXT_NUMBER_KEY: encode(incarnation + 1)}
        led: dict[PartitionId, Placement] = {}
        for topic_id, index, each in state.led_by(broker_id):
            recover = each.recover if previous is None else each.recover_from(previous)
            led[topic_id, index] = attrs.evolve(each, epoch=incarnation, recover=recover)
        puts |= changed_rows(state.placements, led)
        plan = PlannedFrom(revision=state.follower.revision, keys=tuple(puts))
        return Transaction(puts=puts, planned_from=plan, essential=True)
