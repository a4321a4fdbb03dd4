"""Starts a broker: it claims the bucket for itself, or joins the brokers that share it.

To join, it brings the local metadata to the head: from a checkpoint, if it has missed too much or has an empty data
directory. Then one commit has the incarnation of this start, and new leader epochs of all partitions that it leads.

The first start with `--several-brokers` makes the bucket of a lone broker shared (`Joining`). If it is interrupted, the
next one continues; with `wal` only that of the data directory in use last, which alone may have the last records.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from contextlib import closing, suppress
from secrets import token_bytes

import attrs
import trio

import kafscale
from kafscale.cluster.membership.node import Endpoint, advertised_endpoints
from kafscale.cluster.membership.peers.lease import wait_seconds
from kafscale.cluster.membership.peers.peer_connections import SECRET_BYTES, Connect, hash_of
from kafscale.cluster.membership.records import (
    NEXT_NUMBER_KEY,
    UNDECIDED,
    BrokerRecord,
    BrokerState,
    Placement,
    changed_rows,
    record_key,
    rows_of,
)
from kafscale.cluster.membership.start.claim import (
    SEVERAL,
    Claim,
    LeadCheck,
    SharedBucket,
    claim_key,
    decode_claim,
    read_claim,
)
from kafscale.cluster.membership.start.member import ClusterMember, SharingMember
from kafscale.cluster.membership.start.recovery import directory_id, find_head
from kafscale.cluster.membership.start.takeover import StartSteps, open_bucket_log, take_lead
from kafscale.cluster.membership.start.unsharing import Unsharing
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import LocalMetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.cluster.registries.topic_configs import BrokerDefaults
from kafscale.cluster.registries.topic_records import TOPICS, read_topic
from kafscale.config import Durability, Settings
from kafscale.errors import (
    DamagedObject,
    DeclaredDead,
    Fenced,
    NotFound,
    PlanOutdated,
    PreconditionFailed,
    StartupError,
    StoreUnavailable,
)
from kafscale.formats.manifest import PartitionId
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.metadata_head import NONCE_BYTES, Head, HeadEntry, decode_head, encode_head, head_key
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import EarlierStreams
from kafscale.store.guarded import DeletionGuard
from kafscale.store.opening.probe import startup_errors
from kafscale.store.opening.views import StoreViews
from kafscale.store.version_writer import VersionWriter

__all__ = ["ClusterMember", "start_leading"]


async def start_leading(
    settings: Settings, views: StoreViews, local: LocalMetadataStore, ports: Mapping[str, int], connect: Connect | None
) -> ClusterMember:
    """Claim the bucket; join its brokers with --several-brokers, or if they share it already.

    `ports` are the bound ports by listener. Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed.
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
    """Join the brokers of the bucket. Raises StartupError, DamagedObject, Fenced, StoreError, StorageFailed."""
    _check_reachable(endpoints)
    joining = Joining(settings=settings, views=views, local=local, endpoints=endpoints)
    metadata = await joining.begin()
    state = ClusterState(metadata, settings.broker_id)
    incarnation = await joining.register(metadata, state)
    check = MembershipCheck(metadata=metadata, broker_id=settings.broker_id, incarnation=incarnation)
    metadata.check_writer = check.check_known
    if connect is None:
        logger.warning(
            "no listener is secured as --inter-broker-config says: this broker can't reach others, nor tell whether "
            "they are dead; see --inter-broker-listener and --inter-broker-config"
        )
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
    """Raise StartupError unless every listener has an address that other brokers can tell their clients."""
    for name, endpoint in endpoints.items():
        if endpoint is None:
            raise StartupError(
                f"listener {name} is bound to all addresses, and the other brokers have to tell clients one: give "
                f"--advertised-listener {name}=HOST:PORT"
            )


@attrs.define(eq=False, kw_only=True, repr=False)
class MembershipCheck(LeadCheck):
    """Looks whether an incarnation may still act as its broker."""

    may_start_anew = True
    metadata: SharedMetadataStore
    broker_id: int
    incarnation: int

    async def look_once(self) -> None:
        await self.metadata.refresh()
        await self.check_known()

    async def check_known(self) -> None:
        """Look at the local metadata. Raises Fenced, StoreUnavailable if a later version has written the record."""
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


