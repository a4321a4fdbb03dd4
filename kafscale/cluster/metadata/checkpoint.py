"""Writes and finds the checkpoints of the metadata; their format is `kafscale.formats.metadata_checkpoint`.

Entries of LOCAL_PREFIX are about the data directory and stay in it. After two full checkpoints, each has the changes
since the first of these, until those together have become larger than a full one (decision 0017).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.cluster.metadata.base import LOCAL_PREFIX, Change, LocalMetadataStore, MetadataStore, Pair, Transaction
from kafscale.concurrency.signals import Signal
from kafscale.errors import StoreError
from kafscale.formats.metadata_changes import encode_pairs
from kafscale.formats.metadata_checkpoint import Checkpoint, CheckpointBody, encode_header, newest_checkpoint
from kafscale.formats.wal_objects import WalPosition
from kafscale.store.base import ObjectStore
from kafscale.store.paths import NumberedKey
from kafscale.store.version_writer import KEPT_COUNT, VersionWriter
from kafscale.store.versions import Versions, intact, list_versions

INTERVAL_SECONDS = 10.0  # between two checkpoints, while something changes
CHANGES_LEAST_COUNT = 10_000  # that are remembered, however few entries there are

_LOCAL = LOCAL_PREFIX.encode()

logger = logging.getLogger(__name__)


# ---- reading ---------------------------------------------------------------------------------------------------------


async def find_checkpoints(store: ObjectStore, namespace: str) -> Versions[Checkpoint]:
    """Find the checkpoints; raises StoreError."""

    async def look() -> Versions[Checkpoint]:
        return await _read_newest(store, await list_versions(store, namespace, "checkpoint"))

    found = await intact(look)
    for damage in found.damage:
        logger.error("a checkpoint of the metadata is damaged and not used: %s", damage)
    return found


async def replacing_all(metadata: MetadataStore, found: Checkpoint) -> Transaction:
    """Return the transaction that replaces all entries but those about the data directory by a checkpoint."""
    kept = {entry.key: entry.value for entry in await metadata.list(LOCAL_PREFIX)}
    logger.info("%d entries of metadata are from a checkpoint in the bucket", len(found.transaction.puts))
    return Transaction(delete_prefixes=("",), puts={**found.transaction.puts, **kept}, essential=True)


async def _read_newest(store: ObjectStore, keys: Sequence[NumberedKey]) -> Versions[Checkpoint]:
    search = newest_checkpoint(keys)
    data: Buffer | None = None
    try:
        while True:
            key = next(search) if data is None else search.send(data)
            data = (await store.get(key.key)).data
    except StopIteration as done:
        return Versions(keys, done.value.newest, done.value.damage)


# ---- writing ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, repr=False)
class _CheckpointEntries:
    """Entries of a checkpoint that a thread reads from a snapshot."""

    body: CheckpointBody = attrs.field(factory=CheckpointBody)
    count: int = attrs.field(default=0, init=False)

    def take(self, pairs: Sequence[Pair], missing: Sequence[bytes]) -> None:
        pairs = [pair for pair in pairs if not pair[0].startswith(_LOCAL)]
        self.count += len(pairs)
        self.body.add(encode_pairs(pairs, [key for key in missing if not key.startswith(_LOCAL)]))


@attrs.frozen
class _WrittenCheckpoint:
    """A checkpoint of this epoch, and the full ones that it needs."""

    position: WalPosition
    key: NumberedKey
    bases: Sequence[NumberedKey]


@attrs.define(eq=False, kw_only=True, repr=False)
class Checkpointer:
    """Writes the checkpoints of one epoch from the local store, from the moment it is made until `close`.

    `position` returns up to where in the log the store is complete. `on_kept` is told, after each checkpoint, up to
    where the log is no longer needed. A checkpoint is written early if that is more than `objects_max_count` objects
    behind: the writer of the log calls `note_growth`.
    """

    versions: VersionWriter
    local: LocalMetadataStore
    position: Callable[[], WalPosition]
    objects_max_count: float = math.inf
    on_kept: Callable[[WalPosition], None] = lambda position: None
    _changed: dict[str, None] = attrs.field(factory=dict, init=False)  # keys since the first full one, as a set
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _written: deque[_WrittenCheckpoint] = attrs.field(factory=deque, init=False)  # the last two
    _bases: list[NumberedKey] = attrs.field(factory=list, init=False)  # full ones
    _base_count: int = attrs.field(default=0, init=False)  # entries of a full one
    _base_bytes: int = attrs.field(default=0, init=False)
    _changes_bytes: int = attrs.field(default=0, init=False)  # of all checkpoints of changes since then
    _revision: int = attrs.field(default=-1, init=False)  # up to which the last one has everything
    _has_ended: bool = attrs.field(default=False, init=False)
    _is_behind: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self.local.follow(self._note)

    def _note(self, change: Change) -> None:
        self._changed.update(dict.fromkeys((*change.puts, *change.deletes)))

    def close(self) -> None:
        """Write no more and remember no changes. A checkpoint that is being written is finished."""
        self._has_ended = True
        self.local.unfollow(self._note)

    def note_growth(self) -> None:
        if self._written and self.position().number - self._written[-1].position.number > self.objects_max_count:
            self._is_behind.set()

    async def run(self) -> None:
        """Write one whenever something has changed, until cancelled; retry while the store is away."""
        while True:
            self._is_behind.clear()
            with trio.move_on_after(INTERVAL_SECONDS):
                await self._is_behind.wait()
            await self.write_until_done()

    async def write_until_done(self) -> None:
        """Write one if something has changed; retry while the store is away. Raises Fenced."""
        while True:
            try:
                await self.write_if_changed()
                return
            except StoreError as exc:
                logger.warning("the metadata has no newer checkpoint yet: %s", exc)
            await trio.sleep(INTERVAL_SECONDS)

    async def write_if_changed(self) -> None:
        moved = len(self._written) < KEPT_COUNT or self._written[0].position < self.position()
        if moved or self._revision != self.local.revision:
            await self.write()

    async def publish(self, revision: int) -> None:
        """Bring the changes up to that revision to the bucket. Raises StoreError, Fenced."""
        if self._revision < revision:
            await self.write()

    async def write(self) -> None:
        """Write one now, and delete unneeded ones. Raises StoreError, Fenced."""
        async with self._writing:
            if self._has_ended:
                return  # later changes were not remembered
            revision, position = self.local.revision, self.position()
            entries_count = max(self._base_count, CHANGES_LEAST_COUNT)
            if self._changes_bytes > self._base_bytes or len(self._changed) > entries_count:
                self._bases.clear()
                self._changes_bytes = 0
            if not self._bases:
                self._changed.clear()
            if len(self._bases) < KEPT_COUNT:
                await self._write_full(position)
            else:
                await self._write_changes(position)
            self._revision = revision
            await self._trim()

    async def _write_full(self, position: WalPosition) -> None:
        entries = _CheckpointEntries()
        async with self.local.snapshot() as snapshot:
            await snapshot.read(None, entries.take)
        key, size_bytes = await self._put(position, entries.body, None)
        self._bases.append(key)
        self._base_count, self._base_bytes = entries.count, size_bytes
        self._written.append(_WrittenCheckpoint(position, key, ()))

    async def _write_changes(self, position: WalPosition) -> None:
        async with self.local.snapshot() as snapshot:
            entries = _CheckpointEntries()  # of all keys that have changed until the snapshot, and perhaps more
            await snapshot.read(list(self._changed), entries.take)
        key, size_bytes = await self._put(position, entries.body, self._bases[0].number)
        self._changes_bytes += size_bytes
        self._written.append(_WrittenCheckpoint(position, key, tuple(self._bases)))

    async def _put(self, position: WalPosition, body: CheckpointBody, base: int | None) -> tuple[NumberedKey, int]:
        parts = body.finish()
        parts = [encode_header(position, parts, base), *parts]
        return await self.versions.write(parts), size_of(parts)

    async def _trim(self) -> None:
        while len(self._written) > KEPT_COUNT:
            self._written.popleft()
        needed = [key for written in self._written for key in (written.key, *written.bases)]
        if len(self._written) < KEPT_COUNT:
            needed += self.versions.of_the_epoch_before()
        await self.versions.trim(needed)
        if len(self._written) == KEPT_COUNT:
            self.on_kept(self._written[0].position)
