"""Producer ids: none is given twice, even after a lost disk or by a broker that was superseded.

    id = epoch of the broker that hands it out << 32 | number

Each start claims an epoch of its own, so nothing waits for the bucket. Earlier versions counted from 0 over all starts;
the ids of an epoch begin behind theirs. The first number is random: after a bucket was wiped or restored, epochs repeat
while clients keep their ids, and batches of a new producer with such an id would be dropped as repeated.

Ids are reserved durably in blocks of 1,000. Ids that a partition remembers are skipped, as a client may have made them
up. Partitions refuse ids of the block that are not given yet (`is_withheld`), for the same reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

import attrs
import trio

from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.registries.base import EntryRegistry
from kafscale.errors import KafkaError, StoreError
from kafscale.store.paths import EPOCH_MAX
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE

_PREFIX = "producer-ids/"
NEXT_BLOCK_KEY = f"{_PREFIX}next-block"  # above the ids of earlier versions and of adopted topics
BLOCK_COUNT = 1000  # Kafka's
IDS_PER_EPOCH = 1 << 32  # five weeks of a thousand ids a second, behind the random first number
RANDOM_NUMBERS_COUNT = 1 << 30  # a million ids of a lost bucket meet a thousand new ones with a chance of 1 in 1,000
_ENDS = f"{_PREFIX}ends/"


@attrs.define(eq=False, repr=False)
class ProducerIds(EntryRegistry):
    """Hands out the producer ids of an epoch. Call `begin` before use.

    `remembered` returns the ids that the broker's partitions remember.
    """

    PREFIXES: ClassVar = (_PREFIX,)

    epoch: int = attrs.field(default=0, validator=[attrs.validators.ge(0), attrs.validators.le(EPOCH_MAX)])
    remembered: Callable[[], Iterable[int]] = tuple
    first_number: int = attrs.field(factory=lambda: random.randrange(RANDOM_NUMBERS_COUNT))
    _next: int = attrs.field(init=False)
    _end: int = attrs.field(init=False)
    _passed_over: frozenset[int] = attrs.field(factory=frozenset, init=False)  # of the block
    _earlier_end: int = attrs.field(default=0, init=False)
    _ends: dict[int, int] = attrs.field(factory=dict, init=False)  # by epoch
    _reserving: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self._end = self._first + self.first_number
        super().__attrs_post_init__()

    @property
    def _first(self) -> int:
        return self.epoch * IDS_PER_EPOCH

    async def begin(self) -> None:
        """Load, and begin behind the ids in the metadata."""
        await self.load()
        own = range(self._first, self._first + IDS_PER_EPOCH)
        starts = [self._next, self._ends.get(self.epoch, 0), self._earlier_end]
        self._next = self._end = max(start for start in starts if start in own)

    def _delete(self, key: str) -> None:
        pass

    def _put(self, key: str, value: bytes) -> None:
        if not key.startswith((NEXT_BLOCK_KEY, _ENDS)):  # older data has other keys
            return
        end = self._follower.read(key, value, partial(decode, int))
        if end is None:
            return
        if key == NEXT_BLOCK_KEY:
            self._earlier_end = end
        else:
            self._ends[int(key.removeprefix(_ENDS))] = end

    async def allocate(self) -> int:
        """Return a new producer id.

        Raises KafkaError COORDINATOR_NOT_AVAILABLE if the epoch has no ids left, COORDINATOR_LOAD_IN_PROGRESS while the
        store can't be reached.
        """
        async with self._reserving:
            while True:
                if self._next == self._end:
                    await self._reserve_block()
                self._next += 1
                if self._next - 1 not in self._passed_over:
                    return self._next - 1

    def is_withheld(self, producer_id: int) -> bool:
        """Tell whether an id is in the current block and was not given yet."""
        return self._next <= producer_id < self._end and producer_id not in self._passed_over

    async def _reserve_block(self) -> None:
        key = f"{_ENDS}{self.epoch:010d}"
        end = self._end

        async def plan(revision: int) -> Transaction:
            nonlocal end
            known_end = self._ends.get(self.epoch, 0)
            if known_end > self._end:  # another broker hands out ids of this epoch
                self._next = self._end = known_end
            end = min(self._end + BLOCK_COUNT, self._first + IDS_PER_EPOCH)
            if end == self._end:
                raise KafkaError(COORDINATOR_NOT_AVAILABLE, "this broker has no producer ids left: restart it")
            planned_from = PlannedFrom(revision=revision, keys=(key,))
            return Transaction(puts={key: encode(end)}, planned_from=planned_from)

        try:
            await self._commit(plan)
        except StoreError as exc:  # as Kafka without a block of ids; every client retries
            raise KafkaError(
                COORDINATOR_LOAD_IN_PROGRESS, f"can't reserve producer ids in the metadata, try again: {exc}"
            ) from exc
        block, self._end = range(self._end, end), end
        self._passed_over = frozenset(producer_id for producer_id in self.remembered() if producer_id in block)
