"""Topics in memory: an index of all topics, and drafts of changes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from kafscale.cluster.metadata.converter import others_field
from kafscale.cluster.registries.topic_names import collision_key
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
