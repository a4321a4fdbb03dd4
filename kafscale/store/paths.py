"""Makes, checks and parses every key in the bucket.

    {namespace}/{topic}/{topic id}/{partition}/
        segment-{base offset, 20 digits}-{epoch, 10 digits}-{generation, 5 to 9}.kfs and .index
        segment-{base offset, 20 digits}-{generation, 5 to 9}.kfs and .index              from before epochs were in it
    {namespace}/{topic}/{partition}/segment-{base offset, 20 digits}.kfs and .index       what version 1 wrote
    _kafscale/{namespace}/wal/{epoch, 10 digits}/{number, 20 digits}.wal                  the log in the bucket, streams
    _kafscale/{namespace}/checkpoint/{epoch, 10 digits}/{number, 20 digits}.checkpoint    checkpoints of the metadata
    _kafscale/{namespace}/manifests/{epoch, 10 digits}/{number, 20 digits}.manifests      checkpoints of the manifests
    _kafscale/{namespace}/head                                                            metadata of several brokers
    _kafscale/{namespace}/...       the broker's other objects: probes, claims

The store's own prefix (`s3://bucket/prefix`) comes before. A topic's id is Kafka's text for it. Digits are padded, so
that the order of keys is the order of offsets. Topic names need no escaping, and a namespace starts with a letter or
digit, so none is `_kafscale`. The epoch in a segment's key is that of its writer's leadership, so no two leaders write
the same key. Version 1, of the Go broker, has no topic ids: they are derived from the names.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import Literal, cast
from uuid import UUID, uuid5

import attrs

NAMESPACE_DEFAULT = "default"
KEY_MAX_BYTES = 1024  # S3's
OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
GENERATION_MAX = 999_999_999  # a small partition that is compacted every 15 s takes 6 million a year
EPOCH_MAX = 2**31 - 1
EPOCH_UNKNOWN = -1  # in keys from before epochs were in them: below every epoch that a broker can claim
SYSTEM = "_kafscale"

SegmentKind = Literal["kfs", "index"]
NumberedKind = Literal["wal", "checkpoint", "manifests"]

_NAMESPACE = r"[a-zA-Z0-9][a-zA-Z0-9._-]*"
_TOPIC = r"(?!\.{1,2}(?:/|\Z))[a-zA-Z0-9._-]{1,249}"
_DIRECTORY = re.compile(rf"({_NAMESPACE})/({_TOPIC})/(?:([a-zA-Z0-9_-]{{22}})/)?(0|[1-9][0-9]{{0,9}})")
_SEGMENT_NAME = re.compile(r"segment-([0-9]{20})(?:-([0-9]{10}))?(?:-([0-9]{5}|[1-9][0-9]{5,8}))?\.(kfs|index)")
_NUMBERED = re.compile(rf"{SYSTEM}/({_NAMESPACE})/(wal|checkpoint|manifests)/([0-9]{{10}})/([0-9]{{20}})\.(\w+)")
_VERSION_1_TOPICS = UUID("6f0a2c1e-64b7-5c55-9d0e-3b1f7a5e8c21")  # the name space of their ids; never to be changed
_NO_NAMES = frozenset(("", ".", ".."))  # of a segment
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


@attrs.frozen(kw_only=True)
class SegmentKey:
    """The fields of the key of a segment (`kfs`) or its index. `topic_id` is 16 raw bytes.

    `epoch` is the leader epoch of the broker that wrote it, EPOCH_UNKNOWN in an older key. Version 1 has the id of
    `version_1_topic_id`, and generation 0.
    """

    namespace: str = NAMESPACE_DEFAULT
    topic: str
    topic_id: bytes
    partition: int
    base_offset: int
    epoch: int = EPOCH_UNKNOWN
    generation: int = 0
    kind: SegmentKind = "kfs"
    version: Literal[1, 2] = 2

    @property
    def key(self) -> str:
        """The key in the bucket. Raises ValueError for an invalid field."""
        if self.version == 1:
            return self._version_1_key()
        prefix = partition_prefix(self.topic, self.topic_id, self.partition, namespace=self.namespace)
        _check_range("base offset", self.base_offset, OFFSET_MAX)
        _check_range("generation", self.generation, GENERATION_MAX)
        epoch = ""
        if self.epoch != EPOCH_UNKNOWN:
            _check_range("epoch", self.epoch, EPOCH_MAX)
            epoch = f"-{self.epoch:010d}"
        return f"{prefix}segment-{self.base_offset:020d}{epoch}-{self.generation:05d}.{self.kind}"

    def _version_1_key(self) -> str:
        _check_range("partition", self.partition, PARTITION_MAX)
        _check_range("base offset", self.base_offset, OFFSET_MAX)
        _check_range("generation of version 1", self.generation, 0)
        if self.epoch != EPOCH_UNKNOWN:
            raise ValueError(f"version 1 has no epochs, and not {self.epoch}")
        if self.topic_id != version_1_topic_id(self.topic, namespace=self.namespace):
            raise ValueError(f"topic {self.topic} has another id in version 1")
        prefix = topic_name_prefix(self.topic, namespace=self.namespace)
        return f"{prefix}{self.partition}/segment-{self.base_offset:020d}.{self.kind}"

    def of_kind(self, kind: SegmentKind) -> SegmentKey:
        return SegmentKey(  # a third of the time of attrs.evolve, and a listing makes one for each segment
            namespace=self.namespace,
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=self.base_offset,
            epoch=self.epoch,
            generation=self.generation,
            kind=kind,
            version=self.version,
        )


def parse_segment_key(key: str) -> SegmentKey | None:
    """Return the fields of a key; None for another one."""
    directory, _, name = key.rpartition("/")
    partition = _parse_directory(directory)
    match = _SEGMENT_NAME.fullmatch(name)
    if partition is None or match is None:
        return None
    base_offset_text, epoch_text, generation, kind = match.groups()
    base_offset = int(base_offset_text)
    epoch = EPOCH_UNKNOWN if epoch_text is None else int(epoch_text)
    if base_offset > OFFSET_MAX or epoch > EPOCH_MAX:
        return None
    if (generation is None) != (partition.version == 1) or (epoch_text is not None and generation is None):
        return None
    return SegmentKey(
        namespace=partition.namespace,
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.index,
        base_offset=base_offset,
        epoch=epoch,
        generation=int(generation or 0),
        kind="kfs" if kind == "kfs" else "index",
        version=partition.version,
    )


@attrs.frozen
class _PartitionDirectory:
    namespace: str
    topic: str
    topic_id: bytes
    index: int
    version: Literal[1, 2]


@lru_cache(maxsize=1_000)  # a listing has a partition's keys one behind the other, and a few listings run at once
def _parse_directory(directory: str) -> _PartitionDirectory | None:
    match = _DIRECTORY.fullmatch(directory)
    if match is None:
        return None
    namespace, topic, id_text, index_text = match.groups()
    index = int(index_text)
    topic_id = version_1_topic_id(topic, namespace=namespace) if id_text is None else parse_topic_id(id_text)
    if topic_id is None or index > PARTITION_MAX:
        return None
    return _PartitionDirectory(namespace, topic, topic_id, index, version=1 if id_text is None else 2)


@lru_cache(maxsize=10_000)
def version_1_topic_id(topic: str, *, namespace: str = NAMESPACE_DEFAULT) -> bytes:
    """Return the id of the topic that segments of version 1 belong to: 16 bytes derived from its name."""
    digest = uuid5(_VERSION_1_TOPICS, f"{namespace}/{topic}").bytes
    return bytes([digest[0] & 0x7F]) + digest[1:]  # so that its text does not begin with a dash


def namespace_prefix(namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the prefix of the keys of all topics of a namespace. Raises ValueError."""
    if re.fullmatch(_NAMESPACE, namespace) is None:
        raise ValueError(f"a namespace is a letter or digit, then [a-zA-Z0-9._-]*, not {namespace!r}")
    return f"{namespace}/"


