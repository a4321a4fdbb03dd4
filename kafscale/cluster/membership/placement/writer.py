"""Changes of placements: those that are wanted at the same time share a commit, whatever partitions they are of.

A change is made only of a placement that still has the leader epoch that its maker has seen; so it is made once, also
where the outcome of a first attempt was not known. One that gives no new leader epoch takes no number, so that brokers
which commit such changes of different rows at once are not in each other's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from kafscale.cluster.membership.placement.choice import Move
from kafscale.cluster.membership.records import NEXT_NUMBER_KEY, Placement, changed_rows, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.formats.manifest import PartitionId

Change = Callable[[Placement, int], Placement]  # is given a number that no leader epoch has had yet


@attrs.define(eq=False, repr=False)
class WantedChange:
    """A change of the placement with this leader epoch, and what has become of it."""

    topic_id: bytes
    index: int
    epoch: int
    change: Change
    is_made: bool | None = attrs.field(default=None, init=False)  # False: somebody else has changed the leader epoch
    is_given_up: bool = attrs.field(default=False, init=False)  # nobody waits for it any more


@attrs.define(eq=False, repr=False)
class PlacementWriter:
    """Makes changes of placements durable."""

    state: ClusterState
    _waiting: list[WantedChange] = attrs.field(factory=list, init=False)
    _committing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def change(self, topic_id: bytes, index: int, epoch: int, change: Change) -> bool:
        """Make a change of the placement with this leader epoch; False if it has another one by now.

        Raises StoreError, KafkaError REQUEST_TIMED_OUT: it may or may not have been made then.
        """
        wanted = WantedChange(topic_id, index, epoch, change)
        await self.change_all([wanted])
        return bool(wanted.is_made)

    async def change_all(self, wanted: Sequence[WantedChange]) -> None:
        """Make changes in a commit that they share, each of which tells whether it is made. Raises as `change`."""
        self._waiting += wanted
        try:
            async with self._committing:
                if any(each.is_made is None for each in wanted):
                    await self._commit_waiting()
        except BaseException:
            for each in wanted:
                each.is_given_up = True  # or the next commit would make it, whenever that is
            self._waiting = [each for each in self._waiting if not each.is_given_up]
            raise

    async def name_targets(self, moves: Iterable[Move]) -> None:
        """Say who is to lead what, in a commit that they share. Raises as `change`."""
        await self.change_all(
            [WantedChange(move.topic_id, move.index, move.epoch, _with_target(move.target)) for move in moves]
        )

    async def _commit_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            await self._commit(batch)
        except BaseException:
            self._waiting[:0] = [each for each in batch if not each.is_given_up]  # each tries by itself, in its turn
            raise

    async def _commit(self, batch: Iterable[WantedChange]) -> None:
        made: set[WantedChange] = set()
        leaders: set[int] = set()  # whose records tell whether they are there, and stay

        def plan() -> Transaction | None:
            number = self.state.next_number
            made.clear()
            leaders.clear()
            is_number_used = False
            changed: dict[PartitionId, Placement] = {}
            for each in batch:
                partition_id = each.topic_id, each.index
                placement = changed.get(partition_id) or self.state.placement(*partition_id)
                if placement is not None and placement.epoch == each.epoch:
                    new = changed[partition_id] = each.change(placement, number)
                    is_number_used = is_number_used or new.epoch != placement.epoch
                    leaders.add(new.leader)
                    made.add(each)
            puts = changed_rows(self.state.placements, changed)
            if is_number_used:
                puts[NEXT_NUMBER_KEY] = encode(number + 1)
            return Transaction(puts=puts) if puts else None

        await self.state.commit(plan, lambda: map(record_key, sorted(leaders)))
        for each in batch:
            each.is_made = each in made


def _with_target(target: int) -> Change:
    def named(current: Placement, _number: int) -> Placement:
        return attrs.evolve(current, target=target)

    return named
