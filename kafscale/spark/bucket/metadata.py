"""What the broker's newest checkpoint in the bucket tells of topics, and a listing of their segments does not.

Partitions that nothing was flushed of, offsets below which all was deleted (by DeleteRecords or retention), and topics
that were deleted while their objects are still there. A checkpoint is some seconds old, or older while the broker is
away or its disk is not the bucket's, so what is listed counts beside it. Other brokers' buckets have none.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import attrs

from kafscale.errors import AccessDenied, DamagedObject, NotFound
from kafscale.log.metadata_checkpoint import decode_checkpoint
from kafscale.spark.bucket.bucket import Bucket
from kafscale.store.base import Buffer
from kafscale.store.paths import NumberedKey, parse_numbered_key, system_prefix

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class TopicMetadata:
    """A topic that there is. `log_start_offsets` are of those partitions where something was deleted."""

    topic_id: bytes
    partition_count: int
    log_start_offsets: Mapping[int, int]


@attrs.frozen(kw_only=True)
class Deletion:
    """Of a topic, in milliseconds since the epoch."""

    name: str
    deleted_ms: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.deleted_ms / 1000, UTC)
        return f"topic '{self.name}' was deleted at {at:%Y-%m-%d %H:%M:%S} UTC"


@attrs.frozen(kw_only=True)
class Metadata:
    """Of one checkpoint; empty where there is none. Deletions are by topic id, and remembered for a day or longer."""

    topics: Mapping[str, TopicMetadata] = attrs.field(factory=dict)
    deletions: Mapping[bytes, Deletion] = attrs.field(factory=dict)

    def deletion_of(self, name: str) -> Deletion | None:
        """The last one of a topic of this name."""
        found = [each for each in self.deletions.values() if each.name == name]
        return max(found, key=lambda each: each.deleted_ms, default=None)


@attrs.define(eq=False)
class MetadataReader:
    """Reads the newest checkpoint, once."""

    bucket: Bucket
    namespace: str
    _key: NumberedKey | None = attrs.field(default=None, init=False)
    _metadata: Metadata = attrs.field(factory=Metadata, init=False)

    def read(self) -> Metadata:
        """What the bucket has now. One listing request, and one more for a new checkpoint. Raises StoreError."""
        for key in reversed(self._keys()):
            if key == self._key:
                break
            try:
                self._metadata = decode_metadata(key.key, self.bucket.get(key.key).data)
                self._key = key
                break
            except (DamagedObject, NotFound) as exc:
                logger.warning("a checkpoint of the metadata can't be read: %s", exc)
        return self._metadata

    def _keys(self) -> Sequence[NumberedKey]:
        prefix = system_prefix("checkpoint", namespace=self.namespace)
        try:
            found = [parse_numbered_key(info.key) for info in self.bucket.list(prefix)]
        except AccessDenied as exc:
            logger.warning(
                "%s can't be listed, so partitions without a segment and deleted records are not known: %s",
                prefix,
                exc,
            )
            return []
        return [key for key in found if key is not None]


def decode_metadata(key: str, data: Buffer) -> Metadata:
    """Of a checkpoint as an object. Raises DamagedObject, naming the key."""
    puts = decode_checkpoint(key, data).transaction.puts
    topics: dict[str, TopicMetadata] = {}
    deletions: dict[bytes, Deletion] = {}
    log_start_offsets: dict[bytes, dict[int, int]] = defaultdict(dict)
    try:
        for name, value in puts.items():
            kind, _, rest = name.partition("/")
            if kind == "topics":
                stored = json.loads(value)
                topic_id = base64.b85decode(stored["topic_id"])
                topics[rest] = TopicMetadata(
                    topic_id=topic_id,
                    partition_count=int(stored["partition_count"]),
                    log_start_offsets=log_start_offsets[topic_id],
                )
            elif kind == "deleted-topics":
                stored = json.loads(value)
                deletions[bytes.fromhex(rest)] = Deletion(name=stored["name"], deleted_ms=int(stored["deleted_ms"]))
            elif kind == "log-start-offsets":
                hex_id, _, partition = rest.partition("/")
                log_start_offsets[bytes.fromhex(hex_id)][int(partition)] = int(json.loads(value))
    except (ValueError, KeyError, TypeError) as exc:
        raise DamagedObject(f"{key}: the metadata holds a value that is none of a topic: {exc!r}") from exc
    return Metadata(topics=topics, deletions=deletions)
