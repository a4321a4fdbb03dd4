"""Claims the bucket for a lone broker, and recovers the metadata that its durability promises.

First comes the claim, from which on an older broker is stopped or waited for; then a newer checkpoint, the metadata in
the log of each earlier epoch behind a fence, and a checkpoint of our own, so that everything from before is in the
bucket, whatever the mode was. Record batches in that log are replayed later, when the partitions are there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial

import attrs
import trio

from kafscale.cluster.membership.node import Endpoint, epoch_key
from kafscale.cluster.membership.records import BrokerRecord, BrokerState
from kafscale.cluster.membership.start.claim import (
    TAKEOVER_WAIT_SECONDS,
    Claim,
    ClaimCheck,
    Claimed,
    SharedBucket,
    claim,
    settle,
)
from kafscale.cluster.membership.start.member import LoneMember
from kafscale.cluster.membership.start.recovery import apply_log, directory_id, load_checkpoint
from kafscale.cluster.membership.start.unsharing import Unsharing
from kafscale.cluster.membership.state import LoneState
from kafscale.cluster.metadata.base import POSITION_KEY, LocalMetadataStore, Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer, find_checkpoints
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.group_commit import GroupCommit, JournaledMetadataStore
from kafscale.config import Durability, Settings
from kafscale.errors import StoreError
from kafscale.formats.metadata_checkpoint import Checkpoint
from kafscale.formats.wal_objects import WalPosition
from kafscale.formats.wal_runs import list_log
from kafscale.log.partition.tail import became_durable
from kafscale.log.wal.s3_replay import EarlierLog, take_over
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import DeletionGuard
from kafscale.store.opening.views import StoreViews
from kafscale.store.version_writer import VersionWriter
from kafscale.store.versions import Versions, undisturbed

FIRST_CHECKPOINT_SECONDS = 10.0  # for one that can be written later as well
NO_ENDPOINTS: Mapping[str, Endpoint | None] = {}
CHECKPOINTS_PER_FLUSH = 4  # flushed parts of the log are deleted behind the older of two checkpoints

logger = logging.getLogger(__name__)


async def take_lead(
    settings: Settings,
    views: StoreViews,
    local: LocalMetadataStore,
    endpoints: Mapping[str, Endpoint | None] = NO_ENDPOINTS,
    *,
    replaces_others: bool = True,
) -> LoneMember:
    """Claim an epoch, and recover the metadata in the bucket. `replaces_others` is as for `claim`.

    Raises DamagedObject, Fenced, StartupError, StoreError, StorageFailed, SharedBucket.
    """
    store = views.acknowledge
    claimed = await _claim(StartSteps(settings=settings, views=views, local=local), replaces_others)
    own = claimed.claim
    check = ClaimCheck(store=store, namespace=settings.namespace, own=own)
    looking = views.guarded(DeletionGuard(confirm_lead=check.confirm))  # its decisions are objects in the bucket
    versions, earlier = await StartSteps(settings=settings, views=looking, local=local).recover(own.epoch)
    journal: S3Wal | None = None
    metadata = GroupCommit(local)
    position = partial(WalPosition, own.epoch, 0)
    if settings.durability is not Durability.WAL:
        journal = open_bucket_log(settings, looking.acknowledge, own.epoch)
        journal.earlier = earlier
        metadata = journaled = JournaledMetadataStore(local, journal, WalPosition(own.epoch, 0))
        position = partial(_position, journaled, journal)
    checkpointer = Checkpointer(
        versions=versions, local=local, position=position, on_kept=(lambda _: None) if journal is None else journal.trim
    )
    if journal is not None and has_records(settings) and settings.s3_wal_flush_objects_count:
        checkpointer.objects_max_count = settings.s3_wal_flush_objects_count / CHECKPOINTS_PER_FLUSH
        journal.on_growth.append(checkpointer.note_growth)
    is_written = await _write_first(checkpointer, is_needed=journal is not None)
    if claimed.must_wait and is_written:
        await settle(store, settings.namespace, own)  # now that the bucket knows what had to be known of the wait
    guard = DeletionGuard(
        confirm_lead=check.confirm,
        decided=lambda: 0 if journal is not None else local.revision,
        publish=checkpointer.publish,
    )
    return LoneMember(
        settings=settings,
        state=_lone_state(metadata, own, settings, endpoints),
        views=views.guarded(guard),
        epoch=own.epoch,
        metadata=metadata,
        journal=journal,
        earlier=earlier,
        checkpointer=checkpointer,
        check=check,
        claimed=claimed,
    )


def _lone_state(
    metadata: GroupCommit, own: Claim, settings: Settings, endpoints: Mapping[str, Endpoint | None]
) -> LoneState:
    record = BrokerRecord(
        incarnation=own.epoch,
        state=BrokerState.LIVE,
        endpoints=endpoints,
        directory_id=own.directory_id,
        acknowledges_locally=own.acknowledges_locally,
        rack=settings.rack,
    )
    return LoneState(metadata, settings.broker_id, record=record)


async def _claim(start: StartSteps, replaces_others: bool) -> Claimed:
    try:
        return await start.claim(replaces_others=replaces_others)
    except SharedBucket:
        ending = Unsharing(store=start.store, namespace=start.settings.namespace, local=start.local)
        if not await ending.finish():
            raise
    return await start.claim(replaces_others=replaces_others)


def open_bucket_log(settings: Settings, store: ObjectStore, epoch: int, *, is_stream: bool = False) -> S3Wal:
    """Make the bucket's log of a start with this number; nothing is read or written yet."""
    return S3Wal(
        store=store,
        namespace=settings.namespace,
        epoch=epoch,
        interval_seconds=settings.s3_wal_interval_seconds,
        min_interval_seconds=settings.s3_wal_min_interval_seconds if has_records(settings) else 0.0,
        object_bytes=settings.s3_wal_bytes,
        max_bytes=settings.wal_max_bytes,
        on_durable=became_durable,
        is_stream=is_stream,
    )