HEAD_WAIT_SECONDS = 10.0  # for brokers that are started at the same time, the first time
LOOK_SECONDS = 0.5  # between two looks whether another one has made the head


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Joining(StartSteps):
    """The steps of a start that joins the brokers of the bucket, or shares it first: `begin`, then `register`.

    `endpoints` are the advertised ones. Other brokers know this start by its `secret`.
    """

    endpoints: Mapping[str, Endpoint | None]
    secret: bytes = attrs.field(factory=lambda: token_bytes(SECRET_BYTES), init=False)

    # ---- registration ----------------------------------------------------------------------------------------------

    async def register(self, metadata: SharedMetadataStore, state: ClusterState) -> int:
        """Commit the registration, and return the incarnation. Raises Fenced, StoreError."""
        while True:
            await state.load()
            incarnation = max(state.next_number, metadata.applied.epoch + 1)
            transaction = await self._registration(state, incarnation)
            try:
                await metadata.commit_now(transaction)
            except PlanOutdated:
                await metadata.refresh()
            else:
                break
        state.incarnation, state.secret = incarnation, self.secret
        if state.brokers[self.settings.broker_id].unsettled:
            seconds = wait_seconds(self.settings.broker_session_timeout_seconds)
            logger.warning(
                "broker %d may be running with another data directory and --durability wal: waiting %g s for it",
                self.settings.broker_id,
                seconds,
            )
            await trio.sleep(seconds)
            await self._settle(metadata, state)
        return incarnation

    async def _settle(self, metadata: SharedMetadataStore, state: ClusterState) -> None:
        """Record that this start has waited; one that ends before leaves the wait to the next."""
        key = record_key(self.settings.broker_id)
        while True:
            await metadata.refresh()
            if (own := state.own) is None:
                raise Fenced(f"broker {self.settings.broker_id} was replaced while it started")
            plan = PlannedFrom(revision=state.follower.revision, keys=(key,))
            settled = encode(attrs.evolve(own, unsettled=()))
            with suppress(PlanOutdated):
                await metadata.commit_now(Transaction(puts={key: settled}, planned_from=plan, essential=True))
                return

    async def _registration(self, state: ClusterState, incarnation: int) -> Transaction:
        """Replace an earlier incarnation, and lead its partitions with new epochs."""
        broker_id = self.settings.broker_id
        own_directory_id = await directory_id(self.local)
        previous = state.brokers.get(broker_id)
        record = BrokerRecord(
            incarnation=incarnation,
            state=BrokerState.LIVE,
            endpoints=self.endpoints,
            directory_id=own_directory_id,
            acknowledges_locally=self.settings.durability is Durability.WAL,
            has_stream=self.settings.durability is Durability.S3_WAL,
            rack=self.settings.rack,
            is_draining=previous is not None and previous.is_draining,
            version=kafscale.__version__,
            unsettled=() if previous is None else previous.unsettled_for(own_directory_id),
            secret_hash=hash_of(self.secret),
        )
        puts = {record_key(broker_id): encode(record), NEXT_NUMBER_KEY: encode(incarnation + 1)}
        led: dict[PartitionId, Placement] = {}
        for topic_id, index, placement in state.led_by(broker_id):
            recover = placement.recover if previous is None else placement.recover_from(previous)
            led[topic_id, index] = attrs.evolve(placement, epoch=incarnation, recover=recover)
        puts |= changed_rows(state.placements, led)
        plan = PlannedFrom(revision=state.follower.revision, keys=tuple(puts))
        return Transaction(puts=puts, planned_from=plan, essential=True)

    # ---- the shared metadata ---------------------------------------------------------------------------------------

    async def begin(self) -> SharedMetadataStore:
        """Bring the local store to the head, which is made first if it is missing. Raises as `join`, but not Fenced."""
        while True:
            with suppress(NotFound):
                return await SharedMetadataStore.join(self.local, self.store, self.settings.namespace)
            try:
                await self._make_head_unless_others_do()
            except (Fenced, SharedBucket, PreconditionFailed) as exc:  # the last: both write the first checkpoint
                logger.info("another broker is started as the first of several at this moment: %s", exc)
                await trio.sleep(random.uniform(0, LOOK_SECONDS))

    async def _make_head_unless_others_do(self) -> None:
        ending = Unsharing(store=self.store, namespace=self.settings.namespace, local=self.local)
        await ending.finish()
        other = await self._other_directory()
        with trio.move_on_after(HEAD_WAIT_SECONDS):
            while other is not None:
                await trio.sleep(LOOK_SECONDS)  # its broker may be starting at this moment, as the first
                head = await find_head(self.store, self.settings.namespace)
                if head is not None and head.claim is None:
                    return
                other = await self._other_directory()
        if other is not None:
            raise StartupError(
                f"broker {other.broker_id} ran with --durability wal and another data directory, which may have what "
                "the bucket has not: start that one first with --several-brokers; if its directory is lost, start this "
                "one once without that option, and it goes on from the bucket"
            )
        await self._make_head()

    async def _other_directory(self) -> Claim | None:
        """Return the claim of a broker whose data directory, another one, may have records that the bucket lacks."""
        try:
            current, _ = await read_claim(self.store, self.settings.namespace)
        except NotFound:
            return None
        return current if current.unsettled_for(await directory_id(self.local)) else None

    async def _make_head(self) -> None:
        epoch, versions = await self._end_claims()
        position = WalPosition(epoch, 0)
        with closing(Checkpointer(versions=versions, local=self.local, position=lambda: position)) as checkpointer:
            await checkpointer.write()
        registration = await self._first_registration(epoch + 1)
        head = Head(epoch, 0, (HeadEntry(token_bytes(NONCE_BYTES), encode_transaction(registration)),))
        with suppress(PreconditionFailed):  # another broker was faster, with the same metadata
            await self._put_head(head)
        logger.info("several brokers can share the bucket from now on")

    async def _put_head(self, head: Head) -> None:
        """Write the head of a new cluster, or replace one that has ended. Raises PreconditionFailed."""
        key = head_key(self.settings.namespace)
        try:
            found = await self.store.get(key)
        except NotFound:
            await self.store.put_if_absent(key, encode_head(head))
            return
        ended = decode_head(key, found.data).claim
        if ended is None or decode_claim(key, ended).epoch >= head.epoch:
            raise PreconditionFailed(f"{key} is that of another cluster, or a later one")
        await self.store.put_if_match(key, encode_head(head), found.etag)

    async def _end_claims(self) -> tuple[int, VersionWriter]:
        """Replace the claim of a lone broker by one that no lone broker can follow, and recover the metadata.

        Raises Fenced if another broker has claimed the bucket meanwhile.
        """
        namespace = self.settings.namespace
        with suppress(NotFound):
            current, _ = await read_claim(self.store, namespace)
            if current.is_of_several:
                epoch = current.epoch - SEVERAL
                versions, _ = await self.recover(epoch, ignores_later=True)
                return epoch, versions
        own = (await self.claim()).claim
        versions, _ = await self.recover(own.epoch)
        current, etag = await read_claim(self.store, namespace)
        if current.nonce == own.nonce:
            last = attrs.evolve(own, epoch=own.epoch + SEVERAL)
            with suppress(PreconditionFailed):
                await self.store.put_if_match(claim_key(namespace), [encode(last)], etag)
                return own.epoch, versions
        raise Fenced(f"another broker has replaced {claim_key(namespace)}")

    async def _first_registration(self, incarnation: int) -> Transaction:
        """Lead every topic, and recover it from the log of the lone broker."""
        settings, state = self.settings, ClusterState(self.local)
        transaction = await self._registration(state, incarnation)
        state.follower.close()
        puts = dict(transaction.puts)
        first = Placement(settings.broker_id, incarnation, UNDECIDED, 0, recover=(incarnation - 1,))
        defaults = BrokerDefaults.of(settings)
        for entry in await self.local.list(TOPICS):
            topic = read_topic(entry.key.removeprefix(TOPICS), entry.value, defaults)
            row = [first] * topic.partition_count
            puts |= rows_of(topic.topic_id, row, range(topic.partition_count))
        return Transaction(puts=puts)