@lru_cache(maxsize=1_000)  # each segment's key is made of it several times: to be uploaded, listed, read, deleted
def topic_prefix(topic: str, topic_id: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the prefix of the keys of one incarnation of a topic. Raises ValueError."""
    return f"{topic_name_prefix(topic, namespace=namespace)}{topic_id_text(topic_id)}/"


def topic_name_prefix(topic: str, *, namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the prefix of the keys of all topics that ever had this name. Raises ValueError."""
    if re.fullmatch(_TOPIC, topic) is None:
        raise ValueError(f"a topic's name is 1 to 249 of [a-zA-Z0-9._-] and not . or .., not {topic!r}")
    return f"{namespace_prefix(namespace)}{topic}/"


def partition_prefix(topic: str, topic_id: bytes, partition: int, *, namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the prefix of the keys of a partition's segments. Raises ValueError."""
    _check_range("partition", partition, PARTITION_MAX)
    return f"{topic_prefix(topic, topic_id, namespace=namespace)}{partition}/"


def topic_id_text(topic_id: bytes) -> str:
    """Return Kafka's text for a topic id of 16 raw bytes. Raises ValueError."""
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
    return urlsafe_b64encode(topic_id)[:22].decode()


def parse_topic_id(text: str) -> bytes | None:
    """Return the topic id of a text; None for any other text."""
    if re.fullmatch(r"[a-zA-Z0-9_-]{22}", text) is None:
        return None
    topic_id = urlsafe_b64decode(text + "==")
    return topic_id if topic_id_text(topic_id) == text else None  # the last character has four bits to spare


def system_key(*names: str, namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the key of one of the broker's own objects, as `system_key("probe", nonce)`. Raises ValueError."""
    key = f"{system_namespace_prefix(namespace)}{'/'.join(names)}"
    check_key(key)
    return key


def system_namespace_prefix(namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the prefix of the keys of the broker's own objects. Raises ValueError."""
    return f"{SYSTEM}/{namespace_prefix(namespace)}"


def system_prefix(*names: str, namespace: str = NAMESPACE_DEFAULT) -> str:
    """Return the prefix of the keys of one kind of the broker's own objects. Raises ValueError."""
    return f"{system_key(*names, namespace=namespace)}/"


@attrs.frozen(kw_only=True, cache_hash=True)
class NumberedKey:
    """The fields of the key of a WAL object or of a checkpoint of metadata or manifests.

    Keys sort by epoch, then by number. Readers of the log look objects up by key, so the hash is cached.
    """

    namespace: str = NAMESPACE_DEFAULT
    kind: NumberedKind
    epoch: int
    number: int

    @property
    def key(self) -> str:
        """The key in the bucket. Raises ValueError for an invalid field."""
        _check_range("epoch", self.epoch, EPOCH_MAX)
        _check_range("number", self.number, OFFSET_MAX)
        name = f"{self.number:020d}.{self.kind}"
        return system_key(self.kind, f"{self.epoch:010d}", name, namespace=self.namespace)


def parse_numbered_key(key: str) -> NumberedKey | None:
    """Return the fields of a key; None for another one."""
    match = _NUMBERED.fullmatch(key)
    if match is None:
        return None
    namespace, kind, epoch, number, suffix = match.groups()
    if kind != suffix or int(epoch) > EPOCH_MAX or int(number) > OFFSET_MAX:
        return None
    return NumberedKey(
        namespace=namespace,
        kind=cast(NumberedKind, kind),
        epoch=int(epoch),
        number=int(number),
    )


def check_key(key: str) -> None:
    """Raise ValueError unless every store can hold an object of this key.

    That is 1 to 1,024 bytes of UTF-8 without control characters, which a listing's XML can't carry, in segments that a
    directory can have as names.
    """
    _check_segments(key, key.split("/"))


def check_prefix(prefix: str) -> None:
    """Raise ValueError unless `prefix` can begin a key. It may be empty."""
    _check_segments(prefix, prefix.split("/")[:-1])


def _check_segments(key: str, segments: list[str]) -> None:
    if not _NO_NAMES.isdisjoint(segments):
        raise ValueError(f"a key has no empty, . or .. segment: {key!r}")
    if _CONTROL_CHARACTER.search(key):
        raise ValueError(f"a key has no control characters: {key!r}")
    if len(key.encode()) > KEY_MAX_BYTES:  # raises a ValueError of its own for lone surrogates
        raise ValueError(f"a key has at most {KEY_MAX_BYTES} bytes: {key!r}")


def _check_range(name: str, value: int, maximum: int) -> None:
    if not 0 <= value <= maximum:
        raise ValueError(f"{name} is between 0 and {maximum}, not {value}")
