"""Topics in the metadata store: their entries, and the topics in memory that follow them.

    topics/<name>                                  a topic: its id, number of partitions and configs
    log-start-offsets/<topic id>/<partition>       records below it were removed by DeleteRecords or retention
    lost-offsets/<topic id>/<partition>            records below it were lost with files of the write-ahead log
    deleted-topics/<topic id>                      a DeletedTopic, which stays while the bucket may have objects of it

Objects of any other topic may belong to one whose metadata was lost, and are never deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import attrs

from kafscale.cluster.metadata.base import Change, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode, keeping_others, others_field
from kafscale.cluster.registries.base import MetadataRegistry
from kafscale.cluster.registries.topic_configs import BrokerDefaults, canonical_overrides, log_config
from kafscale.cluster.registries.topic_names import collision_key
from kafscale.errors import KafkaError, PlanOutdated, StartupError
from kafscale.log.partition.log_config import LogConfig

Charge = Callable[[str, int], None]  # gets a topic and its number of new or deleted partitions; raises to refuse


@attrs.frozen(kw_only=True)
class Topic:
    """A topic at one moment.

    `topic_id` is 16 bytes and new for each creation. `overrides` are the configs set on the topic, `config` those in
    force for its log. `others` are fields of a later version.
    """

    name: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    overrides: Mapping[str, str]
    config: LogConfig
    others: Mapping[str, object] = others_field()


@attrs.define(eq=False, repr=False)
class TopicIndex:
    by_name: dict[str, Topic] = attrs.field(factory=dict, init=False)
    by_id: dict[bytes, Topic] = attrs.field(factory=dict, init=False)
    names_by_collision_key: dict[str, str] = attrs.field(factory=dict, init=False)
    partition_count: int = attrs.field(default=0, init=False)

    def put(self, topic: Topic) -> None:
        """Add a topic, or replace the one of the same name."""
        self.remove(topic.name)
        self.by_name[topic.name] = self.by_id[topic.topic_id] = topic
        self.names_by_collision_key[collision_key(topic.name)] = topic.name
        self.partition_count += topic.partition_count

    def remove(self, name: str) -> None:
        topic = self.by_name.pop(name, None)
        if topic is None:
            return
        del self.by_id[topic.topic_id]
        del self.names_by_collision_key[collision_key(name)]
        self.partition_count -= topic.partition_count


@attrs.define(eq=False, repr=False)
class TopicDraft:
    """Uncommitted changes on top of an index: the new topics by name, None for a deleted one."""

    index: TopicIndex
    charge: Charge | None = None
    changes: dict[str, Topic | None] = attrs.field(factory=dict, init=False)
    log_start_offsets: dict[bytes, Mapping[int, int]] = attrs.field(factory=dict, init=False)  # of adopted topics
    topic_count: int = attrs.field(init=False)
    partition_count: int = attrs.field(init=False)
    _names_by_collision_key: dict[str, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.topic_count = len(self.index.by_name)
        self.partition_count = self.index.partition_count

    def get(self, name: str) -> Topic | None:
        return self.changes[name] if name in self.changes else self.index.by_name.get(name)

    def colliding_name(self, name: str) -> str | None:
        """Return the name of a topic that differs from this one only by `.` and `_`."""
        key = collision_key(name)
        other = self._names_by_collision_key.get(key) or self.index.names_by_collision_key.get(key)
        return other if other is not None and other != name and self.get(other) is not None else None

    def put(self, topic: Topic) -> None:
        old = self.get(topic.name)
        more_count = topic.partition_count - (old.partition_count if old else 0)
        if more_count and self.charge is not None:
            self.charge(topic.name, more_count)
        self.topic_count += old is None
        self.partition_count += more_count
        self.changes[topic.name] = topic
        self._names_by_collision_key[collision_key(topic.name)] = topic.name

    def remove(self, topic: Topic) -> None:
        if self.charge is not None:
            self.charge(topic.name, topic.partition_count)
        self.topic_count -= 1
        self.partition_count -= topic.partition_count
        self.changes[topic.name] = None


TOPICS = "topics/"
LOG_START_OFFSETS = "log-start-offsets/"
LOST_OFFSETS = "lost-offsets/"
DELETED_TOPICS = "deleted-topics/"
KEEP_EVERYTHING = {"retention.ms": "-1"}

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class DeletedTopic:
    """A deleted topic. Its objects stay for its `file.delete.delay.ms`."""

    name: str
    deleted_ms: int
    file_delete_delay_ms: int = 0

    @property
    def objects_until_ms(self) -> int:
        """The time when its objects may be deleted."""
        return self.deleted_ms + self.file_delete_delay_ms


@keeping_others
@attrs.frozen(kw_only=True)
class _StoredTopic:
    """A topic in the metadata store. `others` are fields of a later version."""

    topic_id: bytes
    partition_count: int
    replication_factor: int = 1
    overrides: dict[str, str] = attrs.field(factory=dict)
    others: Mapping[str, object] = others_field()


def read_topic(name: str, value: bytes, defaults: BrokerDefaults, *, is_running: bool = False) -> Topic:
    """Decode a topic. Raises StartupError if it has a config that this version does not accept.

    A running broker, next to one of a later version, keeps all records of such a topic instead.
    """
    stored = decode(_StoredTopic, value)
    overrides: Mapping[str, str] = stored.overrides
    try:
        overrides = canonical_overrides(overrides)  # earlier versions stored the text that a client had typed
        config = log_config(overrides, defaults)
    except KafkaError as exc:
        refused = f"topic {name} has a config that this version of KafScale refuses: {exc}"
        if not is_running:
            raise StartupError(f"{refused}; start the version that accepted it and change the config") from exc
        logger.error("%s; this broker keeps all its records, and can't start again before it is upgraded", refused)
        config = log_config(KEEP_EVERYTHING, defaults)
    return Topic(
        name=name,
        topic_id=stored.topic_id,
        partition_count=stored.partition_count,
        replication_factor=stored.replication_factor,
        overrides=overrides,
        config=config,
        others=stored.others,
    )


def topic_key(name: str) -> str:
    return f"{TOPICS}{name}"


def deleted_key(topic_id: bytes) -> str:
    return f"{DELETED_TOPICS}{topic_id.hex()}"


def log_start_offset_key(topic_id: bytes, partition: int) -> str:
    return f"{LOG_START_OFFSETS}{topic_id.hex()}/{partition}"


def lost_offset_key(topic_id: bytes, partition: int) -> str:
    return f"{LOST_OFFSETS}{topic_id.hex()}/{partition}"


def parse_offset_key(key: str) -> tuple[bytes, int]:
    _, topic_id, partition = key.split("/")
    return bytes.fromhex(topic_id), int(partition)


@attrs.frozen
class Planned:
    """A transaction that commits a draft, with its decoded values."""

    transaction: Transaction
    topics: Mapping[str, Topic | None]
    deleted: Mapping[bytes, DeletedTopic]

    def has(self, key: str, value: bytes) -> bool:
        return self.transaction.puts.get(key) == value


def plan(draft: TopicDraft, deleted_ids: Mapping[bytes, DeletedTopic], revision: int) -> Planned:
    """Make the transaction that commits a draft of this revision."""
    # No topic at all may have changed meanwhile: it may have a colliding name, or be the last one allowed. A deleted
    # topic exists again if its data was adopted.
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    prefixes: list[str] = []
    buried: dict[bytes, DeletedTopic] = {}
    for name, topic in draft.changes.items():
        old = draft.index.by_name.get(name)
        if topic is not None:
            puts[topic_key(name)] = encode(_stored(topic))
            deletes += [deleted_key(topic.topic_id)] if topic.topic_id in deleted_ids else []
        elif old is not None:
            buried[old.topic_id] = _buried(old)
            puts[deleted_key(old.topic_id)] = encode(buried[old.topic_id])
            deletes.append(topic_key(name))
            prefixes += [f"{prefix}{old.topic_id.hex()}/" for prefix in (LOG_START_OFFSETS, LOST_OFFSETS)]
    for topic_id, offsets in draft.log_start_offsets.items():
        puts |= {log_start_offset_key(topic_id, partition): encode(offset) for partition, offset in offsets.items()}
    transaction = Transaction(
        puts=puts,
        deletes=deletes,
        delete_prefixes=prefixes,
        planned_from=PlannedFrom(revision=revision, prefixes=(TOPICS, DELETED_TOPICS)),
        essential=bool(prefixes),
    )
    return Planned(transaction, draft.changes, buried)


def forget_transaction(topic_ids: Iterable[bytes], revision: int) -> Transaction:
    keys = [deleted_key(topic_id) for topic_id in topic_ids]
    return Transaction(deletes=keys, planned_from=PlannedFrom(revision=revision, keys=keys), essential=True)


def _stored(topic: Topic) -> _StoredTopic:
    return _StoredTopic(
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        overrides=dict(topic.overrides),
        others=topic.others,
    )


def _buried(topic: Topic) -> DeletedTopic:
    return DeletedTopic(
        name=topic.name, deleted_ms=time.time_ns() // 1_000_000, file_delete_delay_ms=topic.config.file_delete_delay_ms
    )


@attrs.frozen
class TopicEvent:
    """Change of a topic: created without `before`, deleted without `after`."""

    before: Topic | None
    after: Topic | None


def _ignore(_topic: Topic) -> None:
    pass


@attrs.frozen(kw_only=True)
class TopicListener:
    """Callbacks for each changed topic, called synchronously after the change is durable and visible.

    `on_changed` (more partitions or other configs) gets the new topic, `on_deleted` the deleted one. They must not
    raise.
    """

    on_created: Callable[[Topic], None] = _ignore
    on_changed: Callable[[Topic], None] = _ignore
    on_deleted: Callable[[Topic], None] = _ignore

    def tell(self, event: TopicEvent) -> None:
        if event.after is not None:
            tell = self.on_created if event.before is None else self.on_changed
            tell(event.after)
        elif event.before is not None:
            self.on_deleted(event.before)


@attrs.define(eq=False, repr=False)
class FollowedTopics(MetadataRegistry):
    """Topics, deleted topics, and the offsets below which partitions lack records, as the metadata store has them.

    `planned` is the transaction of this process that is under way. After the load an unreadable topic is kept instead
    of refused. `revision` is that of the last change.
    """

    PREFIXES: ClassVar = (TOPICS, LOG_START_OFFSETS, LOST_OFFSETS, DELETED_TOPICS)

    defaults: BrokerDefaults = attrs.field(factory=BrokerDefaults, init=False)
    index: TopicIndex = attrs.field(factory=TopicIndex, init=False)
    deleted: dict[bytes, DeletedTopic] = attrs.field(factory=dict, init=False)  # with objects in the bucket, by id
    planned: Planned | None = attrs.field(default=None, init=False)
    revision: int = attrs.field(default=0, init=False)
    _log_start_offsets: dict[bytes, dict[int, int]] = attrs.field(factory=dict, init=False)
    _lost_offsets: dict[bytes, dict[int, int]] = attrs.field(factory=dict, init=False)
    _listeners: list[TopicListener] = attrs.field(factory=list, init=False)

    async def load(self) -> None:
        """Take in all topics, before `follow`. Raises StartupError for a topic with a refused config."""
        loaded = await self._follower.load()
        offsets = [key for key in loaded.puts if key.startswith((LOG_START_OFFSETS, LOST_OFFSETS))]
        orphans = [key for key in offsets if parse_offset_key(key)[0] not in self.index.by_id]
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

    def get(self, name: str) -> Topic | None:
        return self.index.by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self.index.by_id.get(topic_id)

    def all(self) -> Sequence[Topic]:
        """Return all topics in order of name."""
        return [self.index.by_name[name] for name in sorted(self.index.by_name)]

    def has(self, topic_id: bytes, partition: int) -> bool:
        topic = self.by_id(topic_id)
        return topic is not None and partition < topic.partition_count

    def knows(self, topic_id: bytes, partition: int) -> bool:
        """Tell whether the partition exists, or its topic is remembered as deleted.

        The topic of an unknown partition was deleted long ago, or created after this metadata was written.
        """
        return self.has(topic_id, partition) or topic_id in self.deleted

    def log_start_offsets(self, topic_id: bytes) -> Mapping[int, int]:
        """Return the first offset that was not removed, by partition, for partitions with removed records."""
        return self._log_start_offsets.get(topic_id, {})

    def lost_offsets(self, topic_id: bytes) -> Mapping[int, int]:
        """Return the offset below which files of the write-ahead log may have been lost, by partition."""
        return self._lost_offsets.get(topic_id, {})

    def _apply(self, change: Change) -> None:
        self.revision = change.revision
        self._tell(self.apply(change))

    def _tell(self, events: Iterable[TopicEvent]) -> None:
        for event in events:
            for listener in self._listeners:
                listener.tell(event)

    def apply(self, change: Change) -> list[TopicEvent]:
        """Apply a change of the store; return the changes of topics in order. Raises StartupError as `read_topic`."""
        events: list[TopicEvent] = []
        for key in change.deletes:
            if key.startswith(TOPICS):
                events += self._remove(key.removeprefix(TOPICS))
            elif key.startswith(DELETED_TOPICS):
                self.deleted.pop(_deleted_id(key), None)
            elif (known := self._offsets_of(key)) is not None:
                topic_id, partition = parse_offset_key(key)
                known.get(topic_id, {}).pop(partition, None)
        offsets: dict[str, bytes] = {}
        for key, value in change.puts.items():
            if key.startswith(TOPICS):
                if (topic := self._follower.read(key, value, partial(self._topic, key))) is not None:
                    events += self._put(topic)
            elif key.startswith(DELETED_TOPICS):
                if (deleted := self._follower.read(key, value, partial(self._deleted_topic, key))) is not None:
                    self.deleted[_deleted_id(key)] = deleted
            elif self._offsets_of(key) is not None:
                offsets[key] = value
        for key, value in offsets.items():  # when all topics are there
            topic_id, partition = parse_offset_key(key)
            offset = self._follower.read(key, value, partial(decode, int)) if topic_id in self.index.by_id else None
            if offset is not None and (known := self._offsets_of(key)) is not None:
                known.setdefault(topic_id, {})[partition] = offset
        return events

    def use_defaults(self, defaults: BrokerDefaults) -> None:
        """Replace the defaults of topics' configs. Topics whose configs can't be read keep theirs."""
        self.defaults, self.planned = defaults, None  # planned topics have the former configs: they are decoded anew
        events = []
        for topic in list(self.index.by_name.values()):
            with suppress(KafkaError):
                config = log_config(topic.overrides, defaults)
                if config != topic.config:
                    changed = attrs.evolve(topic, config=config)
                    self.index.put(changed)
                    events.append(TopicEvent(topic, changed))
        self._tell(events)

    def _offsets_of(self, key: str) -> dict[bytes, dict[int, int]] | None:
        if key.startswith(LOG_START_OFFSETS):
            return self._log_start_offsets
        return self._lost_offsets if key.startswith(LOST_OFFSETS) else None

    def _topic(self, key: str, value: bytes) -> Topic:
        name = key.removeprefix(TOPICS)
        if self.planned is not None and self.planned.has(key, value):
            topic = self.planned.topics[name]
            assert topic is not None, "a topic was put that was to be deleted"
            return topic
        return read_topic(name, value, self.defaults, is_running=self._follower.is_loaded)

    def _deleted_topic(self, key: str, value: bytes) -> DeletedTopic:
        if self.planned is not None and self.planned.has(key, value):
            return self.planned.deleted[_deleted_id(key)]
        return decode(DeletedTopic, value)

    def _put(self, topic: Topic) -> list[TopicEvent]:
        before = self.index.by_name.get(topic.name)
        # A topic with another id replaces a deleted one.
        replaced = self._remove(topic.name) if before is not None and before.topic_id != topic.topic_id else []
        self.index.put(topic)
        return [*replaced, TopicEvent(None if replaced else before, topic)]

    def _remove(self, name: str) -> list[TopicEvent]:
        topic = self.index.by_name.get(name)
        if topic is None:
            return []
        self.index.remove(name)
        self._log_start_offsets.pop(topic.topic_id, None)
        self._lost_offsets.pop(topic.topic_id, None)
        return [TopicEvent(topic, None)]


def _deleted_id(key: str) -> bytes:
    return bytes.fromhex(key.removeprefix(DELETED_TOPICS))
