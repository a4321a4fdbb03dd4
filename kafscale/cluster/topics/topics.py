"""The topics of the cluster: names, ids, partition counts and configs, durable before anybody sees them.

Reads are synchronous, from memory. Changes take a batch (what one request asks for), are checked one by one, written to
the metadata store in one transaction, and only then applied to memory and told to the log by the callbacks. Batches
run one at a time, so that of two that create the same name the second finds it taken.

Keys: `topics/<name>`, `log-start-offsets/<topic id>/<partition>` for what DeleteRecords and retention removed, and
`deleted-topics/<topic id>`, written with a deletion, for as long as the topic may have objects in the bucket: without
one, the objects of a topic that is not known may be those of a topic whose metadata was lost, and are never deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs
import trio

from kafscale.cluster.configs.topic_configs import BrokerDefaults, log_config
from kafscale.cluster.converter import decode, encode
from kafscale.cluster.metadata.base import Entry, MetadataStore, Transaction
from kafscale.cluster.node import random_uuid
from kafscale.cluster.topics.index import Topic, TopicDraft, TopicIndex
from kafscale.cluster.topics.names import CLUSTER_METADATA_NAME, check_topic_name
from kafscale.config import ReplicationFactorPolicy, Settings
from kafscale.errors import KafkaError, StartupError
from kafscale.wire.error_codes import (
    INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    POLICY_VIOLATION,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

__all__ = ["DEFAULT", "MorePartitions", "NewConfigs", "NewTopic", "Outcome", "Topic", "TopicPolicy", "TopicRegistry"]

DELETED_REMEMBERED_MS = 24 * 60 * 60 * 1000  # at least; longer than any upload that was under way can last
_DELETED = "deleted-topics/"
DEFAULT = -1  # a partition count or replication factor that the client leaves to the broker
# Each copy costs 8 bytes per partition in every metadata reply. Clusters use 3; nobody has more brokers than this.
REPLICATION_FACTOR_MAX = 100


@attrs.frozen(kw_only=True)
class NewTopic:
    """What somebody wants to create. One that has data already, which is adopted, has an id and log starts, too."""

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
    """What is to be set on a topic, given what is set on it now. `overrides` may raise KafkaError."""

    name: str
    overrides: Callable[[Mapping[str, str]], Mapping[str, str]]


@attrs.frozen(kw_only=True)
class TopicPolicy:
    """What the broker's settings say about topics."""

    default_partition_count: int = 1
    accepts_any_replication_factor: bool = True
    topic_max_count: int = 10_000
    partition_max_count: int = 100_000
    defaults: BrokerDefaults = attrs.field(factory=BrokerDefaults)

    @classmethod
    def of(cls, settings: Settings) -> TopicPolicy:
        return cls(
            default_partition_count=settings.default_partitions_count,
            accepts_any_replication_factor=settings.allow_replication_factor is ReplicationFactorPolicy.ACCEPT,
            topic_max_count=settings.limits.max_topics_count,
            partition_max_count=settings.limits.max_partitions_count,
            defaults=BrokerDefaults.of(settings),
        )


@attrs.frozen(kw_only=True)
class DeletedTopic:
    """What is remembered of a deleted topic: its name, and when it was deleted, in milliseconds since the epoch.

    Its objects stay for its `file.delete.delay.ms`.
    """

    name: str
    deleted_ms: int
    file_delete_delay_ms: int = 0

    @property
    def objects_until_ms(self) -> int:
        """When its objects may go."""
        return self.deleted_ms + self.file_delete_delay_ms


Outcome = Topic | KafkaError  # the topic as it now is (of a deletion: as it was), or why nothing was done
Change = TypeVar("Change")


@attrs.frozen(kw_only=True)
class _Stored:
    """A topic as the metadata store has it."""

    topic_id: bytes
    partition_count: int
    replication_factor: int = 1
    overrides: dict[str, str] = attrs.field(factory=dict)


def _ignore(_topic: Topic) -> None:
    pass


