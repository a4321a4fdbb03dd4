"""Producer ids: never handed out twice, also over a restart.

Ids are reserved in blocks, durably before the first of a block is used, so that an InitProducerId costs a disk sync
only once in a thousand. What is left of a block at a restart is never used.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from kafscale.cluster.converter import decode, encode
from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.errors import PreconditionFailed

NEXT_BLOCK_KEY = "producer-ids/next-block"
BLOCK_COUNT = 1000  # Kafka's
FOREIGN_IDS_FROM = 1 << 62  # a client that makes up such ids must not use up all that there are


@attrs.define(eq=False)
class ProducerIds:
    """Hands out producer ids."""

    store: MetadataStore
    _next: int = attrs.field(default=0, init=False)
    _end: int = attrs.field(default=0, init=False)
    _reserving: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def allocate(self) -> int:
        """A new producer id, from 0 up."""
        async with self._reserving:
            if self._next == self._end:
                self._next = await self._reserve_block()
                self._end = self._next + BLOCK_COUNT
            self._next += 1
            return self._next - 1

    async def begin_behind(self, known_ids: Iterable[int]) -> None:
        """To be called at the start with the ids that the log remembers: none of them is handed out.

        The metadata may be older than the log, where it comes from a checkpoint. A producer that got an id of another
        one would be taken for that one, and its batches for duplicates.
        """
        last_id = max((each for each in known_ids if each < FOREIGN_IDS_FROM), default=-1)
        entry = await self.store.get(NEXT_BLOCK_KEY)
        if last_id >= (decode(int, entry.value) if entry else 0):
            await self.store.commit(Transaction(puts={NEXT_BLOCK_KEY: encode(last_id + 1)}))

    async def _reserve_block(self) -> int:
        while True:
            entry = await self.store.get(NEXT_BLOCK_KEY)
            start = decode(int, entry.value) if entry else 0
            reservation = Transaction(
                puts={NEXT_BLOCK_KEY: encode(start + BLOCK_COUNT)},
                expect={NEXT_BLOCK_KEY: entry.revision if entry else 0},
            )
            try:
                await self.store.commit(reservation)
            except PreconditionFailed:
                continue  # another broker took this block
            return start
