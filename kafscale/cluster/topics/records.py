"""Topics as entries of the metadata store.

    topics/<name>                                  a topic: its id, number of partitions and configs
    log-start-offsets/<topic id>/<partition>       what DeleteRecords and retention removed is below it
    lost-offsets/<topic id>/<partition>            what was lost with files of the write-ahead log is below it
    deleted-topics/<topic id>                      a DeletedTopic

The last is written with a deletion, and stays for as long as the topic may have objects in the bucket: without one, the
objects of a topic that is not known may be those of a topic whose metadata was lost, and are never deleted. It goes
when the topic was deleted a day ago or earlier and a listing of the bucket finds none of its objects
(`TopicRegistry.forget_deleted`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

import attrs

from kafscale.cluster.configs.topic_configs import BrokerDefaults, canonical_overrides, log_config
from kafscale.cluster.metadata.base import PlannedFrom, Transaction
from kafscale.cluster.metadata.converter import decode, encode, keeping_others, others_field
from kafscale.cluster.topics.index import Topic, TopicDraft
from kafscale.errors import KafkaError, StartupError

TOPICS = "topics/"
LOG_START_OFFSETS = "log-start-offsets/"
LOST_OFFSETS = "lost-offsets/"
DELETED_TOPICS = "deleted-topics/"
KEEP_EVERYTHING = {"retention.ms": "-1"}

logger = logging.getLogger(__name__)


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
        """The time from which on its objects may go."""
        return self.deleted_ms + self.file_delete_delay_ms


@keeping_others
@attrs.frozen(kw_only=True)
class _Stored:
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
    stored = decode(_Stored, value)
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
            prefixes += [f"{each}{old.topic_id.hex()}/" for each in (LOG_START_OFFSETS, LOST_OFFSETS)]
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


def _stored(topic: Topic) -> _Stored:
    return _Stored(
        topic_id=topic.topic_id,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        overrides=dict(topic.overrides),
        others=topic.others,
    )


def _buried(topic: Topic) -> DeletedTopic:
    return DeletedTopic(
        name=topic.name,
        deleted_ms=time.time_ns() // 1_000_000,
        file_delete_delay_ms=topic.config.file_delete_delay_ms,
    )
