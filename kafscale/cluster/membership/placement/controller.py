"""The controller: one broker that writes checkpoints, balances, fails over and deletes old streams for all.

Any broker that serves can be it: by a commit that finds no other live one, or the one that it can't hear of any more.
It is controller for a term, whose number is in the keys of its checkpoints. One that was suspended and goes on does no
harm: its commits fail, and its checkpoints are older than those of the later term.

A controller that hears nothing of most brokers, of three or more, may itself be cut off: it declares no broker dead,
and if that takes too long it steps down. If no broker hears more for PATIENCE_TIMEOUTS, the others are dead or cut off,
too, and it claims again. An AWAY broker waits as long.

A broker that can't read all entries of brokers and placements, because a later version has written them, leaves all
decisions to a broker of that version.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence, Set

import attrs
import trio

from kafscale.cluster.membership.peers.lease import wait_seconds
from kafscale.cluster.membership.peers.liveness import PATIENCE_TIMEOUTS, Liveness, StoreLoss
from kafscale.cluster.membership.peers.loads import UNKNOWN, Loads
from kafscale.cluster.membership.placement.choice import BalancePlanner, Weights, leaders_of_new
from kafscale.cluster.membership.placement.writer import PlacementWriter
from kafscale.cluster.membership.records import (
    CONTROLLER_KEY,
    NEXT_NUMBER_KEY,
    NOBODY,
    BrokerRecord,
    BrokerState,
    ControllerRecord,
    changed_rows,
    record_key,
)
from kafscale.cluster.membership.state import ClusterState, leaderless_count
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import INTERVAL_SECONDS, Checkpointer
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.errors import KafkaError, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.wal.streams import delete_unneeded
from kafscale.metrics import CounterFamily, Metrics, Sample
from kafscale.store.base import ObjectStore
from kafscale.store.version_writer import VersionWriter
from kafscale.store.versions import list_versions

STOPPED_WAIT_SECONDS = 10.0  # for a broker that could not hand over, as all were stopped


@attrs.define(eq=False, repr=False)
class FailOver:
    """Gives the partitions of lost brokers to those with the least load, in one commit that also fences the lost one.

    Nothing acknowledged is lost, without any assumption about clocks. With `--durability segment` a broker looks at the
    head after each upload, before it acknowledges. If it is not fenced by then, the fence comes later, and the next
    leader lists the bucket later still, and finds the segment. If it is fenced, it acknowledges nothing, and the log
    ends behind the start of the next epoch. With `s3-wal` the next leader ends the lost broker's stream before it
    replays it (`kafscale.log.wal.streams`); only a broker that has a stream itself can do that. With `wal` the last
    acknowledged records are only on the lost broker's disk: it is away, and only an operator may fence it.
    """

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
        help = "Partitions that this broker, as the controller, moved from a leader that did not serve."
        metrics.count("kafscale_partitions_failed_over_total", help, lambda: self._moved_count)

    async def run_once(self, by: ControllerRecord, lost: Mapping[int, str], back: Collection[int]) -> None:
        """Declare brokers lost or back, if `by` is the controller, and fail over. Raises StoreError, KafkaError."""
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


LOOK_SECONDS = 1.0
LOOKS_COUNT = 4  # for lost brokers, between two heartbeats
MOST_LEAST_COUNT = 3  # brokers; of two, each that loses the other has lost half
BALANCE_SECONDS = 5.0  # between two looks; while a broker is drained, there is one every LOOK_SECONDS
MOVES_AT_ONCE_COUNT = 50  # partitions that are on their way for the sake of balance
HEAD_TARGET_BYTES = 128 << 10  # a checkpoint is written as soon as the head is larger; each commit writes it

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class Controller:
    """The work of the controller, done while this incarnation is it; `run` it.

    `store` is the background view. Set `serving` when this broker answers requests: from then on it hears of others,
    and becomes the controller if there is no other.
    """

    metadata: SharedMetadataStore
    state: ClusterState
    writer: PlacementWriter
    store: ObjectStore
    namespace: str
    liveness: Liveness
    balance: BalancePlanner
    store_loss: StoreLoss
    fail_over: FailOver = attrs.field(init=False)
    serving: trio.Event = attrs.field(factory=trio.Event, init=False)
    _vacancy: ControllerRecord | None = attrs.field(default=None, init=False)  # after this broker stepped down
    _claims_not_before: float = attrs.field(default=0.0, init=False)
    _is_last_resort: bool = attrs.field(default=False, init=False)
    _checkpointer_term: int = attrs.field(default=-1, init=False)
    _checkpointer: Checkpointer | None = attrs.field(default=None, init=False)
    _kept_until: int = attrs.field(default=0, init=False)
    _balance_at: float = attrs.field(default=0.0, init=False)
    _needed: Set[int] | None = attrs.field(default=None, init=False)  # streams at the last look

    def __attrs_post_init__(self) -> None:
        self.fail_over = FailOver(self.state, self.liveness.session_timeout_seconds, self.balance.known_loads)
        self.metadata.kept_until = lambda: self._kept_until if self.is_mine else 0

    @property
    def is_mine(self) -> bool:
        """Tell whether this broker is the controller, as far as it knows; not if it can't read the record."""
        controller, own = self.state.controller, (self.state.broker_id, self.state.incarnation)
        if controller is None or CONTROLLER_KEY in self.state.unreadable:
            return False
        return (controller.broker_id, controller.incarnation) == own

    def register(self, metrics: Metrics) -> None:
        state = self.state
        metrics.callback(
            "kafscale_brokers", "Brokers that share the bucket, by state.", "state", samples=self._brokers_by_state
        )
        help = "Partitions whose leader does not serve."
        metrics.gauge("kafscale_partitions_without_leader", help, lambda: leaderless_count(state))
        help = "Partitions with unflushed records in the stream of an earlier incarnation."
        metrics.gauge("kafscale_partitions_recovering", help, lambda: len(state.recovering))
        metrics.gauge(
            "kafscale_is_controller", "1 if this broker is the controller, else 0.", lambda: float(self.is_mine)
        )
        help = "Time since the last heartbeat of the quietest broker that this one watches."
        metrics.gauge("kafscale_heartbeat_age_seconds", help, self.liveness.oldest_seconds)
        self.fail_over.register(metrics)

    def _brokers_by_state(self) -> Iterator[Sample]:
        counts = Counter(record.state for record in self.state.brokers.values())
        yield from (((state.value,), counts[state]) for state in BrokerState)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_after_others)
            nursery.start_soon(self._every, LOOK_SECONDS, self._keep_short)
            nursery.start_soon(self._every, INTERVAL_SECONDS, self.write_checkpoint)
            nursery.start_soon(self._every, LOOK_SECONDS, self._balance)
            nursery.start_soon(self._every, BALANCE_SECONDS, self._delete_streams)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except (StoreError, KafkaError) as exc:
                logger.warning("the controller tries again later: %s", exc)
            await trio.sleep(seconds)

    # ---- the choice of the controller ------------------------------------------------------------------------------

    async def _look_after_others(self) -> None:
        await self.serving.wait()
        await self._every(self.liveness.interval_seconds / LOOKS_COUNT, self._look_once)

    async def _look_once(self) -> None:
        if why := self._why_others():
            if self.is_mine and self.state.controller is not None:
                await self._step_down(self.state.controller, why)
            return
        if not self.is_mine and self._should_claim():
            await self._claim()
        if self.is_mine:
            await self._declare()

    def _should_claim(self) -> bool:
        if not self._is_vacant() and not self._is_replaceable():
            if self.state.broker_id not in self.state.live():
                self._be_patient()
            return False
        return trio.current_time() >= self._claims_not_before

    def _is_replaceable(self) -> bool:
        controller = self.state.controller
        if controller is None:
            return False
        is_silent = self.liveness.is_replaceable(controller.broker_id)
        return is_silent or controller.broker_id in self.store_loss.lost(self.state.brokers)

    def _be_patient(self) -> None:
        self._claims_not_before = trio.current_time() + PATIENCE_TIMEOUTS * self.liveness.session_timeout_seconds

    async def _claim(self) -> None:
        seen, is_left = self.state.controller, False

        def plan() -> Transaction | None:
            nonlocal is_left
            if self.state.controller != seen and not self._is_vacant():
                return None
            is_left = self.state.controller is not None and self.state.controller == self._vacancy
            return self._new_term(self.state.broker_id, self.state.incarnation)

        await self.state.commit(plan, self.state.broker_keys)
        if self.is_mine:
            self._is_last_resort = is_left
            self._vacancy = None
            logger.info("this broker is the controller")

    def _new_term(self, broker_id: int, incarnation: int) -> Transaction:
        term = self.state.next_number
        record = ControllerRecord(broker_id=broker_id, incarnation=incarnation, term=term)
        return Transaction(puts={CONTROLLER_KEY: encode(record), NEXT_NUMBER_KEY: encode(term + 1)})

    def _is_vacant(self) -> bool:
        controller = self.state.controller
        if controller is None:
            return True
        record = self.state.brokers.get(controller.broker_id)
        if record is None or record.incarnation != controller.incarnation:
            return True
        return record.state is not BrokerState.LIVE

    # ---- lost brokers ----------------------------------------------------------------------------------------------

    async def _declare(self) -> None:
        controller = self.state.controller
        assert controller is not None
        live = self.state.live()
        lost = {
            lost_id: why
            for lost_id, why in self.liveness.lost().items()
            if lost_id in live and self.liveness.watches(lost_id, live[lost_id].incarnation)
        }
        counted = {*live, self.state.broker_id}  # this one may be AWAY
        others = counted - {self.state.broker_id}
        unheard = [broker_id for broker_id in others if not self.liveness.is_heard(broker_id)]
        if not self._is_last_resort and _are_most(unheard, counted):
            if _are_most(lost, counted):
                why = f"nothing is heard of {len(lost)} brokers, which are most"
                await self._step_down(controller, f"{why}: another one may be the controller")
            return
        self._is_last_resort = self._is_last_resort and _are_most(unheard, counted)
        without_store = self.store_loss.lost(
            {broker_id: record for broker_id, record in live.items() if record.may_fail_over}
        )
        away = [broker_id for broker_id, record in self.state.brokers.items() if record.state is BrokerState.AWAY]
        await self.fail_over.run_once(
            controller, {**without_store, **lost}, [away_id for away_id in away if self.liveness.is_heard(away_id)]
        )

    def _why_others(self) -> str:
        """Return why another broker must be the controller; empty if this one may be."""
        if self.state.unreadable:
            unreadable = ", ".join(self.state.unreadable)
            return f"{unreadable} can't be read here: a broker of a later version is to be the controller"
        own = self.state.brokers.get(self.state.broker_id)
        if own is not None and own.has_no_room:
            others = (
                broker_id
                for broker_id, record in self.state.live().items()
                if record.may_lead and broker_id != self.state.broker_id
            )
            if any(map(self.liveness.is_heard, others)):
                return "its disk is full: another one is to be the controller"
        return ""

    async def _step_down(self, mine: ControllerRecord, why: str) -> None:
        def plan() -> Transaction | None:
            return self._new_term(NOBODY, NOBODY) if self.state.controller == mine else None

        await self.state.commit(plan, self.state.broker_keys)
        controller = self.state.controller
        self._vacancy = controller if controller is not None and controller.broker_id == NOBODY else None
        self._be_patient()
        logger.warning("this broker decides for the others no more, as %s", why)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    async def _keep_short(self) -> None:
        if self.is_mine and self.metadata.head_bytes > HEAD_TARGET_BYTES:
            await self.write_checkpoint()
            await self.metadata.trim()

    async def write_checkpoint(self) -> None:
        """Write a checkpoint if this broker is the controller and something has changed. Raises StoreError, Fenced."""
        if not self.is_mine:
            self._end_checkpoints()
            return
        controller = self.state.controller
        assert controller is not None
        if self._checkpointer is None or self._checkpointer_term != controller.term:
            self._end_checkpoints()
            self._checkpointer = await self._begin_checkpoints(controller.term)
            self._checkpointer_term = controller.term
        await self._checkpointer.write_if_changed()

    def _end_checkpoints(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None

    async def _begin_checkpoints(self, term: int) -> Checkpointer:
        writer = VersionWriter(store=self.store, namespace=self.namespace, kind="checkpoint", epoch=term)
        writer.inherit(await list_versions(self.store, self.namespace, "checkpoint"))

        def keep(position: WalPosition) -> None:
            self._kept_until = position.number

        self._kept_until = 0
        return Checkpointer(
            versions=writer, local=self.metadata.local, position=lambda: self.metadata.applied, on_kept=keep
        )

    # ---- streams ---------------------------------------------------------------------------------------------------

    async def _delete_streams(self) -> None:
        """Delete unneeded streams; look at the bucket only when the set of needed ones has changed."""
        if not self.is_mine or self.state.unreadable:  # an unreadable placement may need some
            self._needed = None
            return
        needed, before = self.state.needed_streams(), self.state.next_number
        if needed != self._needed:
            alone_until = self.metadata.applied.epoch
            await delete_unneeded(self.store, self.namespace, needed, before=before, alone_until=alone_until)
            self._needed = needed

    # ---- balance ---------------------------------------------------------------------------------------------------

    async def _balance(self) -> None:
        if not self.is_mine:
            return
        live = self.state.live()
        if all(record.may_lead for record in live.values()) and trio.current_time() < self._balance_at:
            return
        self._balance_at = trio.current_time() + BALANCE_SECONDS
        moving_count = len(self.state.moving)
        await self.writer.name_targets(self.balance.moves(max(0, MOVES_AT_ONCE_COUNT - moving_count)))


def _are_most(some: Collection[int], counted: Set[int]) -> bool:
    """Tell whether these are more than half of the counted brokers, of three or more."""
    return len(counted) >= MOST_LEAST_COUNT and 2 * len(counted & set(some)) > len(counted)
