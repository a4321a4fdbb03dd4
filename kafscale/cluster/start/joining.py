"""What a start does where several brokers share the bucket: it joins them, or makes a broker alone the first of them.

    head            read; a checkpoint first if this broker has missed too much, or has nothing
    registration    one commit: a new incarnation, which replaces an earlier one of the same id, and the leader epochs
                    of all that this broker leads

A broker alone becomes several once, when it is started so: it claims as ever, recovers the metadata, and writes a
claim that no broker alone can follow (`SEVERAL`). Then its metadata is in a checkpoint, and the head begins behind
it with its registration as the first entry. Ended in between, it goes on there.

With `--durability wal` only the broker of the data directory that was in use last may do that, since what it has
acknowledged last may be nowhere else; and who replaces a broker of the same id that ran with another directory waits
until that one has noticed.
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
from kafscale.cluster.brokers.balance import Balance
from kafscale.cluster.brokers.beginnings import Beginnings
from kafscale.cluster.brokers.calls import BrokerCalls
from kafscale.cluster.brokers.controller import Controller
from kafscale.cluster.brokers.heartbeats import Connect, Heartbeats
from kafscale.cluster.brokers.lease import Lease, wait_seconds
from kafscale.cluster.brokers.liveness import Liveness
from kafscale.cluster.brokers.placements import PlacementWriter
from kafscale.cluster.brokers.records import (
    NEXT_NUMBER_KEY,
    UNDECIDED,
    BrokerRecord,
    BrokerState,
    Placement,
    changed_rows,
    record_key,
    rows_of,
)
from kafscale.cluster.brokers.state import ClusterState
from kafscale.cluster.brokers.telling import Telling, Told
from kafscale.cluster.configs.topic_configs import BrokerDefaults
from kafscale.cluster.groups.coordinating.former_metadata import MOVED_KEY, PREFIX
from kafscale.cluster.metadata.base import LocalMetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.cluster.node import Endpoint
from kafscale.cluster.start.claim import (
    SEVERAL,
    Claim,
    Claimed,
    LeadCheck,
    SharedBucket,
    claim_key,
    decode_claim,
)
from kafscale.cluster.start.ending import Ending
from kafscale.cluster.start.lead import Lead, Several
from kafscale.cluster.start.recovery import find_head
from kafscale.cluster.start.takeover import Start, open_bucket_log
from kafscale.cluster.topics.records import TOPICS, read_topic
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
from kafscale.log.load import LoadMeter
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import EarlierStreams, Streams
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import DeletionGuard
from kafscale.store.opening.views import StoreViews
from kafscale.store.version_writer import VersionWriter

HEAD_WAIT_SECONDS = 10.0  # for brokers that are started at the same time, the first time
LOOK_SECONDS = 0.5  # between two looks at what others have committed

logger = logging.getLogger(__name__)


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
    newcomer = _Newcomer(settings=settings, views=views, local=local, endpoints=endpoints)
    metadata = await newcomer.begin()
    state = ClusterState(metadata)
    incarnation = await newcomer.register(metadata, state)
    check = MembershipCheck(metadata=metadata, broker_id=settings.broker_id, incarnation=incarnation)
    metadata.check_writer = check.check_known
    own_views = views.guarded(DeletionGuard(confirm_lead=check.confirm))
    writer = PlacementWriter(state)
    liveness = Liveness(settings.broker_session_timeout_seconds)

    def look_soon(revision: int) -> None:
        metadata.note_newer(revision)
        check.sooner.set()

    meter = LoadMeter()
    balance = Balance(
        broker_id=settings.broker_id,
        incarnation=incarnation,
        state=state,
        liveness=liveness,
        meter=meter,
        by=settings.balance_by,
    )
    controller = Controller(
        broker_id=settings.broker_id,
        incarnation=incarnation,
        metadata=metadata,
        state=state,
        writer=writer,
        store=own_views.background,
        namespace=settings.namespace,
        liveness=liveness,
        balance=balance,
    )
    heartbeats = Heartbeats(
        broker_id=settings.broker_id,
        incarnation=incarnation,
        state=state,
        liveness=liveness,
        connect=connect,
        revision=lambda: metadata.applied.number,
        look_soon=look_soon,
        load=meter.load,
        take_surplus=balance.take_surplus,
    )
    calls = BrokerCalls(state, connect)
    telling = Telling(
        broker_id=settings.broker_id,
        incarnation=incarnation,
        calls=calls,
        revision=lambda: metadata.applied.number,
    )
    beginnings = Beginnings(
        broker_id=settings.broker_id,
        incarnation=incarnation,
        metadata=metadata,
        state=state,
        writer=writer,
        calls=calls,
    )
    streams = Streams(
        store=own_views.acknowledge,
        namespace=settings.namespace,
        incarnation=incarnation,
        alone_until=metadata.applied.epoch,
    )
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
        several=Several(
            broker_id=settings.broker_id,
            state=state,
            writer=writer,
            beginnings=beginnings,
            controller=controller,
            balance=balance,
            streams=streams,
            heartbeats=heartbeats,
            calls=calls,
            telling=telling,
            told=Told(),
            lease=Lease(liveness, lambda: check.led_at, check.confirm, lambda: heartbeats.disowned_at),
        ),
        watch_seconds=LOOK_SECONDS,
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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class _Newcomer:
    """One start, in its steps."""

    settings: Settings
    views: StoreViews
    local: LocalMetadataStore
    endpoints: Mapping[str, Endpoint | None]

    @property
    def _store(self) -> ObjectStore:
        return self.views.acknowledge

    async def begin(self) -> SharedMetadataStore:
        """Bring the local store to where the head is, which is made first if there is none.

        Raises StartupError, DamagedObject, StoreError, StorageFailed.
        """
        while True:
            with suppress(NotFound):
                return await SharedMetadataStore.join(self.local, self._store, self.settings.namespace)
            try:
                await self.make_head()
            except (Fenced, SharedBucket, PreconditionFailed) as exc:  # the last: both write the first checkpoint
                logger.info("another broker is started as the first of several at this moment: %s", exc)
                await trio.sleep(random.uniform(0, LOOK_SECONDS))

    # ---- one of several --------------------------------------------------------------------------------------------

    async def register(self, metadata: SharedMetadataStore, state: ClusterState) -> int:
        """Return the incarnation."""
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
        if state.brokers[self.settings.broker_id].unsettled:
            seconds = wait_seconds(self.settings.broker_session_timeout_seconds)
            logger.warning(
                "broker %d may be running with another data directory and --durability wal: waiting %g s for it",
                self.settings.broker_id,
                seconds,
            )
            await trio.sleep(seconds)
            await self._settle(metadata, state, incarnation)
        return incarnation

    async def _settle(self, metadata: SharedMetadataStore, state: ClusterState, incarnation: int) -> None:
        """Say that all have been waited for: a start that ends before leaves that to the next one."""
        key = record_key(self.settings.broker_id)
        while True:
            await metadata.refresh()
            own = state.brokers.get(self.settings.broker_id)
            if own is None or own.incarnation != incarnation:
                raise Fenced(f"broker {self.settings.broker_id} was replaced while it started")
            plan = PlannedFrom(revision=state.follower.revision, keys=(key,))
            settled = encode(attrs.evolve(own, unsettled=()))
            with suppress(PlanOutdated):
                await metadata.commit_now(Transaction(puts={key: settled}, planned_from=plan, essential=True))
                return

    async def _registration(self, state: ClusterState, incarnation: int) -> Transaction:
        """Replace an earlier incarnation, and lead with new epochs what that one led."""
        broker_id = self.settings.broker_id
        directory_id = await self._start.directory_id()
        previous = state.brokers.get(broker_id)
        record = BrokerRecord(
            incarnation=incarnation,
            state=BrokerState.LIVE,
            endpoints=self.endpoints,
            directory_id=directory_id,
            acknowledges_locally=self.settings.durability is Durability.WAL,
            has_stream=self.settings.durability is Durability.S3_WAL,
            rack=self.settings.rack,
            is_draining=previous is not None and previous.is_draining,
            version=kafscale.__version__,
            unsettled=() if previous is None else previous.unsettled_for(directory_id),
        )
        puts = {record_key(broker_id): encode(record), NEXT_NUMBER_KEY: encode(incarnation + 1)}
        led: dict[PartitionId, Placement] = {}
        for topic_id, index, each in state.led_by(broker_id):
            recover = each.recover if previous is None else each.recover_from(previous)
            led[topic_id, index] = attrs.evolve(each, epoch=incarnation, recover=recover)
        puts |= changed_rows(state.placements, led)
        plan = PlannedFrom(revision=state.follower.revision, keys=tuple(puts))
        return Transaction(puts=puts, planned_from=plan, essential=True)

    # ---- the first of several --------------------------------------------------------------------------------------

    @property
    def _start(self) -> Start:
        return Start(settings=self.settings, store=self._store, local=self.local)

    @property
    def _ending(self) -> Ending:
        return Ending(store=self._store, namespace=self.settings.namespace, local=self.local)

    async def make_head(self) -> None:
        """Make the head, unless another broker does. Raises StartupError, DamagedObject, Fenced, StoreError."""
        await self._ending.finish()
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
        head = await find_head(self._store, self.settings.namespace)
        return head is not None and head.claim is None

    async def _other_directory(self) -> Claim | None:
        """Return the claim of a broker that may have acknowledged what is only in a data directory that is not ours."""
        try:
            found = await self._store.get(key := claim_key(self.settings.namespace))
        except NotFound:
            return None
        current = decode_claim(key, found.data)
        return current if current.unsettled_for(await self._start.directory_id()) else None

    async def _make_head(self) -> None:
        claimed, versions = await self._end_claims()
        epoch = claimed.claim.epoch
        position = WalPosition(epoch, 0)
        checkpointer = Checkpointer(versions=versions, local=self.local, position=lambda: position)
        await checkpointer.write()
        registration = await self._first_registration(epoch + 1)
        head = Head(epoch, 0, (HeadEntry(token_bytes(NONCE_BYTES), encode_transaction(registration)),))
        with suppress(PreconditionFailed):  # another broker was faster, from the same metadata
            await self._put_head(head)
        logger.info("several brokers can share the bucket from now on")

    async def _put_head(self, head: Head) -> None:
        """Put the head of a new cluster, also in the place of one that has ended before. Raises PreconditionFailed."""
        key = head_key(self.settings.namespace)
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
        """Have nobody claim the bucket for a broker alone any more; who did is stopped as by any other claim.

        The metadata is recovered. Raises Fenced if another broker has claimed it meanwhile.
        """
        key = claim_key(self.settings.namespace)
        with suppress(NotFound):
            current = decode_claim(key, (await self._store.get(key)).data)
            if current.is_of_several:
                claimed = Claimed(attrs.evolve(current, epoch=current.epoch - SEVERAL), None)
                return claimed, await self._recover(claimed, is_alone=False)
        claimed = await self._start.claim()
        versions = await self._recover(claimed, is_alone=True)
        await self._check_groups()
        found = await self._store.get(key)
        if decode_claim(key, found.data).nonce == claimed.claim.nonce:
            last = attrs.evolve(claimed.claim, epoch=claimed.claim.epoch + SEVERAL)
            with suppress(PreconditionFailed):
                await self._store.put_if_match(key, [encode(last)], found.etag)
                return claimed, versions
        raise Fenced(f"another broker has replaced {key}")

    async def _recover(self, claimed: Claimed, *, is_alone: bool) -> VersionWriter:
        store, namespace, epoch = self.views.background, self.settings.namespace, claimed.claim.epoch
        versions = VersionWriter(store=store, namespace=namespace, kind="checkpoint", epoch=epoch)
        await self._start.recover(claimed, versions, is_alone=is_alone)
        return versions

    async def _check_groups(self) -> None:
        former = await self.local.list(PREFIX)
        if any(entry.key != MOVED_KEY for entry in former):
            raise StartupError(
                "the consumer groups of an earlier version are still in the metadata: start this broker once without "
                "--several-brokers, which moves them to __consumer_offsets"
            )

    async def _first_registration(self, incarnation: int) -> Transaction:
        """Lead every topic that there is, and recover it from the log of the broker alone."""
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
