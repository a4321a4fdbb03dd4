"""Changes of topics: creation, deletion, partition counts and configs, durable before they are visible.

Each call checks the changes of one request one by one and commits them in one transaction. Calls run one at a time, so
that the second of two that create the same name is refused. With two brokers the store refuses the second transaction,
which is then planned anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import attrs
import trio

from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import encode, random_uuid
from kafscale.cluster.registries.topic_configs import BrokerDefaults, canonical_overrides, log_config
from kafscale.cluster.registries.topic_names import (
    CLUSTER_METADATA_NAME,
    CONSUMER_OFFSETS_NAME,
    TRANSACTION_STATE_NAME,
    check_topic_name,
    is_internal,
    is_valid_topic_name,
)
from kafscale.cluster.registries.topic_records import (
    Charge,
    FollowedTopics,
    Topic,
    TopicDraft,
    TopicListener,
    forget_transaction,
    log_start_offset_key,
    lost_offset_key,
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
    "TopicRegistry",
]

DELETED_REMEMBERED_MS = 24 * 60 * 60 * 1000  # at least; longer than any upload that was under way can last
FORGOTTEN_MAX_COUNT = 1000  # deleted topics in one commit, which is written as a whole: 50 KB
DEFAULT = -1  # partition count or replication factor that the broker chooses
# Each copy costs 8 bytes per partition in every metadata reply. Clusters use 3, and have fewer brokers than this.
REPLICATION_FACTOR_MAX = 100
BURST_FRACTION = 1 / 6  # of the topics that may be created in passing in a minute
INTERNAL_OVERRIDES = {"cleanup.policy": "compact"}  # otherwise retention would delete the coordinators' records
REQUEST_PARTITIONS_MAX_COUNT = 10_000  # made by one request: a second of the event loop. Kafka has the same limit.


@attrs.define(eq=False, repr=False)
class CreationPace:
    """Token bucket of topics that are created because a client asked about them: all clients share it.

    A sixth of the minute's topics may come at once, the others evenly, so that a client that lists thousands of names
    does not create them all. Times are in seconds, by the caller's clock.
    """

    per_minute: int
    _burst: float = attrs.field(init=False)
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._burst = self._tokens = max(1.0, self.per_minute * BURST_FRACTION)

    def take(self, wanted_count: int, now: float) -> int:
        """Take tokens for topics; return how many topics may be created now."""
        per_second = self.per_minute * (1 - BURST_FRACTION) / 60
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * per_second)
        self._filled_at = now
        granted_count = min(wanted_count, int(self._tokens))
        self._tokens -= granted_count
        return granted_count


@attrs.frozen(kw_only=True)
class NewTopic:
    """A topic to create. An adopted topic, which has data already, brings its id and log start offsets."""

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


Outcome = Topic | KafkaError  # the new topic, or the deleted one; or why nothing was done
Wanted = TypeVar("Wanted", NewTopic, MorePartitions, NewConfigs, str)


def leave_unplaced(_draft: TopicDraft, transaction: Transaction) -> Transaction:
    """Return a transaction as it is: a broker alone leads everything."""
    return transaction


@attrs.define(eq=False, kw_only=True, repr=False)
class TopicRegistry(FollowedTopics):
    """Changes topics. `place` adds the leaders of new partitions to a transaction."""

    settings: Settings = attrs.field(factory=Settings)
    place: Callable[[TopicDraft, Transaction], Transaction] = leave_unplaced
    _pace: CreationPace = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pace = CreationPace(self.settings.auto_create_topics_per_minute_count)
        self.defaults = BrokerDefaults.of(self.settings)
        super().__attrs_post_init__()

    async def create(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, charge: Charge | None = None
    ) -> list[Outcome]:
        """Create topics. Return the outcomes in order, with Kafka's errors and messages.

        `charge` gets the partition count of each topic, also with `validate_only`; it raises KafkaError to refuse.
        """
        return await self._change(topics, self._plan_creation, validate_only=validate_only, charge=charge)

    async def create_in_passing(self, names: Sequence[str], *, charge: Charge | None = None) -> Mapping[str, int]:
        """Create topics that a client has asked about, as the pace allows. Return the errors of the others by name."""
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
        """Add partitions to topics. `charge` gets the number of added partitions."""
        return await self._change(changes, self._plan_partitions, validate_only=validate_only, charge=charge)

    async def alter(self, changes: Iterable[NewConfigs], *, validate_only: bool = False) -> list[Outcome]:
        """Replace the overrides of topics."""
        return await self._change(changes, self._plan_configs, validate_only=validate_only)

    async def delete(
        self, names: Iterable[str], *, topic_ids: Mapping[str, bytes] | None = None, charge: Charge | None = None
    ) -> list[Outcome]:
        """Delete topics. `charge` gets the number of partitions of each.

        A topic in `topic_ids` is deleted only if it has that id: a later topic of the same name stays.
        """
        only = topic_ids or {}

        def plan_deletion(draft: TopicDraft, name: str) -> Topic:
            return self._plan_deletion(draft, name, only.get(name))

        return await self._change(names, plan_deletion, charge=charge)

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
            topic = self.index.by_id.get(topic_id)
            if topic is None:
                raise KafkaError(UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            if offset <= self.log_start_offsets(topic_id).get(partition, 0):
                return None
            # Retention and DeleteRecords may come at once: the later commit must not undo the earlier one.
            planned_from = PlannedFrom(revision=revision, keys=(topic_key(topic.name), key))
            return Transaction(puts={key: encode(offset)}, planned_from=planned_from, essential=True)

        await self._follower.commit_planned(raise_it)

    async def forget_deleted(self, topic_ids: Iterable[bytes]) -> None:
        """Forget topics without objects a day after deletion. Raises StorageFailed, StorageFull, StoreError."""
        ids = list(topic_ids)
        for start in range(0, len(ids), FORGOTTEN_MAX_COUNT):
            async with self._changing:
                deleted, before_ms = self.deleted, time.time_ns() // 1_000_000 - DELETED_REMEMBERED_MS
                some = (topic_id for topic_id in ids[start : start + FORGOTTEN_MAX_COUNT] if topic_id in deleted)
                gone = [topic_id for topic_id in some if deleted[topic_id].deleted_ms < before_ms]
                if gone:
                    with suppress(PlanOutdated):  # the next listing of the objects tries again
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
            draft = TopicDraft(self.index, charge)
            outcomes[:] = [_attempt(attempt, draft, change) async for change in in_turns(wanted)]
            if validate_only or not draft.changes:
                return None
            planned = self.planned = plan(draft, self.deleted, revision)
            return self.place(draft, planned.transaction)

        async with self._changing:
            try:
                await self._follower.commit_planned(draft)
            except KafkaError as exc:  # fails every change that was planned
                whole = exc.kept()
                outcomes = [whole if isinstance(outcome, Topic) else outcome for outcome in outcomes]
                return outcomes or [whole] * len(wanted)
            finally:
                self.planned = None
            if validate_only:
                return outcomes
            return [  # as in memory, but for a deleted topic
                self.index.by_id.get(outcome.topic_id, outcome) if isinstance(outcome, Topic) else outcome
                for outcome in outcomes
            ]

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
        if draft.topic_count >= self.settings.limits.max_topics_count:
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
        if is_internal(change.name):  # their number determines the coordinator of an id
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
            return {
                CONSUMER_OFFSETS_NAME: self.settings.offsets_topic_partitions_count,
                TRANSACTION_STATE_NAME: self.settings.transaction_state_partitions_count,
            }.get(name, self.settings.default_partitions_count)
        if wanted < 1:
            raise KafkaError(INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
        return wanted

    def _check_room(self, draft: TopicDraft, more: int) -> None:
        max_count = self.settings.limits.max_partitions_count
        if draft.partition_count + more > max_count:
            raise KafkaError(
                POLICY_VIOLATION,
                f"{more} more partitions are too many: there are {draft.partition_count} of at most {max_count}.",
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
