"""What the metadata store says about topics, in memory: it follows the store's changes, and nothing else alters it.

A change is applied in one way, whoever has committed it; only where its values come from differs. While a transaction
of this process is under way, what its values were made of is at hand: a change that has the very same bytes gets these
objects, and any other is decoded. To decode what had just been encoded was a third of the time of a large creation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import attrs

from kafscale.cluster.configs.topic_configs import BrokerDefaults, log_config
from kafscale.cluster.metadata.base import Change
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.follower import Read, read_all
from kafscale.cluster.topics.index import Topic, TopicIndex
from kafscale.cluster.topics.records import (
    DELETED_TOPICS,
    LOG_START_OFFSETS,
    LOST_OFFSETS,
    TOPICS,
    DeletedTopic,
    Planned,
    deleted_key,
    log_start_offset_key,
    lost_offset_key,
    parse_offset_key,
    read_topic,
    topic_key,
)
from kafscale.errors import KafkaError


@attrs.frozen
class TopicEvent:
    """What has become of a topic. Without `before` it was created, without `after` deleted."""

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

    def keys(self) -> Iterator[str]:
        """Yield the keys of all that is here."""
        yield from map(topic_key, self.index.by_name)
        yield from map(deleted_key, self.deleted)
        for topic_id, offsets in self.log_start_offsets.items():
            yield from (log_start_offset_key(topic_id, partition) for partition in offsets)
        for topic_id, offsets in self.lost_offsets.items():
            yield from (lost_offset_key(topic_id, partition) for partition in offsets)

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
