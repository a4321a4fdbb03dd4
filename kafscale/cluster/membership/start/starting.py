"""Starts a broker: it claims the bucket for itself, or joins the brokers that share it.

To join, it brings the local metadata to the head: from a checkpoint, if it has missed too much or has an empty data
directory. Then one commit has the incarnation of this start, and new leader epochs of all partitions that it leads.

The first start with `--several-brokers` makes the bucket of a lone broker shared (`Sharing`):

    claim           as ever, and the metadata is recovered
    end the claims  a claim that no lone broker can follow (`SEVERAL`)
    head            begins behind a checkpoint of the metadata, with the registration of this broker as its first entry

A start that was interrupted is continued by the next one. With `--durability wal` only the broker of the data directory
that was in use last may do it, because its last acknowledged records may be nowhere else. `unsharing` reverses this.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from secrets import token_bytes

import attrs
import trio

import kafscale
from kafscale.cluster.membership.node import Endpoint, advertised_endpoints
from kafscale.cluster.membership.peers.lease import wait_seconds
from kafscale.cluster.membership.peers.peer_connections import SECRET_BYTES, Connect, hash_of, introduced
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
    Claimed,
    LeadCheck,
    SharedBucket,
    claim_key,
    decode_claim,
)
from kafscale.cluster.membership.start.member import ClusterMember
from kafscale.cluster.membership.start.recovery import find_head
from kafscale.cluster.membership.start.sharing_member import SharingMember
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
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import DeletionGuard
from kafscale.store.opening.probe import startup_errors
from kafscale.store.opening.views import StoreViews
from kafscale.store.version_writer import VersionWriter

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


HEAD_WAIT_SECONDS = 10.0  # for brokers that are started at the same time, the first time
LOOK_SECONDS = 0.5  # between two looks whether another one has made the head


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
        for topic_id, index, placement in state.led_by(broker_id):
            recover = placement.recover if previous is None else placement.recover_from(previous)
            led[topic_id, index] = attrs.evolve(placement, epoch=incarnation, recover=recover)
        puts |= changed_rows(state.placements, led)
        plan = PlannedFrom(revision=state.follower.revision, keys=tuple(puts))
        return Transaction(puts=puts, planned_from=plan, essential=True)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Sharing:
    """Brings a start to the metadata that brokers share, and begins to share it if that has not happened yet."""

    start: StartSteps
    views: StoreViews
    registration: Registration

    @property
    def _settings(self) -> Settings:
        return self.start.settings

    @property
    def _store(self) -> ObjectStore:
        return self.start.store

    async def begin(self) -> SharedMetadataStore:
        """Bring the local store to the head, which is made first if it does not exist.

        Raises StartupError, DamagedObject, StoreError, StorageFailed.
        """
        while True:
            with suppress(NotFound):
                return await SharedMetadataStore.join(self.start.local, self._store, self._settings.namespace)
            try:
                await self._make_head_unless_others_do()
            except (Fenced, SharedBucket, PreconditionFailed) as exc:  # the last: both write the first checkpoint
                logger.info("another broker is started as the first of several at this moment: %s", exc)
                await trio.sleep(random.uniform(0, LOOK_SECONDS))

    async def _make_head_unless_others_do(self) -> None:
        ending = Unsharing(store=self._store, namespace=self._settings.namespace, local=self.start.local)
        await ending.finish()
        other = await self._other_directory()
        with trio.move_on_after(HEAD_WAIT_SECONDS):
            while other is not None:
                await trio.sleep(LOOK_SECONDS)  # its broker may be starting at this moment, as the first
                if await self._has_head():
                    return
                other = await self._other_directory()
        if other is not None:
            raise StartupError(
                f"broker {other.broker_id} ran with --durability wal and another data directory, which may have what "
                "the bucket has not: start that one first with --several-brokers; if its directory is lost, start this "
                "one once without that option, and it goes on from the bucket"
            )
        await self._make_head()

    async def _has_head(self) -> bool:
        head = await find_head(self._store, self._settings.namespace)
        return head is not None and head.claim is None

    async def _other_directory(self) -> Claim | None:
        """Return the claim of a broker that may have acknowledged what is only in a data directory that is not ours."""
        try:
            found = await self._store.get(key := claim_key(self._settings.namespace))
        except NotFound:
            return None
        current = decode_claim(key, found.data)
        return current if current.unsettled_for(await self.start.directory_id()) else None

    async def _make_head(self) -> None:
        claimed, versions = await self._end_claims()
        epoch = claimed.claim.epoch
        position = WalPosition(epoch, 0)
        checkpointer = Checkpointer(versions=versions, local=self.start.local, position=lambda: position)
        await checkpointer.write()
        registration = await self._first_registration(epoch + 1)
        head = Head(epoch, 0, (HeadEntry(token_bytes(NONCE_BYTES), encode_transaction(registration)),))
        with suppress(PreconditionFailed):  # another broker was faster, from the same metadata
            await self._put_head(head)
        logger.info("several brokers can share the bucket from now on")

    async def _put_head(self, head: Head) -> None:
        """Put the head of a new cluster, also in the place of one that has ended before. Raises PreconditionFailed."""
        key = head_key(self._settings.namespace)
        try:
            found = await self._store.get(key)
        except NotFound:
            await self._store.put_if_absent(key, encode_head(head))
            return
        ended = decode_head(key, found.data).claim
        if ended is None or decode_claim(key, ended).epoch >= head.epoch:
            raise PreconditionFailed(f"{key} is that of another cluster, or a later one")
        await self._store.put_if_match(key, encode_head(head), found.etag)

    async def _end_claims(self) -> tuple[Claimed, VersionWriter]:
        """Replace the claim of a lone broker, which is stopped as by any other claim, by one that no lone broker can
        follow.

        The metadata is recovered. Raises Fenced if another broker has claimed it meanwhile.
        """
        key = claim_key(self._settings.namespace)
        with suppress(NotFound):
            current = decode_claim(key, (await self._store.get(key)).data)
            if current.is_of_several:
                claimed = Claimed(attrs.evolve(current, epoch=current.epoch - SEVERAL), None)
                return claimed, await self._recover(claimed, ignores_later=True)
        claimed = await self.start.claim()
        versions = await self._recover(claimed, ignores_later=False)
        found = await self._store.get(key)
        if decode_claim(key, found.data).nonce == claimed.claim.nonce:
            last = attrs.evolve(claimed.claim, epoch=claimed.claim.epoch + SEVERAL)
            with suppress(PreconditionFailed):
                await self._store.put_if_match(key, [encode(last)], found.etag)
                return claimed, versions
        raise Fenced(f"another broker has replaced {key}")

    async def _recover(self, claimed: Claimed, *, ignores_later: bool) -> VersionWriter:
        store, namespace, epoch = self.views.background, self._settings.namespace, claimed.claim.epoch
        versions = VersionWriter(store=store, namespace=namespace, kind="checkpoint", epoch=epoch)
        await self.start.recover(claimed, versions, ignores_later=ignores_later)
        return versions

    async def _first_registration(self, incarnation: int) -> Transaction:
        """Lead every topic that there is, and recover it from the log of the broker alone."""
        settings, state = self._settings, ClusterState(self.start.local)
        transaction = await self.registration.transaction(state, incarnation)
        state.follower.close()
        puts = dict(transaction.puts)
        first = Placement(settings.broker_id, incarnation, UNDECIDED, 0, recover=(incarnation - 1,))
        defaults = BrokerDefaults.of(settings)
        for entry in await self.start.local.list(TOPICS):
            topic = read_topic(entry.key.removeprefix(TOPICS), entry.value, defaults)
            row = [first] * topic.partition_count
            puts |= rows_of(topic.topic_id, row, range(topic.partition_count))
        return Transaction(puts=puts)
