"""Producer ids: never handed out twice, whatever is lost, and whoever still runs.

    id = epoch of the broker that hands it out << 32 | number

Each start of a broker claims an epoch that no other has had (`kafscale.cluster.start.claim`), so its ids are
nobody else's: not those of a broker whose disk is lost, nor of one that is suspended and goes on handing out ids later.
Nothing must be remembered for that, and nothing waits for the bucket. Earlier versions counted from 0 on over all
starts; the ids of an epoch begin behind theirs.

What is handed out is noted in blocks, durably before the first of a block is used, so that an InitProducerId costs a
disk sync only once in a thousand. So it is known which ids there are (`was_allocated`). Where a broker began without
the last changes of the metadata, as after a lost disk in `wal` mode, nobody knows how many the ones before had handed
out: it may be any of their epochs then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.follower import Follower
from kafscale.errors import KafkaError, StoreError
from kafscale.store.paths import EPOCH_MAX
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE

_PREFIX = "producer-ids/"
NEXT_BLOCK_KEY = f"{_PREFIX}next-block"  # below it are those of earlier versions, and of topics that were adopted
BLOCK_COUNT = 1000  # Kafka's
IDS_PER_EPOCH = 1 << 32  # a start that hands out a thousand each second has enough for seven weeks
_ENDS = f"{_PREFIX}ends/"
_UNCERTAIN = f"{_PREFIX}uncertain/"


async def note_uncertain(store: MetadataStore, first_epoch: int, until_epoch: int) -> None:
    """Note that of these epochs (`until_epoch` exclusive) more ids may be in use than the metadata knows of.

    One of them may have been that of an earlier version, whose ids are small.
    """
    puts = {f"{_UNCERTAIN}{max(0, first_epoch):010d}": encode(until_epoch)}
    if first_epoch > 0 and await store.get(NEXT_BLOCK_KEY) is not None:
        puts[f"{_UNCERTAIN}{0:010d}"] = encode(1)
    await store.commit(Transaction(puts=puts, essential=True))


def _is_alone(_epoch: int) -> bool:
    return False


@attrs.define(eq=False, repr=False)
class ProducerIds:
    """Hands out the producer ids of an epoch; `begin` before use.

    `is_beside` tells whether an epoch may be that of another broker that hands out ids now.
    """

    store: MetadataStore
    epoch: int = attrs.field(default=0, validator=[attrs.validators.ge(0), attrs.validators.le(EPOCH_MAX)])
    is_beside: Callable[[int], bool] = _is_alone
    _next: int = attrs.field(init=False)
    _end: int = attrs.field(init=False)
    _known_ids: frozenset[int] = attrs.field(factory=frozenset, init=False)  # of this epoch, and not from here
    _earlier_end: int = attrs.field(default=0, init=False)
    _ends: dict[int, int] = attrs.field(factory=dict, init=False)  # by epoch
    _uncertain: dict[int, range] = attrs.field(factory=dict, init=False)  # of epochs, by the first of them
    _reserving: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self._end = self._first
        self._follower = Follower(self.store, (_PREFIX,), self._apply, known_keys=tuple)

    @property
    def _first(self) -> int:
        return self.epoch * IDS_PER_EPOCH

    async def begin(self, known_ids: Iterable[int] = ()) -> None:
        """Begin with the ids that the log remembers, none of which is handed out; to be called at the start.

        A client may have made them up. A producer that got the id of another one would be taken for that one, and its
        batches for duplicates.
        """
        await self._follower.load()
        own = range(self._first, self._first + IDS_PER_EPOCH)
        self._known_ids = frozenset(each for each in known_ids if each in own)
        starts = [self._first, self._ends.get(self.epoch, 0), self._earlier_end]
        self._next = self._end = max(each for each in starts if each in own)

    async def run(self) -> None:
        """Catch up with the metadata store by listing it, where it is too far ahead, until cancelled."""
        await self._follower.run()

    def _apply(self, change: Change) -> None:
        """None of these is ever deleted."""
        for key, value in change.puts.items():
            if not key.startswith((NEXT_BLOCK_KEY, _ENDS, _UNCERTAIN)):
                continue
            end = self._follower.read(key, value, partial(decode, int))
            if end is None:
                continue
            if key == NEXT_BLOCK_KEY:
                self._earlier_end = end
            elif key.startswith(_ENDS):
                self._ends[int(key.removeprefix(_ENDS))] = end
            else:
                first_epoch = int(key.removeprefix(_UNCERTAIN))
                self._uncertain[first_epoch] = range(first_epoch, end)

    async def allocate(self) -> int:
        """A new producer id. Raises KafkaError COORDINATOR_NOT_AVAILABLE when all of the epoch's are used up, and
        COORDINATOR_LOAD_IN_PROGRESS while the store is away.
        """
        async with self._reserving:
            while True:
                if self._next == self._end:
                    await self._reserve_block()
                self._next += 1
                if self._next - 1 not in self._known_ids:
                    return self._next - 1

    def was_allocated(self, producer_id: int) -> bool:
        """Tell whether the id may be one that a broker has handed out; never False for one that has been.

        Of ids from before this version, True for all that are below the last block.
        """
        epoch = producer_id // IDS_PER_EPOCH
        if 0 <= producer_id < self._earlier_end or any(epoch in epochs for epochs in self._uncertain.values()):
            return True
        if epoch == self.epoch:
            return producer_id < self._next
        if epoch < 0:
            return False
        # A broker that serves beside this one: what it notes may not have come here yet.
        return self.is_beside(epoch) or producer_id < self._ends.get(epoch, 0)

    async def _reserve_block(self) -> None:
        key = f"{_ENDS}{self.epoch:010d}"
        end = self._end

        async def plan(revision: int) -> Transaction:
            nonlocal end
            known_end = self._ends.get(self.epoch, 0)
            if known_end > self._end:  # somebody else hands out ids of this epoch: those are not ours
                self._next = self._end = known_end
            end = min(self._end + BLOCK_COUNT, self._first + IDS_PER_EPOCH)
            if end == self._end:
                raise KafkaError(COORDINATOR_NOT_AVAILABLE, "this broker has no producer ids left: start it again")
            planned_from = PlannedFrom(revision=revision, keys=(key,))
            return Transaction(puts={key: encode(end)}, planned_from=planned_from)

        try:
            await self._follower.commit_planned(plan)
        except StoreError as exc:  # as Kafka where no block of ids is to be had; every client tries again after that
            raise KafkaError(COORDINATOR_LOAD_IN_PROGRESS, f"the metadata can't be changed just now: {exc}") from exc
        self._end = end
