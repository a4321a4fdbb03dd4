"""Commits changes of placements: changes that are wanted at the same time share a commit, whatever their partitions.

A change is made only of a placement that still has the leader epoch that its maker has seen; so it is made once, also
if the outcome of a first attempt is unknown. A change without a new leader epoch takes no number, so that brokers which
commit such changes of different rows do not outdate each other's plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.membership.placement.choice import Move, leaders_count, leaders_of_new
from kafscale.cluster.membership.records import NEXT_NUMBER_KEY, Placement, changed_rows, record_key, rows_of
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.topic_records import TopicDraft
from kafscale.errors import KafkaError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.placements import topic_rows_prefix
from kafscale.wire.error_codes import BROKER_NOT_AVAILABLE

Change = Callable[[Placement, int], Placement]  # is given a number that no leader epoch has had yet


@attrs.define(eq=False, repr=False)
class WantedChange:
    """A change of the placement with this leader epoch, and its outcome."""

    topic_id: bytes
    index: int
    epoch: int
    change: Change
    is_made: bool | None = attrs.field(default=None, init=False)  # False: the leader epoch has changed
    is_given_up: bool = attrs.field(default=False, init=False)  # its maker waits no more


@attrs.define(eq=False, repr=False)
class PlacementWriter:
    """Makes changes of placements durable."""

    state: ClusterState
    _waiting: list[WantedChange] = attrs.field(factory=list, init=False)
    _committing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def change(self, topic_id: bytes, index: int, epoch: int, change: Change) -> bool:
        """Change the placement with this leader epoch; return False if it has another one.

        Raises StoreError, KafkaError REQUEST_TIMED_OUT: the change may have been made then.
        """
        wanted = WantedChange(topic_id, index, epoch, change)
        await self.change_all([wanted])
        return bool(wanted.is_made)

    async def change_all(self, wanted: Sequence[WantedChange]) -> None:
        """Make changes in one commit, and set `is_made` of each. Raises as `change`."""
        self._waiting += wanted
        try:
            async with self._committing:
                if any(change.is_made is None for change in wanted):
                    await self._commit_waiting()
        except BaseException:
            for change in wanted:
                change.is_given_up = True  # or the next commit would make it, whenever that is
            self._waiting = [change for change in self._waiting if not change.is_given_up]
            raise

    async def name_targets(self, moves: Iterable[Move]) -> None:
        """Name the targets of moves in one commit. Raises as `change`."""
        await self.change_all(
            [WantedChange(move.topic_id, move.index, move.epoch, _with_target(move.target)) for move in moves]
        )

    async def _commit_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            await self._commit(batch)
        except BaseException:
            self._waiting[:0] = [change for change in batch if not change.is_given_up]  # their makers try in turn
            raise

    async def _commit(self, batch: Iterable[WantedChange]) -> None:
        made: set[WantedChange] = set()
        leaders: set[int] = set()  # the plan depends on their records

        def plan() -> Transaction | None:
            number = self.state.next_number
            made.clear()
            leaders.clear()
            is_number_used = False
            changed: dict[PartitionId, Placement] = {}
            for change in batch:
                partition_id = change.topic_id, change.index
                placement = changed.get(partition_id) or self.state.placement(*partition_id)
                if placement is not None and placement.epoch == change.epoch:
                    new = changed[partition_id] = change.change(placement, number)
                    is_number_used = is_number_used or new.epoch != placement.epoch
                    leaders.add(new.leader)
                    made.add(change)
            puts = changed_rows(self.state.placements, changed)
            if is_number_used:
                puts[NEXT_NUMBER_KEY] = encode(number + 1)
            return Transaction(puts=puts) if puts else None

        await self.state.commit(plan, lambda: map(record_key, sorted(leaders)))
        for change in batch:
            change.is_made = change in made


def _with_target(target: int) -> Change:
    def named(current: Placement, _number: int) -> Placement:
        return attrs.evolve(current, target=target)

    return named


def place_topics(
    state: ClusterState, surplus: Mapping[int, float], draft: TopicDraft, transaction: Transaction
) -> Transaction:
    """Add placements of new partitions to the transaction that creates them; rows of deleted topics go with them.

    `surplus` is the weight of each broker's partitions beyond their number; unless it has all brokers, numbers count
    alone. The plan depends on all brokers. Raises KafkaError if no broker may lead.
    """
    brokers = [broker_id for broker_id, record in state.live().items() if record.may_lead]
    counts = leaders_count(state.placements)
    is_known = surplus.keys() >= set(brokers)
    led = {broker: counts.get(broker, 0) + (surplus[broker] if is_known else 0) for broker in brokers}
    number = state.next_number
    puts: dict[str, bytes] = {}
    prefixes = list(transaction.delete_prefixes)
    for name, topic in draft.changes.items():
        if topic is None:
            old = draft.index.by_name.get(name)
            prefixes += [topic_rows_prefix(old.topic_id)] if old is not None else []
            continue
        row = list(state.placements.get(topic.topic_id, ()))
        new_count = topic.partition_count - len(row)
        if new_count and not brokers:
            what = "No broker may lead new partitions: each is being drained or stopped."
            raise KafkaError(BROKER_NOT_AVAILABLE, what)
        leaders = leaders_of_new(new_count, brokers, led, Counter(placement.leader for placement in row))
        for leader_id in leaders:
            led[leader_id] += 1
        first = len(row)
        row += [Placement(leader, number, number, 0) for leader in leaders]
        puts |= rows_of(topic.topic_id, row, range(first, len(row)))
    state.follower.check_readable(puts)
    if puts:
        puts[NEXT_NUMBER_KEY] = encode(number + 1)
    planned_from = transaction.planned_from
    assert planned_from is not None, "topics are planned"
    keys = {*planned_from.keys, *puts, *map(record_key, brokers)}
    return attrs.evolve(
        transaction,
        puts={**transaction.puts, **puts},
        delete_prefixes=tuple(prefixes),
        planned_from=attrs.evolve(planned_from, keys=tuple(keys)),
    )
