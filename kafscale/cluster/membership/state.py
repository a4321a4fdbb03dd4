"""Brokers and placements in memory.

`ClusterState` follows the metadata, and nothing else alters it. `LoneState` is that of a broker that has the bucket to
itself: the metadata holds no brokers or placements then, because this broker leads every partition of every topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial

import attrs
import trio

from kafscale.cluster.membership.records import (
    BROKERS,
    CLUSTER,
    CONTROLLER_KEY,
    NEXT_NUMBER_KEY,
    NOBODY,
    BrokerRecord,
    BrokerState,
    ControllerRecord,
    Placement,
    decode_row,
    parse_record_key,
    record_key,
)
from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.follower import Follower
from kafscale.cluster.registries.topics import TopicRegistry
from kafscale.concurrency.signals import Signal
from kafscale.formats.manifest import PartitionId
from kafscale.formats.placements import ASSIGNMENTS, ROW_COUNT, parse_row_key

Listener = Callable[[Collection[bytes]], None]  # gets the ids of topics whose placements have changed, perhaps none


@attrs.define(eq=False, repr=False)
class ClusterState:
    """Brokers and placements as the metadata has them. `load` it before use.

    `broker_id` and `incarnation` are those of this broker, once it has registered; `secret` proves that to others.
    `placements` are by topic id, in order of index. `recovering` partitions need earlier streams, `moving` ones have a
    target. `revision` grows with each change. `unreadable` are the keys of entries that only a later version can read.
    """

    store: MetadataStore
    broker_id: int = NOBODY
    incarnation: int = NOBODY
    secret: bytes = attrs.field(default=b"", init=False)
    follower: Follower = attrs.field(init=False)
    brokers: dict[int, BrokerRecord] = attrs.field(factory=dict, init=False)
    controller: ControllerRecord | None = attrs.field(default=None, init=False)
    next_number: int = attrs.field(default=0, init=False)
    placements: Mapping[bytes, Sequence[Placement]] = attrs.field(init=False)
    _rows: dict[bytes, list[Placement]] = attrs.field(factory=dict, init=False)
    recovering: set[PartitionId] = attrs.field(factory=set, init=False)
    moving: set[PartitionId] = attrs.field(factory=set, init=False)
    revision: int = attrs.field(default=0, init=False)
    listeners: list[Listener] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.placements = self._rows
        self.follower = Follower(self.store, (BROKERS, CLUSTER, ASSIGNMENTS), self._apply)

    @property
    def unreadable(self) -> Collection[str]:
        return self.follower.unreadable

    @property
    def registered(self) -> Mapping[int, BrokerRecord]:
        return self.brokers

    async def load(self) -> None:
        """Read the metadata. Raises DamagedObject for entries that only a later version can read."""
        await self.follower.load()

    def live(self) -> Mapping[int, BrokerRecord]:
        """Return the brokers that serve, in order of id."""
        live = {broker_id: record for broker_id, record in self.brokers.items() if record.state is BrokerState.LIVE}
        return dict(sorted(live.items()))

    def placement(self, topic_id: bytes, index: int) -> Placement | None:
        placements = self.placements.get(topic_id, ())
        return placements[index] if 0 <= index < len(placements) else None

    def is_current(self, broker_id: int, incarnation: int) -> bool:
        """Tell whether an incarnation may act as its broker."""
        record = self.brokers.get(broker_id)
        return record is not None and record.incarnation == incarnation and record.state is not BrokerState.FENCED

    def is_own_current(self) -> bool:
        return self.is_current(self.broker_id, self.incarnation)

    @property
    def own(self) -> BrokerRecord | None:
        """Return the record of this incarnation, if it has not been replaced."""
        record = self.brokers.get(self.broker_id)
        return record if record is not None and record.incarnation == self.incarnation else None

    def recover(self, partition_id: PartitionId) -> Sequence[int]:
        """Return the incarnations from whose streams a partition must be recovered."""
        placement = self.placement(*partition_id)
        return () if placement is None else placement.recover

    def needed_streams(self) -> Set[int]:
        """Return the incarnations whose streams are written, or recovered from.

        One that has stopped, or was fenced, and leads nothing needs its stream no more: it comes back as another one.
        """
        needed = {number for partition_id in self.recovering for number in self.recover(partition_id)}
        leading: set[int] = set()
        if any(map(_is_over, self.brokers.values())):
            leading = {placement.leader for row in self.placements.values() for placement in row}
        return needed | {
            record.incarnation
            for broker_id, record in self.brokers.items()
            if not _is_over(record) or broker_id in leading
        }

    def led_by(self, broker_id: int) -> Iterator[tuple[bytes, int, Placement]]:
        for topic_id, placements in self.placements.items():
            for index, placement in enumerate(placements):
                if placement.leader == broker_id:
                    yield topic_id, index, placement

    def without_targets(self, gone: Collection[int]) -> dict[PartitionId, Placement]:
        """Return the placements that have one of these brokers as target, without it: balance chooses anew."""
        moving = {
            partition_id: self.placements[partition_id[0]][partition_id[1]] for partition_id in sorted(self.moving)
        }
        return {
            partition_id: attrs.evolve(found, target=None)
            for partition_id, found in moving.items()
            if found.target in gone
        }

    async def commit(self, plan: Callable[[], Transaction | None], seen: Callable[[], Iterable[str]] = tuple) -> None:
        """Commit a plan as essential, and plan anew if others change its keys: those that it puts, and `seen` ones.

        `plan` returns None if there is nothing to do. Raises as `Follower.commit_planned`.
        """

        async def planned(revision: int) -> Transaction | None:
            transaction = plan()
            if transaction is None:
                return None
            planned_from = PlannedFrom(revision=revision, keys=[*transaction.puts, *seen()])
            return attrs.evolve(transaction, planned_from=planned_from, essential=True)

        await self.follower.commit_planned(planned)

    def broker_keys(self) -> Sequence[str]:
        """Return the keys that change when a broker comes or goes, or a number is taken."""
        return [NEXT_NUMBER_KEY, *map(record_key, self.brokers)]

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when `is_so` returns True; it is called again whenever this state changes."""
        changed = Signal()
        self.listeners.append(tell := lambda _topic_ids: changed.wake())
        try:
            while not is_so():
                await changed.wait()
        finally:
            self.listeners.remove(tell)

    # ---- following -------------------------------------------------------------------------------------------------

    def _apply(self, change: Change) -> None:
        topics: dict[bytes, None] = {}  # as a set, in order
        for key in change.deletes:
            if (row_id := parse_row_key(key)) is not None:
                topics[row_id[0]] = None
                self._remove_row(*row_id)
            elif (broker_id := parse_record_key(key)) is not None:
                self.brokers.pop(broker_id, None)
        read = self.follower.read
        for key, value in change.puts.items():
            if (row_id := parse_row_key(key)) is not None:
                if (row := read(key, value, decode_row)) is not None:
                    topics[row_id[0]] = None
                    self._put_row(*row_id, row)
            elif (broker_id := parse_record_key(key)) is not None:
                if (record := read(key, value, partial(decode, BrokerRecord))) is not None:
                    self.brokers[broker_id] = record
            elif key == CONTROLLER_KEY:
                self.controller = read(key, value, partial(decode, ControllerRecord)) or self.controller
            elif key == NEXT_NUMBER_KEY:
                self.next_number = read(key, value, partial(decode, int)) or self.next_number
        self.revision += 1
        for tell in tuple(self.listeners):
            tell(topics.keys())

    def _put_row(self, topic_id: bytes, first: int, row: Sequence[Placement]) -> None:
        placements = self._rows.setdefault(topic_id, [])
        placements[first : first + ROW_COUNT] = row
        for index, placement in enumerate(row, start=first):
            for partitions, has in ((self.recovering, placement.recover), (self.moving, placement.target is not None)):
                if has:
                    partitions.add((topic_id, index))
                else:
                    partitions.discard((topic_id, index))

    def _remove_row(self, topic_id: bytes, first: int) -> None:
        placements = self._rows.get(topic_id, [])
        for partitions in (self.recovering, self.moving):
            partitions.difference_update((topic_id, index) for index in range(first, len(placements)))
        del placements[first:]  # rows go with their topic, all of them
        if not placements:
            self._rows.pop(topic_id, None)


