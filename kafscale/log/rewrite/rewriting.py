"""Putting one segment of a newer generation into the place of others: what merging and compaction have in common.

    claim      does this broker still lead?
    .kfs       put with If-None-Match, one generation above its sources, or above what an earlier attempt left there
    .index     put: the `.kfs` at this key is ours, so it is the one that goes with it
    claim      does it still lead?
    commit     in one step the manifest has the new segment instead of its sources, if they are still there
    drop       the sources' objects stay for `file.delete.delay.ms`, then they go

The `.kfs` comes first. It is complete by itself: whoever lists the bucket prefers it from then on, which is right, and
a start writes its `.index` again. An `.index` that is there first would tell of an object that is not there.

Whatever is cut short leaves the sources where they are, and read. The new `.kfs` that it may leave behind is

    found by the next start, which reads it, and leaves its sources to the collection of orphans
    or arrives too late for that; then it stays unread until something newer covers it

and in both cases says nothing wrong: it has the sources' records, and the log start, which is made durable before a
segment is dropped, holds for it as well.

A broker that has been superseded must not delete sources that its successor reads. The second look at the claim sees to
that: while it is still ours, every later broker will list the bucket with the new `.kfs` in it, so none will read the
sources. A broker that finds itself superseded leaves everything as it is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from kafscale.errors import PreconditionFailed
from kafscale.formats.manifest import Segment, fingerprint
from kafscale.formats.segment import Footer, encode_footer, encode_header
from kafscale.log.deletion import Deleter
from kafscale.log.flush.upload import segment_key_of, segment_of
from kafscale.log.partition.partition import Partition
from kafscale.store.base import Buffer, ObjectStore

logger = logging.getLogger(__name__)

GENERATIONS_TRIED_COUNT = 5  # each that is taken was written by an attempt that failed at its very end


@attrs.define(eq=False, kw_only=True)
class Rewriter:
    """Writes segments that replace others. `store` is the background view; `check_lead` raises Fenced.

    Whoever rewrites holds `turn` while it has a segment in memory, so that there is one at a time. Who is at the same
    partition for longer reserves it; `on_released` is called afterwards.
    """

    store: ObjectStore
    deleter: Deleter
    check_lead: Callable[[], Awaitable[None]]
    turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    reserved: set[Partition] = attrs.field(factory=set, init=False)
    on_released: Callable[[Partition], None] = attrs.field(default=lambda partition: None, init=False)

    @asynccontextmanager
    async def reserve(self, partition: Partition) -> AsyncIterator[None]:
        """Keep its segments from being merged meanwhile, once a merge that is under way is over."""
        async with self.turn:
            self.reserved.add(partition)
        try:
            yield
        finally:
            self.reserved.remove(partition)
            if not partition.closed:
                self.on_released(partition)

    async def replace(
        self, partition: Partition, sources: Sequence[Segment], footer: Footer, body: Sequence[Buffer]
    ) -> bool:
        """Write a segment that has all that is to be kept of `sources`, and read it instead of them.

        False if that is not wanted any more: retention or a rewriting has taken them, or the topic was deleted.
        `footer` tells of all offsets that the sources have; its generation is the least that will do. Raises Fenced,
        DamagedObject (of the claim), StoreError.
        """
        generation = max(footer.identity.generation, *(source.generation + 1 for source in sources))
        merged = await self._put(partition, footer, body, generation)
        if partition.closed:
            await self.store.delete([merged.kfs_key])
            await self.store.delete([merged.index_key])
            return False
        # A listing tells only where the next one begins: the last source may end before that.
        merged = attrs.evolve(merged, last_offset=max(merged.last_offset, sources[-1].last_offset))
        unneeded = partition.replace_segments(sources, merged)
        self.deleter.drop(unneeded, partition.config.file_delete_delay_ms)
        return partition.manifest.refers_to(merged.key)

    async def _put(
        self, partition: Partition, footer: Footer, body: Sequence[Buffer], first_generation: int
    ) -> Segment:
        generation = first_generation
        while True:
            tried = attrs.evolve(footer, identity=attrs.evolve(footer.identity, generation=generation))
            key = segment_key_of(partition, tried.identity)
            encoded = encode_footer(tried)
            parts = [encode_header(tried), *body, encoded]
            await self.check_lead()
            try:
                etag = await self.store.put_if_absent(key.key, parts)
            except PreconditionFailed:
                generation += 1
                if generation == first_generation + GENERATIONS_TRIED_COUNT:
                    raise
                logger.info("%s is there from an earlier attempt: taking the next generation", key.key)
                continue
            await self.store.put(key.of_kind("index").key, [encoded])
            await self.check_lead()
            return segment_of(key, tried, fingerprint=fingerprint(sum(map(len, parts)), etag))
