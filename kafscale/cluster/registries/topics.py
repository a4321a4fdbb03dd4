"""Topics of the cluster: names, ids, partition counts and configs, durable before anyone sees them.

Each call takes the batch of one request, checks its changes one by one and commits them in one transaction. Batches run
one at a time, so that of two that create the same name the second finds it taken. Of two on different brokers the store
refuses the second, which is then checked anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar

import attrs
import trio

from kafscale.cluster.metadata.base import Change, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.uuids import random_uuid
from kafscale.cluster.registries.base import MetadataRegistry
from kafscale.cluster.registries.topic_configs import BrokerDefaults, canonical_overrides, log_config
from kafscale.cluster.registries.topic_index import Charge, Topic, TopicDraft, TopicIndex
from kafscale.cluster.registries.topic_names import (
    CLUSTER_METADATA_NAME,
    CONSUMER_OFFSETS_NAME,
    TRANSACTION_STATE_NAME,
    check_topic_name,
    is_internal,
    is_valid_topic_name,
)
from kafscale.cluster.registries.topic_records import (
    DELETED_TOPICS,
    LOG_START_OFFSETS,
    LOST_OFFSETS,
    TOPICS,
    DeletedTopic,
    TopicEvent,
    TopicState,
    forget_transaction,
    log_start_offset_key,
    lost_offset_key,
    parse_offset_key,
    plan,
    topic_key,
)
from kafscale.concurrency.turns import in_turns
from kafscale.config import Settings
from kafscale.errors import KafkaError, PlanOutdated
from kafscale.wire.error_codes import (
    INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    LEADER_NOT_AVAILABLE,
    POLICY_VIOLATION,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

__all__ = [
    "DEFAULT",
    "Charge",
    "MorePartitions",
    "NewConfigs",
    "NewTopic",
    "Outcome",
    "Topic",
    "TopicListener",
    "TopicPolicy",
    "TopicRegistry",
]

DELETED_REMEMBERED_MS = 24 * 60 * 60 * 1000  # at least; longer than any upload that was under way can last
FORGOTTEN_MAX_COUNT = 1000  # deleted topics in one commit, which is written as a whole: 50 KB
DEFAULT = -1  # a partition count or replication factor that the client leaves to the broker
# Each copy costs 8 bytes per partition in every metadata reply. Clusters use 3, and have fewer brokers than this.
REPLICATION_FACTOR_MAX = 100
BURST_FRACTION = 1 / 6  # of the topics that may be created in passing in a minute
INTERNAL_OVERRIDES = {"cleanup.policy": "compact"}  # without it, retention would delete what coordinators know
REQUEST_PARTITIONS_MAX_COUNT = 10_000  # made by one request, which takes a second of the event loop; Kafka: the same


@attrs.define(eq=False, repr=False)
class CreationPace:
    """Rate at which topics are created because a client asked about them.

    A bucket of tokens, one for each topic. A sixth of the minute's topics may come at once, the others evenly, so that
    a client that lists thousands of names does not make them all. It is for all clients together; Kafka's controller
    mutation quotas (KIP-599), off by default, are for each. Times are in seconds, by the caller's clock.
    """

    per_minute: int
    _burst: float = attrs.field(init=False)
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._burst = self._tokens = max(1.0, self.per_minute * BURST_FRACTION)

    def take(self, wanted_count: int, now: float) -> int:
        """Return how many of these topics may be created now; they are counted."""
        per_second = self.per_minute * (1 - BURST_FRACTION) / 60
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * per_second)
        self._filled_at = now
        granted_count = min(wanted_count, int(self._tokens))
        self._tokens -= granted_count
        return granted_count


@attrs.frozen(kw_only=True)
class NewTopic:
    """A topic to create. An adopted one, which has data already, has an id and log start offsets too."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    overrides: Mapping[str, str] = attrs.field(factory=dict)
    topic_id: bytes | None = None
    log_start_offsets: Mapping[int, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class MorePartitions:
    """A topic's new, higher number of partitions."""

    name: str
    partition_count: int


@attrs.frozen(kw_only=True)
class NewConfigs:
    """New configs of a topic or group, made from its present ones. `overrides` may raise KafkaError."""

    name: str
    overrides: Callable[[Mapping[str, str]], Mapping[str, str]]


@attrs.frozen(kw_only=True)
class TopicPolicy:
    """The broker's settings of topics."""

    default_partition_count: int = 1
    topic_max_count: int = 10_000
    partition_max_count: int = 100_000
    created_in_passing_per_minute: int = 600
    defaults: BrokerDefaults = attrs.field(factory=BrokerDefaults)
    offsets_topic_partition_count: int = 50
    transaction_state_partition_count: int = 50

    @classmethod
    def of(cls, settings: Settings) -> TopicPolicy:
        return cls(
            default_partition_count=settings.default_partitions_count,
            topic_max_count=settings.limits.max_topics_count,
            partition_max_count=settings.limits.max_partitions_count,
            created_in_passing_per_minute=settings.auto_create_topics_per_minute_count,
            defaults=BrokerDefaults.of(settings),
            offsets_topic_partition_count=settings.offsets_topic_partitions_count,
            transaction_state_partition_count=settings.transaction_state_partitions_count,
        )

    def partition_count_of(self, name: str) -> int:
        """Return the partition count of a topic that is created without one."""
        if name == CONSUMER_OFFSETS_NAME:
            return self.offsets_topic_partition_count
        return (
            self.transaction_state_partition_count if name == TRANSACTION_STATE_NAME else self.default_partition_count
        )


Outcome = Topic | KafkaError  # the topic as it now is (of a deletion: as it was), or why nothing was done
Wanted = TypeVar("Wanted", NewTopic, MorePartitions, NewConfigs, str)


def _ignore(_topic: Topic) -> None:
    pass


def leave_unplaced(_draft: TopicDraft, transaction: Transaction) -> Transaction:
    """Return a transaction as it is: a broker alone leads everything."""
    return transaction


@attrs.frozen(kw_only=True)
class TopicListener:
    """Callbacks for each changed topic, called synchronously after the change is durable and visible.

    `on_changed` (more partitions or other configs) gets the new topic, `on_deleted` the topic as it was. They must not
    raise.
    """

    on_created: Callable[[Topic], None] = _ignore
    on_changed: Callable[[Topic], None] = _ignore
    on_deleted: Callable[[Topic], None] = _ignore

    def tell(self, event: TopicEvent) -> None:
        """Call the callback of an event."""
        if event.after is not None:
            tell = self.on_created if event.before is None else self.on_changed
            tell(event.after)
        elif event.before is not None:
            self.on_deleted(event.before)


@attrs.define(eq=False, kw_only=True, repr=False)
class TopicRegistry(MetadataRegistry):
    """All topics. `place` adds the leaders of new partitions to a transaction."""

    PREFIXES: ClassVar = (TOPICS, LOG_START_OFFSETS, LOST_OFFSETS, DELETED_TOPICS)

    policy: TopicPolicy = attrs.field(factory=TopicPolicy)
    place: Callable[[TopicDraft, Transaction], Transaction] = leave_unplaced
    _state: TopicState = attrs.field(init=False)
    _listeners: list[TopicListener] = attrs.field(factory=list, init=False)
    _pace: CreationPace = attrs.field(init=False)
    revision: int = attrs.field(default=0, init=False)  # of the change that was applied last, or is being applied

    def __attrs_post_init__(self) -> None:
        self._pace = CreationPace(self.policy.created_in_passing_per_minute)
        self._state = TopicState(self.policy.defaults)
        super().__attrs_post_init__()
        self._state.read = self._follower.read

    @property
    def _index(self) -> TopicIndex:
        return self._state.index

    @property
    def defaults(self) -> BrokerDefaults:
        """Configs of a topic without configs of its own."""
        return self._state.defaults

    def use_defaults(self, defaults: BrokerDefaults) -> None:
        """Replace the defaults of topics' configs. Listeners are called for each topic whose configs change."""
        for event in self._state.use_defaults(defaults):
            for listener in self._listeners:
                listener.tell(event)

    async def load(self) -> None:
        """Take in all topics. Call it before `follow`: the caller opens `all`.

        Raises StartupError if a topic has a config that is not accepted: to ignore it could delete data.
        """
        loaded = await self._follower.load()
        self._state.is_running = True
        offsets = [key for key in loaded.puts if key.startswith((LOG_START_OFFSETS, LOST_OFFSETS))]
        orphans = [key for key in offsets if parse_offset_key(key)[0] not in self._index.by_id]
        if orphans:
            planned_from = PlannedFrom(revision=loaded.revision, keys=orphans, prefixes=(TOPICS,))
            with suppress(PlanOutdated):  # the next start looks again
                await self._follower.commit(Transaction(deletes=orphans, planned_from=planned_from, essential=True))

    def follow(self, listener: TopicListener, since: Sequence[Topic] | None = None) -> None:
        """Call the listener for every change from now on, in order; first for differences from `since`, if given."""
        if since is not None:
            for event in self._since({topic.name: topic for topic in since}):
                listener.tell(event)
        self._listeners.append(listener)

    def _since(self, known: Mapping[str, Topic]) -> Iterator[TopicEvent]:
        for name, before in known.items():
            after = self.get(name)
            if after is None or after.topic_id != before.topic_id:
                yield TopicEvent(before, None)
        for after in self.all():
            known_before = known.get(after.name)
            if known_before is None or known_before.topic_id != after.topic_id:
                yield TopicEvent(None, after)
            elif known_before != after:
                yield TopicEvent(known_before, after)

    def _apply(self, change: Change) -> None:
        self.revision = change.revision
        for event in self._state.apply(change):
            for listener in self._listeners:
                listener.tell(event)

    def get(self, name: str) -> Topic | None:
        return self._index.by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._index.by_id.get(topic_id)

    def all(self) -> Sequence[Topic]:
        """Return all topics in order of name."""
        return [self._index.by_name[name] for name in sorted(self._index.by_name)]

    @property
    def partition_count(self) -> int:
        """Partitions of all topics together."""
        return self._index.partition_count

    async def create(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, charge: Charge | None = None
    ) -> list[Outcome]:
        """Create topics. Return an outcome for each, in order, with Kafka's errors and messages.

        `charge` gets the partition count of each topic that is created, or would be; it raises KafkaError to refuse.
        """
        return await self._change(topics, self._plan_creation, validate_only=validate_only, charge=charge)

    async def create_in_passing(self, names: Sequence[str], *, charge: Charge | None = None) -> Mapping[str, int]:
        """Create topics that a client has asked about, as many as their pace allows. Return the errors of the others.

        Clients ask again after LEADER_NOT_AVAILABLE.
        """
        errors: dict[str, int] = {}
        valid = []
        async for name in in_turns(names):
            if is_valid_topic_name(name):
                valid.append(name)
            else:
                errors[name] = INVALID_TOPIC_EXCEPTION
        if not valid:
            return errors
        count = self._pace.take(len(valid), trio.current_time())
        errors.update(dict.fromkeys(valid[count:], LEADER_NOT_AVAILABLE))
        outcomes = await self.create((NewTopic(name=name) for name in valid[:count]), charge=charge)
        for name, outcome in zip(valid[:count], outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                is_for_later = outcome.code == THROTTLING_QUOTA_EXCEEDED
                errors[name] = LEADER_NOT_AVAILABLE if is_for_later else outcome.code
        return errors

    async def create_partitions(
        self, changes: Iterable[MorePartitions], *, validate_only: bool = False, charge: Charge | None = None
    ) -> list[Outcome]:
        """Add partitions to topics, up to the given numbers. `charge` gets the number of added partitions."""
        return await self._change(changes, self._plan_partitions, validate_only=validate_only, charge=charge)

    async def alter(self, changes: Iterable[NewConfigs], *, validate_only: bool = False) -> list[Outcome]:
        """Set other configs on each topic."""
        return await self._change(changes, self._plan_configs, validate_only=validate_only)

    async def delete(
        self, names: Iterable[str], *, topic_ids: Mapping[str, bytes] | None = None, charge: Charge | None = None
    ) -> list[Outcome]:
        """Delete topics. `charge` gets the number of partitions of each.

        A topic named in `topic_ids` is deleted only if it has that id, so that a later one of the same name stays.
        """
        only = topic_ids or {}

        def plan_deletion(draft: TopicDraft, name: str) -> Topic:
            return self._plan_deletion(draft, name, only.get(name))

        return await self._change(names, plan_deletion, charge=charge)

    def log_start_offsets(self, topic_id: bytes) -> Mapping[int, int]:
        """Return the first offset that was not removed, by partition, for partitions with removed records."""
        return self._state.log_start_offsets.get(topic_id, {})

    def lost_offsets(self, topic_id: bytes) -> Mapping[int, int]:
        """Return the offset below which files of the write-ahead log may have been lost, by partition."""
        return self._state.lost_offsets.get(topic_id, {})

    async def set_lost_offsets(self, offsets: Mapping[tuple[bytes, int], int]) -> None:
        """Store the offsets below which records may have been lost. Raises StorageFailed, StorageFull."""
        puts = {lost_offset_key(*partition_id): encode(offset) for partition_id, offset in offsets.items()}
        await self._follower.commit(Transaction(puts=puts, essential=True))

    async def set_log_start_offset(self, topic_id: bytes, partition: int, offset: int) -> None:
        """Store that records below `offset` were removed. The log start offset never goes back.

        Raises KafkaError UNKNOWN_TOPIC_ID, also if the topic is deleted meanwhile, and StorageFull.
        """
        key = log_start_offset_key(topic_id, partition)

        async def raise_it(revision: int) -> Transaction | None:
            topic = self._index.by_id.get(topic_id)
            if topic is None:
                raise KafkaError(UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            if offset <= self.log_start_offsets(topic_id).get(partition, 0):
                return None
            # Retention and DeleteRecords may come at once: the later commit must not undo the earlier one.
            planned_from = PlannedFrom(revision=revision, keys=(topic_key(topic.name), key))
            return Transaction(puts={key: encode(offset)}, planned_from=planned_from, essential=True)

        await self._follower.commit_planned(raise_it)

    @property
    def deleted(self) -> Mapping[bytes, DeletedTopic]:
        """Deleted topics that may still have objects in the bucket, by id."""
        return self._state.deleted

    def has(self, topic_id: bytes, partition: int) -> bool:
        """Tell whether the partition exists."""
        topic = self.by_id(topic_id)
        return topic is not None and partition < topic.partition_count

    def knows(self, topic_id: bytes, partition: int) -> bool:
        """Tell whether the partition exists, or its topic is remembered as deleted.

        The topic of an unknown partition was deleted long ago, or was created after this metadata was written.
        """
        return self.has(topic_id, partition) or topic_id in self.deleted

    async def forget_deleted(self, topic_ids: Iterable[bytes]) -> None:
        """Forget those of these deleted topics without objects that were deleted at least a day ago.

        Until then an upload may be under way. Raises StorageFailed, StorageFull, StoreError.
        """
        ids = list(topic_ids)
        for start in range(0, len(ids), FORGOTTEN_MAX_COUNT):
            async with self._changing:
                deleted, before_ms = self._state.deleted, time.time_ns() // 1_000_000 - DELETED_REMEMBERED_MS
                some = (topic_id for topic_id in ids[start : start + FORGOTTEN_MAX_COUNT] if topic_id in deleted)
                gone = [topic_id for topic_id in some if deleted[topic_id].deleted_ms < before_ms]
                if gone:
                    with suppress(PlanOutdated):  # the next listing of the objects finds out what has changed
                        await self._follower.commit(forget_transaction(gone, self._follower.revision))

    async def _change(
        self,
        changes: Iterable[Wanted],
        attempt: Callable[[TopicDraft, Wanted], Topic],
        *,
        validate_only: bool = False,
        charge: Charge | None = None,
    ) -> list[Outcome]:
        wanted = list(changes)
        outcomes: list[Outcome] = []

        async def draft(revision: int) -> Transaction | None:
            draft = TopicDraft(self._index, charge)
            outcomes[:] = [_attempt(attempt, draft, change) async for change in in_turns(wanted)]
            if validate_only or not draft.changes:
                return None
            planned = self._state.planned = plan(draft, self._state.deleted, revision)
            return self.place(draft, planned.transaction)

        async with self._changing:
            try:
                await self._follower.commit_planned(draft)
            except KafkaError as exc:  # fails every change that was planned
                whole = exc.kept()
                outcomes = [whole if isinstance(outcome, Topic) else outcome for outcome in outcomes]
                return outcomes or [whole] * len(wanted)
            finally:
                self._state.planned = None
            if validate_only:
                return outcomes
            return [self._as_it_is(outcome) if isinstance(outcome, Topic) else outcome for outcome in outcomes]

    def _as_it_is(self, topic: Topic) -> Topic:
        """Return the topic as memory has it, but for one that was deleted."""
        return self._index.by_id.get(topic.topic_id, topic)

    def _plan_creation(self, draft: TopicDraft, new: NewTopic) -> Topic:
        check_topic_name(new.name)
        if new.name == CLUSTER_METADATA_NAME:
            raise KafkaError(INVALID_REQUEST, f"Creation of internal topic {new.name} is prohibited.")
        if draft.get(new.name) is not None:
            raise KafkaError(TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        if (other := draft.colliding_name(new.name)) is not None:
            raise KafkaError(INVALID_TOPIC_EXCEPTION, f"Topic '{new.name}' collides with existing topic: {other}")
        internal = INTERNAL_OVERRIDES if is_internal(new.name) else {}
        overrides = canonical_overrides({**new.overrides, **internal})
        config = log_config(overrides, self.defaults)
        replication_factor = self._replication_factor(new.replication_factor)
        partition_count = self._partition_count(new.name, new.partition_count)
        if draft.topic_count >= self.policy.topic_max_count:
            raise KafkaError(POLICY_VIOLATION, f"There are {draft.topic_count} topics already, as many as are allowed.")
        self._check_room(draft, partition_count)
        _check_request(draft, partition_count)
        topic = Topic(
            name=new.name,
            topic_id=new.topic_id or random_uuid(),
            partition_count=partition_count,
            replication_factor=replication_factor,
            overrides=overrides,
            config=config,
        )
        draft.put(topic)
        if new.log_start_offsets:
            draft.log_start_offsets[topic.topic_id] = new.log_start_offsets
        return topic

    def _plan_partitions(self, draft: TopicDraft, change: MorePartitions) -> Topic:
        topic = _existing(draft, change.name)
        if is_internal(change.name):  # whose coordinator an id has follows from their number
            raise KafkaError(INVALID_REQUEST, f"Partitions of internal topic {change.name} can't be added.")
        if change.partition_count == topic.partition_count:
            raise KafkaError(INVALID_PARTITIONS, f"Topic already has {topic.partition_count} partition(s).")
        if change.partition_count < topic.partition_count:
            raise KafkaError(
                INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {topic.partition_count} partition(s); "
                f"{change.partition_count} would not be an increase.",
            )
        self._check_room(draft, change.partition_count - topic.partition_count)
        _check_request(draft, change.partition_count - topic.partition_count)
        topic = attrs.evolve(topic, partition_count=change.partition_count)
        draft.put(topic)
        return topic

    def _plan_configs(self, draft: TopicDraft, change: NewConfigs) -> Topic:
        topic = _existing(draft, change.name)
        overrides = canonical_overrides(change.overrides(topic.overrides))
        topic = attrs.evolve(topic, overrides=overrides, config=log_config(overrides, self.defaults))
        draft.put(topic)
        return topic

    def _plan_deletion(self, draft: TopicDraft, name: str, topic_id: bytes | None) -> Topic:
        found = draft.get(name)
        if topic_id is not None and (found is None or found.topic_id != topic_id):
            raise KafkaError(UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        topic = _existing(draft, name)
        if is_internal(name):
            raise KafkaError(INVALID_REQUEST, f"Deletion of internal topic {name} is prohibited.")
        draft.remove(topic)
        return topic

    def _replication_factor(self, wanted: int) -> int:
        if wanted == DEFAULT:
            return 1
        if wanted < 1:
            raise KafkaError(
                INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 to use the default value."
            )
        if wanted > REPLICATION_FACTOR_MAX:
            raise KafkaError(
                INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {wanted} time(s): The target replication factor of {wanted} "
                f"cannot be reached because at most {REPLICATION_FACTOR_MAX} is allowed.",
            )
        return wanted

    def _partition_count(self, name: str, wanted: int) -> int:
        if wanted == DEFAULT:
            return self.policy.partition_count_of(name)
        if wanted < 1:
            raise KafkaError(INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
        return wanted

    def _check_room(self, draft: TopicDraft, more: int) -> None:
        if draft.partition_count + more > self.policy.partition_max_count:
            raise KafkaError(
                POLICY_VIOLATION,
                f"{more} more partitions are too many: there are {draft.partition_count} of at most "
                f"{self.policy.partition_max_count}.",
            )


def _check_request(draft: TopicDraft, more: int) -> None:
    if draft.partition_count - draft.index.partition_count + more > REQUEST_PARTITIONS_MAX_COUNT:
        raise KafkaError(POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _attempt(plan: Callable[[TopicDraft, Wanted], Topic], draft: TopicDraft, change: Wanted) -> Outcome:
    try:
        return plan(draft, change)
    except KafkaError as exc:
        return exc.kept()


def _existing(draft: TopicDraft, name: str) -> Topic:
    topic = draft.get(name)
    if topic is None:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic
