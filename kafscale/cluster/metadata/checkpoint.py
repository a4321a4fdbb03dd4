"""Writes and finds the checkpoints of the metadata; their format is `kafscale.log.metadata_checkpoint`.

Entries of LOCAL_PREFIX are about the data directory and stay in it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from kafscale.cluster.metadata.base import Entry, MetadataStore
from kafscale.errors import StoreError
from kafscale.formats.metadata_changes import NO_DELETES, encode_beginning, encode_puts
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.metadata_checkpoint import Checkpoint, decode_checkpoint, encode_header
from kafscale.store.base import Buffer, ObjectStore
from kafscale.store.versions import KEPT_COUNT, Versions, VersionWriter, find_versions

LOCAL_PREFIX = "local/"
INTERVAL_SECONDS = 10.0  # between two checkpoints, while something changes
SLICE_COUNT = 1000  # entries that are encoded between two checkpoints of trio's, about 1 ms

logger = logging.getLogger(__name__)


async def encode_checkpoint(position: WalPosition, entries: Sequence[Entry]) -> list[Buffer]:
    """The object as buffers. Lets others run in between: there may be a hundred thousand entries."""
    kept = [entry for entry in entries if not entry.key.startswith(LOCAL_PREFIX)]
    body = [encode_beginning(len(kept))]
    for start in range(0, len(kept), SLICE_COUNT):
        body.append(encode_puts({entry.key: entry.value for entry in kept[start : start + SLICE_COUNT]}))
        await trio.lowlevel.checkpoint()
    body.append(NO_DELETES)
    return [encode_header(position, body), *body]


# ---- reading ---------------------------------------------------------------------------------------------------------


async def find_checkpoints(store: ObjectStore, namespace: str) -> Versions[Checkpoint]:
    """Raises StoreError."""
    found = await find_versions(store, namespace, "checkpoint", decode_checkpoint)
    for damage in found.damage:
        logger.error("a checkpoint of the metadata is damaged and not used: %s", damage)
    return found


# ---- writing ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True)
class Checkpointer:
    """Writes the checkpoints of one epoch.

    `local` is what they are taken of, `position` says up to where in the log it is complete, and `change_count` grows
    with every change. `on_kept` is told, after each, up to where the log is no longer needed.
    """

    versions: VersionWriter
    local: MetadataStore
    position: Callable[[], WalPosition]
    change_count: Callable[[], int]
    on_kept: Callable[[WalPosition], None] = lambda position: None
    _positions: deque[WalPosition] = attrs.field(factory=deque, init=False)  # of our own
    _seen_change_count: int = attrs.field(default=-1, init=False)

    async def run(self) -> None:
        """Write one whenever something has changed, until cancelled. A store that is away is waited for."""
        while True:
            await trio.sleep(INTERVAL_SECONDS)
            try:
                await self.write_if_changed()
            except StoreError as exc:
                logger.warning("the metadata has no newer checkpoint yet: %s", exc)

    async def write_if_changed(self) -> None:
        """Raises StoreError."""
        moved = len(self._positions) < KEPT_COUNT or self._positions[0] < self.position()
        if moved or self._seen_change_count != self.change_count():
            await self.write()

    async def write(self) -> None:
        """Write one now, and delete all but the last two. Raises StoreError."""
        change_count, position = self.change_count(), self.position()
        await self.versions.write(await encode_checkpoint(position, await self.local.list("")))
        self._seen_change_count = change_count
        self._positions.append(position)
        await self.versions.trim()
        if len(self._positions) >= KEPT_COUNT:
            while len(self._positions) > KEPT_COUNT:
                self._positions.popleft()
            self.on_kept(self._positions[0])
