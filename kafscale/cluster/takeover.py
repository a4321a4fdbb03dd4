"""The first thing that a start does: it becomes the one that leads, and has the metadata that its durability promises.

    claim an epoch             from here on an older broker is stopped, or is waited for
    checkpoint                 loaded if it is newer than what the data directory has, as with an empty one
    log in the bucket          a fence behind each earlier epoch; its metadata is applied
    a checkpoint of our own    so that everything from before this start is in the bucket, whatever the mode was

Record batches in that log are replayed later, when the partitions are there.
"""

from __future__ import annotations

import logging
from functools import partial

import attrs
import trio

from kafscale.cluster.controller.claim import TAKEOVER_WAIT_SECONDS, Claim, ClaimCheck, claim, watch_claim
from kafscale.cluster.controller.recovery import POSITION_KEY, apply_log, load_checkpoint
from kafscale.cluster.converter import decode, encode
from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.checkpoint import LOCAL_PREFIX, Checkpointer, find_checkpoints
from kafscale.cluster.metadata.counting import CountingMetadataStore
from kafscale.cluster.metadata.journaled import JournaledMetadataStore
from kafscale.cluster.node import epoch_key, random_uuid, uuid_text
from kafscale.concurrency.nurseries import ungrouped
from kafscale.config import Durability, Settings
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.wal.s3_replay import EarlierLog, list_log, take_over
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.base import ObjectStore
from kafscale.store.opening.views import StoreViews
from kafscale.store.versions import VersionWriter

DIRECTORY_ID_KEY = f"{LOCAL_PREFIX}directory-id"

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False)
class Lead:
    """What a broker that leads works with; `run` it before `metadata` is changed.

    `journal` is the log in the bucket, None in `wal` mode. `earlier` is what it held at the start. `store` is the view
    of what nothing may hold up: who looks too late whether it still leads goes on acknowledging for too long. `check`
    looks on demand.
    """

    store: ObjectStore
    namespace: str
    claim: Claim
    metadata: CountingMetadataStore | JournaledMetadataStore
    journal: S3Wal | None
    earlier: EarlierLog
    checkpointer: Checkpointer
    check: ClaimCheck

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the metadata durable, and look whether another broker has taken over. Raises Fenced, StorageFailed."""
        with ungrouped():
            async with trio.open_nursery() as nursery:
                if self.journal is not None:
                    await nursery.start(self.journal.run)
                if isinstance(self.metadata, JournaledMetadataStore):
                    await nursery.start(self.metadata.run)
                nursery.start_soon(self.checkpointer.run)
                nursery.start_soon(watch_claim, self.store, self.namespace, self.claim)
                task_status.started()


async def take_lead(settings: Settings, views: StoreViews, local: MetadataStore) -> Lead:
    """Claim an epoch and recover what the bucket has. Raises DamagedObject, Fenced, StoreError, StorageFailed."""
    store = views.acknowledge
    start = _Start(settings=settings, store=store, local=local)
    own = await start.claim()
    journal: S3Wal | None = None
    metadata: CountingMetadataStore | JournaledMetadataStore = CountingMetadataStore(local)
    if settings.durability is not Durability.WAL:
        journal = S3Wal(
            store=store,
            namespace=settings.namespace,
            epoch=own.epoch,
            interval_seconds=settings.s3_wal_interval_seconds,
            object_bytes=settings.s3_wal_bytes,
            max_bytes=settings.wal_max_bytes,
        )
        metadata = JournaledMetadataStore(local, journal, WalPosition(own.epoch, 0))
    checkpointer = Checkpointer(
        versions=VersionWriter(
            store=views.background, namespace=settings.namespace, kind="checkpoint", epoch=own.epoch
        ),
        local=local,
        position=partial(_position, own.epoch, metadata, journal),
        change_count=lambda: metadata.change_count,
        on_kept=_ignore if journal is None else journal.trim,
    )
    earlier = await start.recover(own.epoch, checkpointer)
    await checkpointer.write()
    return Lead(
        store=store,
        namespace=settings.namespace,
        claim=own,
        metadata=metadata,
        journal=journal,
        earlier=earlier,
        checkpointer=checkpointer,
        check=ClaimCheck(store=store, namespace=settings.namespace, own=own),
    )


def _ignore(position: WalPosition) -> None:
    pass


def _position(
    epoch: int, metadata: CountingMetadataStore | JournaledMetadataStore, journal: S3Wal | None
) -> WalPosition:
    """Up to where in the log all metadata is in the local store."""
    if journal is None or not isinstance(metadata, JournaledMetadataStore):
        return WalPosition(epoch, 0)
    if journal.metadata_position > metadata.applied_position:
        return metadata.applied_position
    return max(metadata.applied_position, journal.durable_position)


@attrs.frozen(kw_only=True)
class _Start:
    """One start, in its steps."""

    settings: Settings
    store: ObjectStore
    local: MetadataStore

    async def claim(self) -> Claim:
        """Raises StoreError, DamagedObject."""
        settings = self.settings
        entry = await self.local.get(epoch_key(settings.broker_id))
        wanted = Claim(
            epoch=0 if entry is None else decode(int, entry.value) + 1,
            broker_id=settings.broker_id,
            directory_id=await self._directory_id(),
            acknowledges_locally=settings.durability is Durability.WAL,
        )
        claimed = await claim(self.store, settings.namespace, wanted, least_epoch=self._least_epoch)
        if claimed.must_wait:
            logger.warning(
                "another data directory was in use with --durability wal: waiting %g s for its broker to notice",
                TAKEOVER_WAIT_SECONDS,
            )
            await trio.sleep(TAKEOVER_WAIT_SECONDS)
        return claimed.claim

    async def _directory_id(self) -> str:
        entry = await self.local.get(DIRECTORY_ID_KEY)
        if entry is not None:
            return decode(str, entry.value)
        directory_id = uuid_text(random_uuid())
        await self.local.commit(Transaction(puts={DIRECTORY_ID_KEY: encode(directory_id)}))
        return directory_id

    async def _least_epoch(self) -> int:
        """One larger than any that the bucket's log and checkpoints know of."""
        namespace = self.settings.namespace
        epochs = [key.epoch for key in (await find_checkpoints(self.store, namespace)).keys]
        return max([*epochs, *await list_log(self.store, namespace)], default=-1) + 1

    async def recover(self, epoch: int, checkpointer: Checkpointer) -> EarlierLog:
        """Bring the local metadata to where the bucket's is. Raises DamagedObject, Fenced, StoreError."""
        found = await find_checkpoints(self.store, self.settings.namespace)
        checkpointer.versions.inherit(found.keys)
        position = await load_checkpoint(self.local, found)
        earlier = await take_over(self.store, self.settings.namespace, epoch, kept_until=position)
        await apply_log(self.local, earlier, position)
        await self.local.commit(Transaction(puts={POSITION_KEY: encode(WalPosition(epoch, 0))}))
        return earlier