@attrs.define(eq=False, kw_only=True)
class TopicRegistry:
    """All topics. `load` it before use.

    The callbacks are called synchronously, once per topic, after the change is durable and visible: `on_created`,
    `on_changed` (more partitions or other configs; gets the new topic) and `on_deleted` (gets the topic as it was).
    They must not raise.
    """

    store: MetadataStore
    policy: TopicPolicy = attrs.field(factory=TopicPolicy)
    on_created: Callable[[Topic], None] = _ignore
    on_changed: Callable[[Topic], None] = _ignore
    on_deleted: Callable[[Topic], None] = _ignore
    _index: TopicIndex = attrs.field(factory=TopicIndex, init=False)
    _log_start_offsets: dict[bytes, dict[int, int]] = attrs.field(factory=dict, init=False)
    _wanted_log_start_offsets: dict[bytes, dict[int, int]] = attrs.field(factory=dict, init=False)  # durable or not
    _deleted: dict[bytes, DeletedTopic] = attrs.field(factory=dict, init=False)
    _changing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def load(self) -> None:
        """Read everything from the metadata store. Calls no callback: the caller opens what `all` gives.

        Raises StartupError if a topic has a config that is not accepted: to ignore it could delete data.
        """
        for entry in await self.store.list("topics/"):
            self._index.put(_loaded(entry, self.policy.defaults))
        await self._load_log_start_offsets()
        for entry in await self.store.list(_DELETED):
            self._deleted[bytes.fromhex(entry.key.removeprefix(_DELETED))] = decode(DeletedTopic, entry.value)

    async def _load_log_start_offsets(self) -> None:
        orphans = []
        for entry in await self.store.list("log-start-offsets/"):
            _, hex_id, partition = entry.key.split("/")
            topic_id = bytes.fromhex(hex_id)
            if topic_id not in self._index.by_id:
                orphans.append(entry.key)
                continue
            offsets = self._log_start_offsets.setdefault(topic_id, {})
            offsets[int(partition)] = decode(int, entry.value)
        if orphans:
            await self.store.commit(Transaction(deletes=orphans))

    def get(self, name: str) -> Topic | None:
        return self._index.by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._index.by_id.get(topic_id)

    def all(self) -> Sequence[Topic]:
        """In order of name."""
        return [self._index.by_name[name] for name in sorted(self._index.by_name)]

    @property
    def partition_count(self) -> int:
        """Partitions of all topics together."""
        return self._index.partition_count

    async def create(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[Outcome]:
        """Create each. An outcome for each, in order, with Kafka's errors and messages."""
        return await self._change(topics, self._plan_creation, self.on_created, validate_only=validate_only)

    async def create_partitions(
        self, changes: Iterable[MorePartitions], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Add partitions to each topic, up to the number given."""
        return await self._change(changes, self._plan_partitions, self.on_changed, validate_only=validate_only)

    async def alter(self, changes: Iterable[NewConfigs], *, validate_only: bool = False) -> list[Outcome]:
        """Set other configs on each topic."""
        return await self._change(changes, self._plan_configs, self.on_changed, validate_only=validate_only)

    async def delete(self, names: Iterable[str]) -> list[Outcome]:
        """Delete each."""
        return await self._change(names, self._plan_deletion, self.on_deleted)

    def log_start_offsets(self, topic_id: bytes) -> Mapping[int, int]:
        """Partition to the first offset that was not removed, for the partitions where something was."""
        return self._log_start_offsets.get(topic_id, {})

    async def set_log_start_offset(self, topic_id: bytes, partition: int, offset: int) -> None:
        """Remember, durably, that what is below `offset` was removed. It never goes back.

        Raises KafkaError UNKNOWN_TOPIC_ID. If the topic is deleted meanwhile, a key stays that `load` removes.
        """
        if topic_id not in self._index.by_id:
            raise KafkaError(UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        if offset <= self.log_start_offsets(topic_id).get(partition, 0):
            return
        # Retention and DeleteRecords may come at once: the later commit must not undo the earlier one.
        wanted = self._wanted_log_start_offsets.setdefault(topic_id, {})
        offset = wanted[partition] = max(offset, wanted.get(partition, 0))
        await self.store.commit(Transaction(puts={f"{_offsets_prefix(topic_id)}{partition}": encode(offset)}))
        if topic_id in self._index.by_id:
            offsets = self._log_start_offsets.setdefault(topic_id, {})
            offsets[partition] = max(offset, offsets.get(partition, 0))

    @property
    def deleted(self) -> Mapping[bytes, DeletedTopic]:
        """Topics that are deleted and may still have objects in the bucket, by their ids."""
        return self._deleted

    async def forget_deleted(self, topic_ids: Iterable[bytes]) -> None:
        """These deleted topics have no objects now; forget those for which no upload can be under way any more."""
        before_ms = time.time_ns() // 1_000_000 - DELETED_REMEMBERED_MS
        async with self._changing:
            gone = [each for each in topic_ids if each in self._deleted and self._deleted[each].deleted_ms < before_ms]
            if gone:
                await self.store.commit(Transaction(deletes=[_deleted_key(topic_id) for topic_id in gone]))
                for topic_id in gone:
                    del self._deleted[topic_id]

    async def _change(
        self,
        changes: Iterable[Change],
        plan: Callable[[TopicDraft, Change], Topic],
        announce: Callable[[Topic], None],
        *,
        validate_only: bool = False,
    ) -> list[Outcome]:
        async with self._changing:
            draft = TopicDraft(self._index)
            outcomes = [_attempt(plan, draft, change) for change in changes]
            if validate_only or not draft.changes:
                return outcomes
            buried = _buried(draft)
            revived = [topic.topic_id for topic in draft.changes.values() if topic and topic.topic_id in self._deleted]
            await self.store.commit(_transaction(draft, buried, revived))
            draft.apply()
            self._deleted.update(buried)
            for topic_id in revived:
                del self._deleted[topic_id]
            for topic_id, offsets in draft.log_start_offsets.items():
                self._log_start_offsets[topic_id] = dict(offsets)
            for outcome in outcomes:
                if isinstance(outcome, Topic):
                    if outcome.topic_id not in self._index.by_id:
                        self._log_start_offsets.pop(outcome.topic_id, None)
                        self._wanted_log_start_offsets.pop(outcome.topic_id, None)
                    announce(outcome)
            return outcomes

    def _plan_creation(self, draft: TopicDraft, new: NewTopic) -> Topic:
        check_topic_name(new.name)
        if new.name == CLUSTER_METADATA_NAME:
            raise KafkaError(INVALID_REQUEST, f"Creation of internal topic {new.name} is prohibited.")
        if draft.get(new.name) is not None:
            raise KafkaError(TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        if (other := draft.colliding_name(new.name)) is not None:
            raise KafkaError(INVALID_TOPIC_EXCEPTION, f"Topic '{new.name}' collides with existing topic: {other}")
        config = log_config(new.overrides, self.policy.defaults)
        replication_factor = self._replication_factor(new.replication_factor)
        partition_count = self._partition_count(new.partition_count)
        if draft.topic_count >= self.policy.topic_max_count:
            raise KafkaError(POLICY_VIOLATION, f"There are {draft.topic_count} topics already, as many as are allowed.")
        self._check_room(draft, partition_count)
        topic = Topic(
            name=new.name,
            topic_id=new.topic_id or random_uuid(),
            partition_count=partition_count,
            replication_factor=replication_factor,
            overrides=dict(new.overrides),
            config=config,
        )
        draft.put(topic)
        if new.log_start_offsets:
            draft.log_start_offsets[topic.topic_id] = new.log_start_offsets
        return topic

    def _plan_partitions(self, draft: TopicDraft, change: MorePartitions) -> Topic:
        topic = _existing(draft, change.name)
        if change.partition_count == topic.partition_count:
            raise KafkaError(INVALID_PARTITIONS, f"Topic already has {topic.partition_count} partition(s).")
        if change.partition_count < topic.partition_count:
            raise KafkaError(
                INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {topic.partition_count} partition(s); "
                f"{change.partition_count} would not be an increase.",
            )
        self._check_room(draft, change.partition_count - topic.partition_count)
        topic = attrs.evolve(topic, partition_count=change.partition_count)
        draft.put(topic)
        return topic

    def _plan_configs(self, draft: TopicDraft, change: NewConfigs) -> Topic:
        topic = _existing(draft, change.name)
        overrides = dict(change.overrides(topic.overrides))
        topic = attrs.evolve(topic, overrides=overrides, config=log_config(overrides, self.policy.defaults))
        draft.put(topic)
        return topic

    def _plan_deletion(self, draft: TopicDraft, name: str) -> Topic:
        topic = _existing(draft, name)
        draft.remove(topic)
        return topic

    def _replication_factor(self, wanted: int) -> int:
        if wanted == DEFAULT:
            return 1
        if wanted < 1:
            raise KafkaError(
                INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        most = REPLICATION_FACTOR_MAX if self.policy.accepts_any_replication_factor else 1
        if wanted > most:
            raise KafkaError(
                INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {wanted} time(s): The target replication factor of {wanted} "
                f"cannot be reached because at most {most} is allowed.",
            )
        return wanted

    def _partition_count(self, wanted: int) -> int:
        if wanted == DEFAULT:
            return self.policy.default_partition_count
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


def _attempt(plan: Callable[[TopicDraft, Change], Topic], draft: TopicDraft, change: Change) -> Outcome:
    try:
        return plan(draft, change)
    except KafkaError as exc:
        return exc


def _existing(draft: TopicDraft, name: str) -> Topic:
    topic = draft.get(name)
    if topic is None:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic


def _loaded(entry: Entry, defaults: BrokerDefaults) -> Topic:
    name, stored = entry.key.removeprefix("topics/"), decode(_Stored, entry.value)
    try:
        config = log_config(stored.overrides, defaults)
    except KafkaError as exc:
        raise StartupError(
            f"topic {name} has a config that this version of KafScale refuses: {exc}; "
            "start the version that accepted it and change the config"
        ) from exc
    return Topic(
        name=name,
        topic_id=stored.topic_id,
        partition_count=stored.partition_count,
        replication_factor=stored.replication_factor,
        overrides=stored.overrides,
        config=config,
    )


def _buried(draft: TopicDraft) -> Mapping[bytes, DeletedTopic]:
    """What a draft deletes."""
    now_ms = time.time_ns() // 1_000_000
    gone = [draft.index.by_name[name] for name, topic in draft.changes.items() if topic is None]
    return {
        topic.topic_id: DeletedTopic(
            name=topic.name, deleted_ms=now_ms, file_delete_delay_ms=topic.config.file_delete_delay_ms
        )
        for topic in gone
    }


def _transaction(draft: TopicDraft, buried: Mapping[bytes, DeletedTopic], revived: Iterable[bytes]) -> Transaction:
    """`revived` are ids of deleted topics that exist again: of adopted ones, whose ids are those of before."""
    puts = {_deleted_key(topic_id): encode(deleted) for topic_id, deleted in buried.items()}
    deletes = [_deleted_key(topic_id) for topic_id in revived]
    prefixes: list[str] = []
    for name, topic in draft.changes.items():
        if topic is not None:
            puts[f"topics/{name}"] = encode(_stored(topic))
        elif (old := draft.index.by_name.get(name)) is not None:
            deletes.append(f"topics/{name}")
            prefixes.append(_offsets_prefix(old.topic_id))
    for topic_id, offsets in draft.log_start_offsets.items():
        puts |= {f"{_offsets_prefix(topic_id)}{partition}": encode(offset) for partition, offset in offsets.items()}
    return Transaction(puts=puts, deletes=deletes, delete_prefixes=prefixes)


def _stored(topic: Topic) -> _Stored:
    return _Stored(
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        overrides=dict(topic.overrides),
    )


def _deleted_key(topic_id: bytes) -> str:
    return f"{_DELETED}{topic_id.hex()}"


def _offsets_prefix(topic_id: bytes) -> str:
    return f"log-start-offsets/{topic_id.hex()}/"
