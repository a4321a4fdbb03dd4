"""Replace segments by one of a newer generation: what merging and compaction have in common.

The claim is looked at before the `.kfs` is put, and again before the manifest switches: while it is ours, every later
broker lists the bucket with the new `.kfs` in it, so a superseded one deletes no sources that its successor reads. The
`.kfs` comes first: it is complete by itself. An interruption leaves the sources, and perhaps a right new `.kfs`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.errors import DamagedObject, PreconditionFailed, StoreUnavailable
from kafscale.formats.footer_reading import read_footer_and_tail
from kafscale.formats.manifest import Segment, fingerprint, segment_of
from kafscale.formats.segment import Footer, encode_footer, encode_header
from kafscale.log.bucket.deletion import Deleter
from kafscale.log.flush.upload import segment_key_of
from kafscale.log.partition.partition import Partition
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.paths import SegmentKey

logger = logging.getLogger(__name__)

GENERATIONS_TRIED_COUNT = 5  # by one attempt; each that is taken was written by one that failed at its very end


@attrs.define(eq=False, kw_only=True, repr=False)
class Rewriter:
    """Writes segments that replace others. `store` is the background view; `check_lead` raises Fenced.

    A rewriter holds `turn` while it has a segment in memory, and reserves a partition that it works on for longer; the
    callbacks in `on_released` are called afterwards.
    """

    store: ObjectStore
    deleter: Deleter
    check_lead: Callable[[], Awaitable[None]]
    turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    reserved: set[Partition] = attrs.field(factory=set, init=False)
    on_released: list[Callable[[Partition], None]] = attrs.field(factory=list, init=False)
    # The generations up to which attempts may have left something, by base offset, until one of them is read.
    _tried: WeakKeyDictionary[Partition, dict[int, int]] = attrs.field(factory=WeakKeyDictionary, init=False)

    async def settle(self, partition: Partition) -> None:
        """Wait until no segment of a leaving partition is being replaced; from then on none will be."""
        assert partition.is_leaving
        async with self.turn:
            pass

    @asynccontextmanager
    async def reserve(self, partition: Partition) -> AsyncIterator[None]:
        """Keep the partition's segments from being merged, after a merge under way."""
        async with self.turn:
            self.reserved.add(partition)
        try:
            yield
        finally:
            self.reserved.remove(partition)
            for tell in () if partition.closed else self.on_released:
                tell(partition)

    async def replace(
        self, partition: Partition, sources: Sequence[Segment], footer: Footer, body: Sequence[Buffer]
    ) -> bool:
        """Write a segment from `sources`, and read it instead of them.

        False if sources were taken by retention or rewritten, the topic was deleted, or the partition is leaving.
        `footer` covers all offsets of the sources; its generation is the least possible. Raises Fenced, StoreError.
        """
        if partition.is_leaving:
            return False
        generation = max(footer.identity.generation, *(source.generation + 1 for source in sources))
        merged = await self._put(partition, footer, body, generation)
        if partition.closed:
            store = guarded(self.store)
            await store.delete_in_turn([[merged.kfs_key], [merged.index_key]], store.decided())
            return False
        # A listing tells only where the next one begins: the last source may end before that.
        merged = attrs.evolve(merged, last_offset=max(merged.last_offset, sources[-1].last_offset))
        unneeded = partition.replace_segments(sources, merged)
        self.deleter.drop(unneeded, partition.config.file_delete_delay_ms)
        return partition.manifest.refers_to(merged.key)

    async def _put(
        self, partition: Partition, footer: Footer, body: Sequence[Buffer], first_generation: int
    ) -> Segment:
        """Write both objects, above all generations of earlier attempts."""
        attempts, base_offset = self._tried.setdefault(partition, {}), footer.identity.base_offset
        first_generation = max(first_generation, attempts.get(base_offset, 0))
        for generation in range(first_generation, first_generation + GENERATIONS_TRIED_COUNT):
            tried = attrs.evolve(footer, identity=attrs.evolve(footer.identity, generation=generation))
            key = segment_key_of(partition, tried.identity)
            attempts[base_offset] = generation
            await self._confirm_lead()
            written = await self._put_kfs(key, tried, body)
            if written is not None:
                await self.store.put(key.of_kind("index").key, [encode_footer(tried)])
                await self._confirm_lead()
                del attempts[base_offset]
                return segment_of(key, tried, fingerprint=written)
            logger.info("%s is there from an earlier attempt: taking the next generation", key.key)
        raise PreconditionFailed(f"{key.key} and what is before it are there from earlier attempts")

    async def _put_kfs(self, key: SegmentKey, footer: Footer, body: Sequence[Buffer]) -> int | None:
        """Return the fingerprint of the object, put now or by an equal attempt; None if the key has another one."""
        parts = [encode_header(footer), *body, encode_footer(footer)]
        try:
            etag = await self.store.put_if_absent(key.key, parts)
        except PreconditionFailed:
            return await self._written_before(key, footer)
        return fingerprint(size_of(parts), etag)

    async def _written_before(self, key: SegmentKey, footer: Footer) -> int | None:
        try:
            found, part = await read_footer_and_tail(self.store, key)
        except DamagedObject as exc:
            logger.warning("what an earlier attempt has left can't be used: %s", exc)
            return None
        return fingerprint(part.object_size_bytes, part.etag) if found == footer else None

    async def _confirm_lead(self) -> None:
        """Return if this broker still leads. A damaged claim is not taken for a damaged segment."""
        try:
            await self.check_lead()
        except DamagedObject as exc:
            raise StoreUnavailable(f"the claim is unreadable, so no segment is replaced: {exc}") from exc
