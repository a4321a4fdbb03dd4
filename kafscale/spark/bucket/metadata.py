"""The metadata in the bucket, which tells more of topics than a listing of their segments.

It has partitions without a segment, offsets below which records were deleted, and deleted topics whose objects remain.
A checkpoint is some seconds old, or older while the broker is away, so the listing counts besides. Brokers that share a
bucket also keep the head (`kafscale.formats.metadata_head`), with the changes since the checkpoint and the beginnings
of leader epochs. Buckets of other brokers have no metadata.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import is_

import attrs

from kafscale.errors import AccessDenied, DamagedObject, NotFound
from kafscale.formats.metadata_changes import Transaction, decode_transaction, folded
from kafscale.formats.metadata_checkpoint import Checkpoint, newest_checkpoint, with_changes
from kafscale.formats.metadata_head import Head, HeadEntry, decode_head, head_key
from kafscale.formats.placements import ASSIGNMENTS, Beginning, decode_beginnings, parse_row_key
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.spark.bucket.bucket import Bucket
from kafscale.store.paths import NumberedKey, parse_numbered_key, system_prefix

CHANGES_AT_ONCE_COUNT = 1000  # of the log, put together
SHARED_KEY = "cluster/next-number"  # what several brokers have in their metadata, and one alone has not
LISTINGS_MAX_COUNT = 3  # of a bucket whose broker deletes checkpoints while they are read

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class BucketTopic:
    """A topic that exists. `log_start_offsets` are of partitions whose first records were deleted."""

    topic_id: bytes
    partition_count: int
    log_start_offsets: Mapping[int, int]


@attrs.frozen(kw_only=True)
class Deletion:
    """The deletion of a topic; its time is in milliseconds since the epoch."""

    name: str
    deleted_ms: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.deleted_ms / 1000, UTC)
        return f"topic '{self.name}' was deleted at {at:%Y-%m-%d %H:%M:%S} UTC"


@attrs.frozen(kw_only=True)
class Metadata:
    """The metadata of one moment, or none.

    Deletions are by topic id, and kept for a day or longer. `rows` are those of placements, encoded, by topic id and
    first partition; only brokers that share the bucket have them.
    """

    topics: Mapping[str, BucketTopic] = attrs.field(factory=dict)
    deletions: Mapping[bytes, Deletion] = attrs.field(factory=dict)
    rows: Mapping[bytes, Mapping[int, bytes]] = attrs.field(factory=dict, repr=False)

    def beginnings(self, topic_id: bytes) -> Mapping[int, Beginning]:
        """Return where the leader epochs of a topic's partitions began. Raises DamagedObject."""
        found: dict[int, Beginning] = {}
        for first, row in self.rows.get(topic_id, {}).items():
            try:
                found.update(enumerate(decode_beginnings(row), start=first))
            except (ValueError, KeyError, TypeError) as exc:
                name = f"{ASSIGNMENTS}{topic_id.hex()}"
                raise DamagedObject(f"{name}: the metadata has a damaged row of placements: {exc!r}") from exc
        return found

    def deletion_of(self, name: str) -> Deletion | None:
        found = [deletion for deletion in self.deletions.values() if deletion.name == name]
        return max(found, key=lambda each: each.deleted_ms, default=None)