def _is_over(record: BrokerRecord) -> bool:
    return record.state in (BrokerState.STOPPED, BrokerState.FENCED)


def leaderless_count(state: ClusterState) -> int:
    live = state.live()
    return sum(placement.leader not in live for row in state.placements.values() for placement in row)


@attrs.frozen(eq=False, repr=False)
class _SamePlacement(Mapping[bytes, Sequence[Placement]]):
    """One placement for every partition of every topic."""

    topics: TopicRegistry
    placement: Placement

    def __getitem__(self, topic_id: bytes) -> Sequence[Placement]:
        topic = self.topics.by_id(topic_id)
        if topic is None:
            raise KeyError(topic_id)
        return [self.placement] * topic.partition_count

    def __iter__(self) -> Iterator[bytes]:
        return (topic.topic_id for topic in self.topics.all())

    def __len__(self) -> int:
        return len(self.topics.all())


@attrs.define(eq=False, repr=False)
class LoneState(ClusterState):
    """The state of a lone broker, which is the controller, and leads all partitions with the epoch of its claim."""

    record: BrokerRecord = attrs.field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        epoch = self.incarnation = self.record.incarnation
        self.brokers[self.broker_id] = self.record
        self.controller = ControllerRecord(broker_id=self.broker_id, incarnation=epoch, term=epoch)
        self.next_number = epoch + 1
        self.placements = self._rows

    def lead_all(self, topics: TopicRegistry) -> None:
        epoch = self.record.incarnation
        self.placements = _SamePlacement(topics, Placement(self.broker_id, epoch, epoch, 0))

    @property
    def registered(self) -> Mapping[int, BrokerRecord]:
        return {}

    @property
    def unreadable(self) -> Collection[str]:
        return ()

    async def commit(self, plan: Callable[[], Transaction | None], seen: Callable[[], Iterable[str]] = tuple) -> None:
        """Call `plan`, which raises for a change of the only broker; there is nothing to write."""
        transaction = plan()
        assert transaction is None, "the brokers and placements of a lone broker do not change"
        await trio.lowlevel.checkpoint()
