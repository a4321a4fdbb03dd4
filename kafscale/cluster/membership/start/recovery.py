"""The metadata that a start begins with: that of the data directory, or a newer checkpoint in the bucket, and behind
either the changes in the bucket's log. `preview` makes it in a copy, for commands that change nothing.

Also notes about the data directory in its own metadata: the store that it belongs to, and the files of its log.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import attrs
import trio

from kafscale.cluster.metadata.base import LOCAL_PREFIX, POSITION_KEY, MetadataStore, Transaction
from kafscale.cluster.metadata.checkpoint import find_checkpoints, replacing_all
from kafscale.cluster.metadata.converter import decode, encode, random_uuid, uuid_text
from kafscale.cluster.registries.topic_records import LOST_OFFSETS
from kafscale.config import Settings
from kafscale.errors import DamagedObject, NotFound, StartupError
from kafscale.formats.metadata_changes import decode_transaction, folded
from kafscale.formats.metadata_checkpoint import Checkpoint
from kafscale.formats.metadata_head import Head, decode_head, head_key
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.log.wal.local_replay import WalExtent
from kafscale.log.wal.s3_replay import EarlierLog, find_log
from kafscale.store.base import ObjectStore
from kafscale.store.versions import Versions, undisturbed

TRANSACTION_TARGET_COUNT = 1000  # changes that are applied at once


logger = logging.getLogger(__name__)


async def preview(store: ObjectStore, namespace: str, metadata: MetadataStore) -> None:
    """Bring a copy of the local metadata to where a start would, and no more. Raises DamagedObject, StoreError."""

    async def look() -> None:
        head = await find_head(store, namespace)  # before the checkpoint, which has what the head lacks
        position = await load_checkpoint(metadata, await find_checkpoints(store, namespace))
        if head is None or position.epoch > head.epoch:  # one broker has the bucket to itself again
            await apply_log(metadata, await find_log(store, namespace, kept_until=position), position)
        else:
            await _apply_head(head, head_key(namespace), metadata, position)

    await undisturbed(look)


async def find_head(store: ObjectStore, namespace: str) -> Head | None:
    """Return the head of the metadata, None if there has never been one. Raises DamagedObject, StoreError."""
    key = head_key(namespace)
    try:
        return decode_head(key, (await store.get(key)).data)
    except NotFound:
        return None


async def _apply_head(head: Head, key: str, metadata: MetadataStore, after: WalPosition) -> None:
    entries = head.behind(after.number if after.epoch == head.epoch else -1)
    if entries is None:
        raise DamagedObject(f"{key}: no checkpoint has the metadata up to revision {head.kept_until}")
    for entry in entries:
        await metadata.commit(attrs.evolve(decode_transaction(memoryview(entry.data)), essential=True))


async def load_checkpoint(metadata: MetadataStore, found: Versions[Checkpoint]) -> WalPosition:
    """Apply the newest checkpoint if it is newer. Return up to where in the log the metadata is complete then.

    Raises DamagedObject if all checkpoints are damaged, and the data directory has no metadata.
    """
    entry = await metadata.get(POSITION_KEY)
    position = START if entry is None else decode(WalPosition, entry.value)
    if found.newest is not None and found.newest.position > position:
        await metadata.commit(await replacing_all(metadata, found.newest))
        return found.newest.position
    if found.newest is None and found.damage and entry is None:
        raise found.damage[-1]
    if found.newest is not None:
        await _keep_lost_offsets(metadata, found.newest)
    return position


async def _keep_lost_offsets(metadata: MetadataStore, found: Checkpoint) -> None:
    """Take the ends of lost offsets from an older checkpoint, as the metadata may be an older copy of the same start.

    Offsets must not be given out again.
    """
    known = {entry.key: entry.value for entry in await metadata.list(LOST_OFFSETS)}
    puts = {
        key: value
        for key, value in found.transaction.puts.items()
        if key.startswith(LOST_OFFSETS) and decode(int, value) > decode(int, known.get(key, b"0"))
    }
    if puts:
        await metadata.commit(Transaction(puts=puts, essential=True))


async def apply_log(metadata: MetadataStore, log: EarlierLog, after: WalPosition) -> None:
    """Apply the changes behind a position of the log. Raises DamagedObject, StoreError."""
    transactions: list[Transaction] = []

    def handle(entry: WalEntry) -> bool:
        if entry.kind == METADATA:
            transactions.append(decode_transaction(memoryview(entry.data)))
        return False

    await log.replay(handle, after=after)
    for transaction in folded(transactions, TRANSACTION_TARGET_COUNT):
        await metadata.commit(attrs.evolve(transaction, essential=True))
    if transactions:
        logger.info("%d changes of metadata are from the log in the bucket", len(transactions))


STORE_KEY: Final = f"{LOCAL_PREFIX}store"
DIRECTORY_ID_KEY: Final = f"{LOCAL_PREFIX}directory-id"
EXTENT_KEY: Final = f"{LOCAL_PREFIX}wal-extent"


async def check_same_store(metadata: MetadataStore, settings: Settings) -> None:
    """Raise StartupError if the data directory belongs to another bucket, which lacks its segments."""
    url = settings.store
    if url.scheme == "file":
        url = attrs.evolve(url, path=Path(await trio.Path(url.path).absolute()))
    wanted = f"{url} {settings.s3_endpoint or ''} {settings.namespace}"
    entry = await metadata.get(STORE_KEY)
    if entry is None:
        await metadata.commit(Transaction(puts={STORE_KEY: encode(wanted)}, essential=True))
    elif (known := decode(str, entry.value)) != wanted:
        raise StartupError(
            f"--data-dir {settings.data_dir} belongs to the store '{known.strip()}', not to '{wanted.strip()}': "
            "give that --store, or another --data-dir"
        )


@attrs.frozen
class MetadataExtents:
    """An `ExtentStore` in the metadata of the data directory."""

    metadata: MetadataStore

    async def read(self) -> WalExtent | None:
        entry = await self.metadata.get(EXTENT_KEY)
        return None if entry is None else decode(WalExtent, entry.value)

    async def write(self, extent: WalExtent) -> None:
        await self.metadata.commit(Transaction(puts={EXTENT_KEY: encode(extent)}, essential=True))


async def directory_id(local: MetadataStore) -> str:
    """Return the id of the data directory, which is made up once."""
    entry = await local.get(DIRECTORY_ID_KEY)
    if entry is not None:
        return decode(str, entry.value)
    new_id = uuid_text(random_uuid())
    await local.commit(Transaction(puts={DIRECTORY_ID_KEY: encode(new_id)}, essential=True))
    return new_id