def has_records(settings: Settings) -> bool:
    """Tell whether the bucket's log has records, not metadata alone, which seldom changes and need not wait."""
    return settings.durability is Durability.S3_WAL


async def _write_first(checkpointer: Checkpointer, *, is_needed: bool) -> bool:
    """Write the first checkpoint, and return whether it is written.

    Unless it `is_needed` it may fail or take too long, as when the bucket is a directory whose disk is full.
    """
    with trio.move_on_after(math.inf if is_needed else FIRST_CHECKPOINT_SECONDS) as scope:
        try:
            await checkpointer.write()
            return True
        except StoreError as exc:
            if is_needed:
                raise
            logger.warning("the metadata has no checkpoint of this start yet: %s", exc)
    if scope.cancelled_caught:
        logger.warning("the metadata has no checkpoint of this start yet: it is not written in time")
    return False


def _position(metadata: JournaledMetadataStore, journal: S3Wal) -> WalPosition:
    if journal.metadata_position > metadata.applied_position:
        return metadata.applied_position
    return max(metadata.applied_position, journal.durable_position)


@attrs.frozen(kw_only=True)
class StartSteps:
    """The steps of one start."""

    settings: Settings
    views: StoreViews
    local: LocalMetadataStore

    @property
    def store(self) -> ObjectStore:
        return self.views.acknowledge

    async def claim(self, *, replaces_others: bool = True) -> Claimed:
        """Raises StartupError, StoreError, DamagedObject."""
        settings = self.settings
        entry = await self.local.get(epoch_key(settings.broker_id))
        wanted = Claim(
            epoch=0 if entry is None else decode(int, entry.value) + 1,
            broker_id=settings.broker_id,
            directory_id=await directory_id(self.local),
            acknowledges_locally=settings.durability is Durability.WAL,
        )
        claimed = await claim(
            self.store, settings.namespace, wanted, least_epoch=self._least_epoch, replaces_others=replaces_others
        )
        if claimed.must_wait:
            logger.warning(
                "another data directory may be in use with --durability wal: waiting %g s for its broker to notice",
                TAKEOVER_WAIT_SECONDS,
            )
            await trio.sleep(TAKEOVER_WAIT_SECONDS)
        return claimed

    async def _least_epoch(self) -> int:
        namespace = self.settings.namespace
        epochs = [key.epoch for key in (await find_checkpoints(self.store, namespace)).keys]
        return max([*epochs, *await list_log(self.store, namespace)], default=-1) + 1

    async def recover(self, epoch: int, *, ignores_later: bool = False) -> tuple[VersionWriter, EarlierLog]:
        """Bring the local metadata to that of the bucket; return the writer of new checkpoints, and the earlier log.

        `ignores_later` is as for `take_over`. Raises DamagedObject, Fenced, StoreError.
        """
        found, earlier = await undisturbed(partial(self._apply_earlier, epoch, ignores_later))
        namespace = self.settings.namespace
        versions = VersionWriter(store=self.views.background, namespace=namespace, kind="checkpoint", epoch=epoch)
        versions.inherit(found.keys)
        await self.local.commit(Transaction(puts={POSITION_KEY: encode(WalPosition(epoch, 0))}, essential=True))
        return versions, earlier

    async def _apply_earlier(self, epoch: int, ignores_later: bool) -> tuple[Versions[Checkpoint], EarlierLog]:
        found = await find_checkpoints(self.store, self.settings.namespace)
        position = await load_checkpoint(self.local, found)
        earlier = await take_over(
            self.store, self.settings.namespace, epoch, kept_until=position, ignores_later=ignores_later
        )
        await apply_log(self.local, earlier, position)
        return found, earlier
