"""What a start does where several brokers share the bucket: it joins them.

head            read, or made, if this broker is the first of several (`sharing`); a checkpoint before, if this
                broker has missed too much, or has nothing
registration    an incarnation, which others know (`registering`)
the parts       that a broker beside others has: nothing of them runs yet
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.cluster.membership.leading.epoch_starts import Beginnings
from kafscale.cluster.membership.node import Endpoint
from kafscale.cluster.membership.peers.heartbeats import Connect, Heartbeats
from kafscale.cluster.membership.peers.leader_notices import Telling, Told
from kafscale.cluster.membership.peers.lease import Lease
from kafscale.cluster.membership.peers.liveness import Liveness
from kafscale.cluster.membership.peers.peer_calls import BrokerCalls
from kafscale.cluster.membership.peers.senders import Senders, introduced
from kafscale.cluster.membership.peers.store_loss import StoreLoss
from kafscale.cluster.membership.placement.balance import Balance
from kafscale.cluster.membership.placement.controller import Controller
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.membership.start.claim import LeadCheck
from kafscale.cluster.membership.start.lead import Lead, Several
from kafscale.cluster.membership.start.registration import Registration
from kafscale.cluster.membership.start.sharing import Sharing
from kafscale.cluster.membership.start.takeover import Start, open_bucket_log
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import LocalMetadataStore
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.config import Durability, Settings
from kafscale.errors import DamagedObject, DeclaredDead, Fenced, StartupError, StoreUnavailable
from kafscale.log.load import LoadMeter
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import EarlierStreams, Streams
from kafscale.store.guarded import DeletionGuard
from kafscale.store.opening.views import StoreViews

LOOK_SECONDS = 0.5  # between two looks at what others have committed


async def join(
    settings: Settings,
    views: StoreViews,
    local: LocalMetadataStore,
    endpoints: Mapping[str, Endpoint | None],
    connect: Connect | None,
) -> Lead:
    """Become one of the brokers that share the bucket, with these advertised endpoints.

    Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed.
    """
    _check_reachable(endpoints)
    start = Start(settings=settings, store=views.acknowledge, local=local)
    registration = Registration(start=start, endpoints=endpoints)
    metadata = await Sharing(start=start, views=views, registration=registration).begin()
    state = ClusterState(metadata)
    incarnation = await registration.make(metadata, state)
    check = MembershipCheck(metadata=metadata, broker_id=settings.broker_id, incarnation=incarnation)
    metadata.check_writer = check.check_known
    if connect is not None:
        connect = introduced(connect, settings.broker_id, incarnation, registration.secret)
    own_views = views.guarded(DeletionGuard(confirm_lead=check.confirm))
    journal: S3Wal | None = None
    if settings.durability is Durability.S3_WAL:
        journal = open_bucket_log(settings, own_views.acknowledge, incarnation, is_stream=True)
    return Lead(
        views=own_views,
        epoch=incarnation,
        metadata=metadata,
        journal=journal,
        earlier=EarlierStreams({}, {}),
        check=check,
        checkpointer=None,
        several=_several(settings, own_views, check, state, connect),
        watch_seconds=LOOK_SECONDS,
    )


def _several(
    settings: Settings, views: StoreViews, check: MembershipCheck, state: ClusterState, connect: Connect | None
) -> Several:
    """Make what the incarnation of `check` has beside others, with guarded views."""
    metadata, broker_id, incarnation = check.metadata, check.broker_id, check.incarnation
    writer, calls, meter = PlacementWriter(state), BrokerCalls(state, connect), LoadMeter()
    liveness = Liveness(settings.broker_session_timeout_seconds)

    def revision() -> int:
        return metadata.applied.number

    def look_soon(told_revision: int) -> None:
        metadata.note_newer(told_revision)
        check.sooner.set()

    balance = Balance(
        broker_id=broker_id,
        incarnation=incarnation,
        state=state,
        liveness=liveness,
        meter=meter,
        by=settings.balance_by,
    )
    store_loss = StoreLoss(
        broker_id=broker_id,
        timeout_seconds=settings.broker_store_timeout_seconds,
        reach=views.reach,
        disowned_at=lambda: heartbeats.disowned_at,
    )
    controller = Controller(
        broker_id=broker_id,
        incarnation=incarnation,
        metadata=metadata,
        state=state,
        writer=writer,
        store=views.background,
        namespace=settings.namespace,
        liveness=liveness,
        balance=balance,
        store_loss=store_loss,
    )
    heartbeats = Heartbeats(
        broker_id=broker_id,
        incarnation=incarnation,
        state=state,
        liveness=liveness,
        connect=connect,
        revision=revision,
        look_soon=look_soon,
        load=meter.load,
        take_surplus=balance.take_surplus,
        take_silence=store_loss.heard,
    )
    return Several(
        broker_id=broker_id,
        state=state,
        writer=writer,
        beginnings=Beginnings(
            broker_id=broker_id, incarnation=incarnation, metadata=metadata, state=state, writer=writer, calls=calls
        ),
        controller=controller,
        balance=balance,
        streams=Streams(
            store=views.acknowledge,
            namespace=settings.namespace,
            incarnation=incarnation,
            alone_until=metadata.applied.epoch,
        ),
        senders=Senders(state=state, revision=revision, look_soon=look_soon),
        heartbeats=heartbeats,
        calls=calls,
        telling=Telling(broker_id=broker_id, incarnation=incarnation, calls=calls, revision=revision),
        told=Told(),
        store_loss=store_loss,
        lease=Lease(liveness, lambda: check.led_at, check.confirm, lambda: heartbeats.disowned_at),
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