@attrs.define(eq=False, repr=False)
class MetadataReader:
    """Reads the newest checkpoint once, and each time the head of a shared bucket."""

    bucket: Bucket
    namespace: str
    _key: NumberedKey | None = attrs.field(default=None, init=False)
    _metadata: Metadata = attrs.field(factory=Metadata, init=False)
    _checkpoint: Checkpoint | None = attrs.field(default=None, init=False)
    _is_unreadable: bool = attrs.field(default=False, init=False)
    _changes: Sequence[Transaction] = attrs.field(default=(), init=False)
    _changed: Metadata | None = attrs.field(default=None, init=False)  # by these
    _head: Head | None = attrs.field(default=None, init=False)
    _with_head: tuple[Head, Metadata] | None = attrs.field(default=None, init=False)

    def read(self) -> Metadata:
        """Return the metadata as of now. Raises StoreError.

        Takes one listing, and one to three requests more for a new checkpoint; the head alone if it has all changes
        since the last checkpoint. A forbidden part is left out with a warning, as a policy may allow the segments
        alone.
        """
        prefix = system_prefix("checkpoint", namespace=self.namespace)
        try:
            if self._head is not None:
                self._look_at_head()
                if self._head is not None and self._head.claim is None and self._entries() is not None:
                    self._is_unreadable = False
                    return self._metadata_of_head()
            return self._read(prefix)
        except AccessDenied as exc:
            logger.warning(
                "can't read %s: partitions without a segment and deleted records are unknown: %s", prefix, exc
            )
            self._is_unreadable = True
            return self._metadata

    @property
    def position(self) -> WalPosition | None:
        """Return the position in the write-ahead log up to which the metadata is complete; None if it is unknown."""
        if self._checkpoint is not None:
            return None if self._is_unreadable else self._checkpoint.position
        return None if self._is_unreadable or self._key is not None else START

    @property
    def is_shared(self) -> bool:
        """Tell whether several brokers share the bucket: then the position has the last epoch of a broker alone."""
        is_known = self._checkpoint is not None and SHARED_KEY in self._checkpoint.transaction.puts
        return is_known or self._head is not None

    def changed_by(self, transactions: Sequence[Transaction]) -> Metadata:
        """Return the last metadata with later changes from the log, in order. Raises DamagedObject."""
        if not transactions:
            return self._metadata_of_head()
        is_same = len(transactions) == len(self._changes) and all(map(is_, transactions, self._changes))
        if self._changed is None or not is_same:
            self._changes, self._changed = transactions, self._applied(transactions)
        return self._changed

    def _read(self, prefix: str) -> Metadata:
        for _ in range(LISTINGS_MAX_COUNT):
            found = [parse_numbered_key(info.key) for info in self.bucket.list(prefix)]
            keys = [key for key in found if key is not None]
            self._is_unreadable = False
            try:
                if keys and keys[-1] != self._key:
                    self._take(self._read_newest(keys), keys[-1])
                    self._look_at_head()
                if self._head is None or self._entries() is not None:
                    break
            except DamagedObject as exc:
                logger.warning("the checkpoint of the metadata can't be read: %s", exc)
                self._is_unreadable = True
                break
            except NotFound as exc:
                logger.info("a checkpoint of the metadata has been replaced while it was read: %s", exc)
        return self._metadata_of_head()

    def _look_at_head(self) -> None:
        """Get the head, which a broker alone does not have, or only one that has ended.

        An ended head counts until that broker has written a checkpoint. Raises StoreError.
        """
        key = head_key(self.namespace)
        try:
            head = decode_head(key, self.bucket.get(key).data)
            is_over = self._checkpoint is not None and self._checkpoint.position.epoch > head.epoch
            self._head = None if is_over else head
        except NotFound:
            self._head = None
        except AccessDenied as exc:
            self._head = None
            level = logging.WARNING if self.is_shared else logging.DEBUG  # a policy for one broker has no need of it
            message = "can't read %s: changes are known later, and records sent too late may be returned: %s"
            logger.log(level, message, key, exc)
        except DamagedObject as exc:  # no broker changes anything without it
            logger.warning("the newest changes of the metadata can't be read: %s", exc)

    def _entries(self) -> Sequence[HeadEntry] | None:
        if self._head is None or self._checkpoint is None:
            return None
        position = self._checkpoint.position
        return self._head.behind(position.number if position.epoch == self._head.epoch else -1)

    def _metadata_of_head(self) -> Metadata:
        if self._head is None:
            return self._metadata
        if self._with_head is None or self._with_head[0] != self._head:
            entries = self._entries()
            if entries is None:
                logger.warning("no checkpoint of the metadata goes with the head, so what is new is not known")
            changes = [decode_transaction(memoryview(entry.data)) for entry in entries or ()]
            self._with_head = (self._head, self._applied(changes))
        return self._with_head[1]

    def _applied(self, transactions: Sequence[Transaction]) -> Metadata:
        checkpoint = self._checkpoint or Checkpoint(START, Transaction())
        for transaction in folded(transactions, CHANGES_AT_ONCE_COUNT):
            checkpoint = with_changes(checkpoint, Checkpoint(checkpoint.position, transaction))
        return decode_metadata("the newest metadata", checkpoint)

    def _take(self, checkpoint: Checkpoint | None, newest: NumberedKey) -> None:
        if checkpoint is not None:
            self._metadata = decode_metadata(newest.key, checkpoint)
            self._checkpoint, self._changed, self._with_head = checkpoint, None, None
        self._key = newest

    def _read_newest(self, keys: Sequence[NumberedKey]) -> Checkpoint | None:
        search = newest_checkpoint(keys)
        try:
            key = next(search)
            while True:
                key = search.send(self.bucket.get(key.key).data)
        except StopIteration as done:
            for damage in done.value.damage:
                logger.warning("a checkpoint of the metadata can't be read: %s", damage)
            newest: Checkpoint | None = done.value.newest
            return newest


def decode_metadata(key: str, checkpoint: Checkpoint) -> Metadata:
    """Decode the metadata of a full checkpoint. Raises DamagedObject, naming the key."""
    puts = checkpoint.transaction.puts
    topics: dict[str, BucketTopic] = {}
    deletions: dict[bytes, Deletion] = {}
    log_start_offsets: dict[bytes, dict[int, int]] = defaultdict(dict)
    rows: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    try:
        for name, value in puts.items():
            kind, _, rest = name.partition("/")
            if kind == "topics":
                stored = json.loads(value)
                topic_id = base64.b85decode(stored["topic_id"])
                topics[rest] = BucketTopic(
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
            elif (row_id := parse_row_key(name)) is not None:
                rows[row_id[0]][row_id[1]] = value
    except (ValueError, KeyError, TypeError) as exc:
        raise DamagedObject(f"{key}: the metadata has a damaged value of a topic: {exc!r}") from exc
    return Metadata(topics=topics, deletions=deletions, rows=rows)
