"""Topics in the metadata store: their entries, and the state in memory that follows these.

    topics/<name>                                  a topic: its id, number of partitions and configs
    log-start-offsets/<topic id>/<partition>       records below it were removed by DeleteRecords or retention
    lost-offsets/<topic id>/<partition>            records below it were lost with files of the write-ahead log
    deleted-topics/<topic id>                      a DeletedTopic

A DeletedTopic is written with a deletion, and stays while the bucket may have objects of the topic. Objects of a topic
that is in neither list may belong to a topic whose metadata was lost, and are never deleted. The entry goes when the
topic was deleted a day ago or earlier and a listing of the bucket finds none of its objects
(`TopicRegistry.forget_deleted`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

import attrs

from kafscale.cluster.metadata.base import Change, PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode, keeping_others, others_field
from kafscale.cluster.metadata.follower import Read, read_all
from kafscale.cluster.registries.topic_configs import BrokerDefaults, canonical_overrides, log_config
from kafscale.cluster.registries.topic_index import Topic, TopicDraft, TopicIndex
from kafscale.errors import KafkaError, StartupError

TOPICS = "topics/"
LOG_START_OFFSETS = "log-start-offsets/"
LOST_OFFSETS = "lost-offsets/"
DELETED_TOPICS = "deleted-topics/"
KEEP_EVERYTHING = {"retention.ms": "-1"}

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class DeletedTopic:
    """A deleted topic: its name, and the time of its deletion in milliseconds since 1970.

    Its objects stay for its `file.delete.delay.ms`.
    """

    name: str
    deleted_ms: int
    file_delete_delay_ms: int = 0

    @property
    def objects_until_ms(self) -> int:
        """The time from which on its objects may go."""
        return self.deleted_ms + self.file_delete_delay_ms


@keeping_others
@attrs.frozen(kw_only=True)
class _StoredTopic:
    """A topic as the metadata store has it. `others` is what a later version has added."""

    topic_id: bytes
    partition_count: int
    replication_factor: int = 1
    overrides: dict[str, str] = attrs.field(factory=dict)
    others: Mapping[str, object] = others_field()


def read_topic(name: str, value: bytes, defaults: BrokerDefaults, *, is_running: bool = False) -> Topic:
    """A topic from its entry. Raises StartupError if it has a config that is not accepted.

    A broker that is running already, beside one of a later version, keeps all of such a topic instead.
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
        logger.error("%s; this broker deletes nothing of it, and can't be started again before it is upgraded", refused)
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
    """The topic's id, and the partition."""
    _, topic_id, partition = key.split("/")
    return bytes.fromhex(topic_id), int(partition)


@attrs.frozen
class Planned:
    """A transaction that makes a draft true, and what its values say: `topics` by name, deleted ones by id."""

    transaction: Transaction
    topics: Mapping[str, Topic | None]
    deleted: Mapping[bytes, DeletedTopic]

    def has(self, key: str, value: bytes) -> bool:
        """Tell whether these are the bytes that the transaction has for the key."""
        return self.transaction.puts.get(key) == value


def plan(draft: TopicDraft, deleted_ids: Mapping[bytes, DeletedTopic], revision: int) -> Planned:
    """Make the transaction by which a draft of this revision becomes true, given the deleted topics.

    One of these exists again if its data was adopted. Another topic may have a colliding name, or be the last one that
    there may be: so no topic at all may have changed meanwhile.
    """
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
    """Make the transaction that forgets deleted topics, as they are at this revision."""
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
    """Change of a topic. Without `before` it was created, without `after` deleted."""

    before: Topic | None
    after: Topic | None


@attrs.define(eq=False, repr=False)
class TopicState:
    """Topics, the log start offsets of their partitions, and the deleted topics, by their ids.

    `planned` is the transaction of this process that is under way, if there is one. `is_running` says that what there
    was at the start is here: from then on no topic is refused. `read` reads values.
    """

    defaults: BrokerDefaults
    index: TopicIndex = attrs.field(factory=TopicIndex, init=False)
    log_start_offsets: dict[bytes, dict[int, int]] = attrs.field(factory=dict, init=False)
    lost_offsets: dict[bytes, dict[int, int]] = attrs.field(factory=dict, init=False)
    deleted: dict[bytes, DeletedTopic] = attrs.field(factory=dict, init=False)
    planned: Planned | None = attrs.field(default=None, init=False)
    is_running: bool = attrs.field(default=False, init=False)
    read: Read = attrs.field(default=read_all, init=False)

    def apply(self, change: Change) -> list[TopicEvent]:
        """Make a change of the store; what it means to topics, in order. Raises StartupError as `read_topic`."""
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
                if (topic := self.read(key, value, partial(self._topic, key))) is not None:
                    events += self._put(topic)
            elif key.startswith(DELETED_TOPICS):
                if (deleted := self.read(key, value, partial(self._deleted_topic, key))) is not None:
                    self.deleted[_deleted_id(key)] = deleted
            elif self._offsets_of(key) is not None:
                offsets[key] = value
        for key, value in offsets.items():  # when all topics are there
            topic_id, partition = parse_offset_key(key)
            if topic_id in self.index.by_id and (offset := self.read(key, value, partial(decode, int))) is not None:
                known = self._offsets_of(key)
                assert known is not None
                known.setdefault(topic_id, {})[partition] = offset
        return events

    def use_defaults(self, defaults: BrokerDefaults) -> list[TopicEvent]:
        """Replace the defaults of topics' configs; return the topics whose configs change.

        A topic whose configs this version can't read keeps what it has.
        """
        self.defaults, self.planned = defaults, None  # what is planned has the configs of before: it is read anew
        events = []
        for topic in list(self.index.by_name.values()):
            with suppress(KafkaError):
                config = log_config(topic.overrides, defaults)
                if config != topic.config:
                    changed = attrs.evolve(topic, config=config)
                    self.index.put(changed)
                    events.append(TopicEvent(topic, changed))
        return events

    def _offsets_of(self, key: str) -> dict[bytes, dict[int, int]] | None:
        """Return the offsets that a key is one of; None for other keys."""
        if key.startswith(LOG_START_OFFSETS):
            return self.log_start_offsets
        return self.lost_offsets if key.startswith(LOST_OFFSETS) else None

    def _topic(self, key: str, value: bytes) -> Topic:
        name = key.removeprefix(TOPICS)
        if self.planned is not None and self.planned.has(key, value):
            topic = self.planned.topics[name]
            assert topic is not None, "a topic was put that was to be deleted"
            return topic
        return read_topic(name, value, self.defaults, is_running=self.is_running)

    def _deleted_topic(self, key: str, value: bytes) -> DeletedTopic:
        if self.planned is not None and self.planned.has(key, value):
            return self.planned.deleted[_deleted_id(key)]
        return decode(DeletedTopic, value)

    def _put(self, topic: Topic) -> list[TopicEvent]:
        """One of another id in the place of a topic is a new one, after that was deleted."""
        before = self.index.by_name.get(topic.name)
        replaced = self._remove(topic.name) if before is not None and before.topic_id != topic.topic_id else []
        self.index.put(topic)
        return [*replaced, TopicEvent(None if replaced else before, topic)]

    def _remove(self, name: str) -> list[TopicEvent]:
        topic = self.index.by_name.get(name)
        if topic is None:
            return []
        self.index.remove(name)
        self.log_start_offsets.pop(topic.topic_id, None)
        self.lost_offsets.pop(topic.topic_id, None)
        return [TopicEvent(topic, None)]


def _deleted_id(key: str) -> bytes:
    return bytes.fromhex(key.removeprefix(DELETED_TOPICS))
