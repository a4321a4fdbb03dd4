"""Starts a broker: it claims the bucket for itself, or joins the brokers that share it.

To join, it reads the head, which is made first if this broker is the first to share (`sharing`); before that it reads a
checkpoint, if it has missed too much, or has an empty data directory. Then one commit has the incarnation of this
start, and the leader epochs of all that it leads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

import attrs

from kafscale.cluster.membership.node import Endpoint, advertised_endpoints
from kafscale.cluster.membership.peers.peer_connections import Connect
from kafscale.cluster.membership.peers.senders import introduced
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.membership.start.claim import LeadCheck, SharedBucket
from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.membership.start.sharing import Registration, Sharing
from kafscale.cluster.membership.start.sharing_member import SharingMember
from kafscale.cluster.membership.start.takeover import StartSteps, open_bucket_log, take_lead
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.config import Durability, Settings
from kafscale.errors import DamagedObject, DeclaredDead, Fenced, StartupError, StoreUnavailable
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import EarlierStreams
from kafscale.store.guarded import DeletionGuard
from kafscale.store.opening.probe import startup_errors
from kafscale.store.opening.views import StoreViews

__all__ = ["ClusterMember", "start_leading"]


async def start_leading(
    settings: Settings, views: StoreViews, local: LocalMetadataStore, ports: Mapping[str, int], connect: Connect | None
) -> ClusterMember:
    """Claim the bucket, or join its brokers: also without being told to where several share it already.

    `ports` are the bound ports by listener.

    Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed.
    """
    endpoints = advertised_endpoints(settings, ports)
    with startup_errors():
        if not settings.several_brokers:
            with suppress(SharedBucket):
                return await take_lead(settings, views, local, endpoints, replaces_others=False)
        return await join(settings, views, local, endpoints, connect)


logger = logging.getLogger(__name__)


async def join(
    settings: Settings,
    views: StoreViews,
    local: LocalMetadataStore,
    endpoints: Mapping[str, Endpoint | None],
    connect: Connect | None,
) -> SharingMember:
    """Become one of the brokers that share the bucket, with these advertised endpoints.

    Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed.
    """
    _check_reachable(endpoints)
    start = StartSteps(settings=settings, store=views.acknowledge, local=local)
    registration = Registration(start=start, endpoints=endpoints)
    metadata = await Sharing(start=start, views=views, registration=registration).begin()
    state = ClusterState(metadata)
    incarnation = await registration.make(metadata, state)
    check = MembershipCheck(metadata=metadata, broker_id=settings.broker_id, incarnation=incarnation)
    metadata.check_writer = check.check_known
    if connect is None:
        logger.warning(
            "no listener is secured as --inter-broker-config says: this broker can't reach others, nor tell whether "
            "they are dead; see --inter-broker-listener and --inter-broker-config"
        )
    else:
        connect = introduced(connect, settings.broker_id, incarnation, registration.secret)
    own_views = views.guarded(DeletionGuard(confirm_lead=check.confirm))
    journal: S3Wal | None = None
    if settings.durability is Durability.S3_WAL:
        journal = open_bucket_log(settings, own_views.acknowledge, incarnation, is_stream=True)
    return SharingMember(
        settings=settings,
        views=own_views,
        epoch=incarnation,
        metadata=metadata,
        journal=journal,
        earlier=EarlierStreams({}, {}),
        check=check,
        state=state,
        connect=connect,
    )


def _check_reachable(endpoints: Mapping[str, Endpoint | None]) -> None:
    """Raise StartupError unless other brokers can tell their clients where this one is."""
    for name, endpoint in endpoints.items():
        if endpoint is None:
            raise StartupError(
                f"listener {name} is bound to all addresses, and the other brokers have to tell clients one: give "
                f"--advertised-listener {name}=HOST:PORT"
            )


@attrs.define(eq=False, kw_only=True, repr=False)
class MembershipCheck(LeadCheck):
    """Looks whether an incarnation is still the one that may act as its broker."""

    metadata: SharedMetadataStore
    broker_id: int
    incarnation: int
    may_start_anew: bool = attrs.field(default=True, init=False)

    async def look_once(self) -> None:
        await self.metadata.refresh()
        await self.check_known()

    async def check_known(self) -> None:
        """Look at what is known here already. Raises Fenced, StoreUnavailable if a later version has written it."""
        entry = await self.metadata.get(record_key(self.broker_id))
        try:
            record = None if entry is None else decode(BrokerRecord, entry.value)
        except DamagedObject as exc:
            raise StoreUnavailable(f"what others say of this broker can't be read here, upgrade it: {exc}") from exc
        if record is None or record.incarnation != self.incarnation:
            raise Fenced(
                f"broker {self.broker_id} was started elsewhere, or was removed: this one has been superseded; brokers "
                "that are all to run need ids of their own (--broker-id)"
            )
        if record.state is BrokerState.FENCED:
            raise DeclaredDead(f"broker {self.broker_id} was declared dead by the others, which lead what it led")
