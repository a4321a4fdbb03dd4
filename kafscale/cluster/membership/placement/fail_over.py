"""Gives the partitions of a lost broker to others, in one commit that also fences it.

    away       it acknowledges by its own disk: its partitions wait for it, and it may go on
    fenced     it may not go on: it can commit nothing, and so acknowledge nothing that the bucket lacks;
               its partitions get other leaders, each with a new epoch

Why nothing acknowledged is lost, without any assumption about clocks. With `--durability segment` a broker looks at the
head after each upload of a segment, before it acknowledges the records (`kafscale.log.flush.upload`). If it is not
fenced by then, the commit that fences it comes later, and the next leader lists the bucket later still, and finds the
segment. If it is fenced, it acknowledges nothing, and the segment is not part of the log: it ends behind the start of
the next epoch. So a broker that was suspended in between may wake up at any time.

With `s3-wal` it acknowledges by its stream, without a look at the head. The next leader ends the stream before it reads
anything, and then replays it: all earlier acknowledged records are found, and none is acknowledged from then on
(`kafscale.log.wal.streams`). Only a broker that has a stream itself can do that.

With `--durability wal` the last acknowledged records are only on the lost broker's disk. So only an operator can give
its partitions to others (`kafscale.cluster.membership.placement.administration`), and they wait until the broker has
had the time to notice.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.membership.peers.lease import wait_seconds
from kafscale.cluster.membership.peers.loads import UNKNOWN, Loads
from kafscale.cluster.membership.placement.choice import Weights, leaders_of_new
from kafscale.cluster.membership.records import (
    NEXT_NUMBER_KEY,
    BrokerRecord,
    BrokerState,
    ControllerRecord,
    changed_rows,
    record_key,
)
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.formats.manifest import PartitionId
from kafscale.metrics import CounterFamily, Metrics

STOPPED_WAIT_SECONDS = 10.0  # for a broker that could not hand over, as all were stopped

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class FailOver:
    """Gives the partitions of lost brokers to those with the least load; `loads` returns the loads."""

    state: ClusterState
    session_timeout_seconds: float
    loads: Callable[[], Loads] = lambda: UNKNOWN
    _seen_revision: int = attrs.field(default=-1, init=False)
    _since: dict[tuple[int, int, BrokerState], float] = attrs.field(factory=dict, init=False)  # seen here first
    _next_at: float = attrs.field(default=math.inf, init=False)  # when the next one may fail over
    _declared: CounterFamily | None = attrs.field(default=None, init=False)
    _moved_count: int = attrs.field(default=0, init=False)

    def register(self, metrics: Metrics) -> None:
        help = "Brokers that this one, as the controller, has declared away or fenced."
        self._declared = metrics.counter("kafscale_brokers_declared_total", help, "state")
        help = "Partitions that this broker, as the controller, has given to others, as their leader did not serve."
        metrics.count("kafscale_partitions_failed_over_total", help, lambda: self._moved_count)

    async def run_once(self, by: ControllerRecord, lost: Mapping[int, str], back: Collection[int]) -> None:
        """Declare brokers lost (id and reason) or back, and give their partitions to others if these may lead them.

        Nothing happens unless `by` is the controller. Raises StoreError, KafkaError.
        """
        is_unchanged = self._seen_revision == self.state.revision and trio.current_time() < self._next_at
        if not lost and not back and is_unchanged:
            return
        plan = _FailOverPlan(self.state, lost, back, self._ripe(), self.loads())

        def make() -> Transaction | None:
            if self.state.controller == by:
                return plan.make()
            plan.forget()
            return None

        await self.state.commit(make, self.state.broker_keys)
        self._seen_revision = self.state.revision
        plan.report()
        self._moved_count += sum(plan.moved.values())
        if self._declared is not None:
            for record in plan.declared.values():
                self._declared.of(record.state.value).value += 1

    def _ripe(self) -> Collection[int]:
        """Return the brokers that have been in their state for long enough to fail over."""
        now = trio.current_time()
        since = {
            (broker_id, record.incarnation, record.state): self._wait_seconds(record)
            for broker_id, record in self.state.brokers.items()
        }
        self._since = {key: self._since.get(key, now) for key in since}
        ripe_at = {key: self._since[key] + wait_seconds for key, wait_seconds in since.items()}
        self._next_at = min((at for at in ripe_at.values() if at > now), default=math.inf)
        return [broker_id for (broker_id, _, _), at in ripe_at.items() if at <= now]

    def _wait_seconds(self, record: BrokerRecord) -> float:
        if record.state is BrokerState.STOPPED:
            return STOPPED_WAIT_SECONDS
        if not record.acknowledges_locally:
            return 0.0
        is_fenced = record.state is BrokerState.FENCED
        return wait_seconds(self.session_timeout_seconds) if is_fenced else math.inf


@attrs.define(eq=False, repr=False)
class _FailOverPlan:
    """One commit, planned anew if others change something; `declared`, `returned` and `moved` are its results."""

    state: ClusterState
    lost: Mapping[int, str]
    back: Collection[int]
    ripe: Collection[int]
    loads: Loads
    _incarnations: Mapping[int, int] = attrs.field(init=False)  # at the beginning of the plan
    declared: dict[int, BrokerRecord] = attrs.field(factory=dict, init=False)
    returned: list[int] = attrs.field(factory=list, init=False)
    moved: Counter[tuple[int, int]] = attrs.field(factory=Counter, init=False)  # old and new leader

    def __attrs_post_init__(self) -> None:
        self._incarnations = {broker_id: record.incarnation for broker_id, record in self.state.brokers.items()}

    def make(self) -> Transaction | None:
        brokers = self._brokers()
        changed = {other_id: record for other_id, record in brokers.items() if record != self.state.brokers[other_id]}
        number = self.state.next_number
        puts = {record_key(broker_id): encode(record) for broker_id, record in changed.items()}
        rows = self._rows(brokers, number)
        puts |= rows
        if not puts:
            return None
        if rows:
            puts[NEXT_NUMBER_KEY] = encode(number + 1)
        return Transaction(puts=puts)

    def forget(self) -> None:
        self.declared.clear()
        self.returned.clear()
        self.moved.clear()

    def _brokers(self) -> dict[int, BrokerRecord]:
        self.forget()
        brokers = dict(self.state.brokers)
        for broker_id, record in self.state.brokers.items():
            if record.incarnation != self._incarnations.get(broker_id):
                continue
            if broker_id in self.lost and record.state is BrokerState.LIVE:
                state = BrokerState.FENCED if record.may_fail_over else BrokerState.AWAY
                brokers[broker_id] = self.declared[broker_id] = attrs.evolve(record, state=state)
            elif broker_id in self.back and record.state is BrokerState.AWAY:
                brokers[broker_id] = attrs.evolve(record, state=BrokerState.LIVE)
                self.returned.append(broker_id)
        return brokers

    def _rows(self, brokers: Mapping[int, BrokerRecord], number: int) -> Mapping[str, bytes]:
        staying = [broker_id for broker_id, record in sorted(brokers.items()) if record.stays]
        new_leaders = [broker_id for broker_id in staying if brokers[broker_id].may_lead] or staying
        new_leaders_with_stream = [broker_id for broker_id in new_leaders if brokers[broker_id].has_stream]
        from_whom = {
            broker_id
            for broker_id, record in brokers.items()
            if broker_id in self.ripe
            and record.may_fail_over
            and record.state in (BrokerState.FENCED, BrokerState.STOPPED)
        }
        gone = {broker_id for broker_id, record in brokers.items() if record.state is not BrokerState.LIVE}
        if not new_leaders or not (from_whom or gone):
            return {}
        orphans = {
            (topic_id, index): placement.recover_from(brokers[placement.leader])
            for topic_id, row in self.state.placements.items()
            for index, placement in enumerate(row)
            if placement.leader in from_whom
        }
        if not new_leaders_with_stream:
            orphans = {partition_id: streams for partition_id, streams in orphans.items() if not streams}
        changed = self.state.without_targets(gone)
        for partition_id, leader in self._new_leaders(orphans, new_leaders, new_leaders_with_stream).items():
            current = self.state.placements[partition_id[0]][partition_id[1]]
            self.moved[current.leader, leader] += 1
            changed[partition_id] = attrs.evolve(
                current, leader=leader, epoch=number, target=None, recover=orphans[partition_id]
            )
        return changed_rows(self.state.placements, changed)

    def _new_leaders(
        self,
        orphans: Mapping[PartitionId, Sequence[int]],
        new_leaders: Collection[int],
        new_leaders_with_stream: Collection[int],
    ) -> Mapping[PartitionId, int]:
        """Choose the new leaders, heaviest partition first."""
        if not orphans:
            return {}
        placements = self.state.placements
        weights = Weights.of(placements, new_leaders, self.loads)
        of_brokers = weights.of_brokers(placements)
        weight_of = {orphan: weights.of_one(placements, orphan) for orphan in orphans}
        own = {topic_id: Counter(placement.leader for placement in placements[topic_id]) for topic_id, _ in orphans}
        chosen: dict[PartitionId, int] = {}
        for partition_id in sorted(orphans, key=lambda orphan: -weight_of[orphan]):
            able = new_leaders_with_stream if orphans[partition_id] else new_leaders
            (leader,) = leaders_of_new(1, able, of_brokers, own[partition_id[0]])
            of_brokers[leader] = of_brokers.get(leader, 0) + weight_of[partition_id]
            own[partition_id[0]][leader] += 1
            chosen[partition_id] = leader
        return chosen

    def report(self) -> None:
        for broker_id, record in self.declared.items():
            what = "fenced" if record.state is BrokerState.FENCED else "away: what it leads waits for it"
            logger.warning("broker %d is declared %s, as %s", broker_id, what, self.lost[broker_id])
        for broker_id in self.returned:
            logger.info("broker %d is heard of again", broker_id)
        for broker_id in sorted({left for left, _ in self.moved}):
            new_leaders = ", ".join(
                f"{count} to broker {leader}"
                for (left, leader), count in sorted(self.moved.items())
                if left == broker_id
            )
            logger.warning("what broker %d led goes to others: %s", broker_id, new_leaders)
