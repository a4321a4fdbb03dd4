"""A bucket in a directory whose broker acknowledges by the write-ahead log: objects of the log are put by hand.

bucket = LoggedBucket(path)
bucket.create_topic()                            its metadata is in the log, too
bucket.log([batch(0, b"a"), batch(1, b"b")])     one object, of partition 0 unless it says another
bucket.flush(0, b"a", b"b")                      the same as a segment
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from kafscale.cluster.membership.records import Placement, encode_row
from kafscale.config import StoreUrl
from kafscale.formats.manifest import Segment
from kafscale.formats.manifest_checkpoint import ManifestSnapshot, encode_segments
from kafscale.formats.manifest_checkpoint import encode_header as encode_manifests_header
from kafscale.formats.metadata_changes import Transaction, encode_transaction
from kafscale.formats.placements import row_key
from kafscale.formats.wal_entries import METADATA, RECORD_BATCH, WalEntry
from kafscale.formats.wal_objects import ObjectHeader, WalPosition, encode_header, encode_object
from kafscale.formats.wal_runs import wal_key
from kafscale.spark.bucket.bucket import Bucket, BucketOptions
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.metadata import SHARED_KEY
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import Extent, plan
from kafscale.store.base import ObjectInfo, ObjectPart
from kafscale.store.paths import NumberedKey, SegmentKey
from kafscale.wire.batch_header import TRANSACTIONAL, parse_header, set_base_offset
from kafscale.wire.control_records import EndMarker, encode_marker
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.fakes.segment_objects import CREATED_MS, version_2_objects
from tests.formats.metadata_checkpoints import encode_checkpoint

TOPIC, TOPIC_ID = "t", bytes(range(16))
NAMESPACE = "default"


def batch(offset: int, *values: bytes, partition: int = 0, epoch: int = 0, producer_id: int | None = None) -> WalEntry:
    """A batch in the log, of a transaction if it has a producer; record n has the timestamp CREATED_MS + n."""
    records = [Record(value=value, timestamp_ms=CREATED_MS + offset + n) for n, value in enumerate(values)]
    producer = ProducerStamp() if producer_id is None else ProducerStamp(producer_id, 0, 0)
    attributes = 0 if producer_id is None else TRANSACTIONAL
    data = build_batch(records, base_offset=offset, producer=producer, attributes=attributes)
    return _entry(offset, data, partition, epoch)


def marker(offset: int, producer_id: int, *, is_commit: bool) -> WalEntry:
    """Make the marker that ends a transaction."""
    ending = EndMarker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit)
    return _entry(offset, encode_marker(ending, CREATED_MS), 0, 0)


def _entry(offset: int, data: bytearray, partition: int, epoch: int) -> WalEntry:
    set_base_offset(memoryview(data), offset, epoch)
    return WalEntry(TOPIC_ID, partition, epoch, offset, bytes(data))


def change(**puts: object) -> WalEntry:
    """A change of metadata; names have / for __."""
    stored = {name.replace("__", "/"): json.dumps(value).encode() for name, value in puts.items()}
    return WalEntry(bytes(16), -1, 0, 0, encode_transaction(Transaction(puts=stored)), kind=METADATA)


def topic_of(topic_id: bytes, partition_count: int) -> dict[str, object]:
    """A topic as the metadata has it."""
    return {"topic_id": base64.b85encode(topic_id).decode(), "partition_count": partition_count}


@attrs.define
class CountingBucket:
    """Wrapper of a bucket that records the requests. `before_get` is called with keys, `before_list` with prefixes."""

    bucket: Bucket
    requests: list[str] = attrs.field(factory=list)
    before_get: Callable[[str], None] = lambda key: None
    before_list: Callable[[str], None] = lambda prefix: None

    def get(self, key: str) -> ObjectPart:
        self._note("get", key)
        return self.bucket.get(key)

    def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        self._note("get", key)
        return self.bucket.get_range(key, start, length_bytes)

    def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        self._note("get", key)
        return self.bucket.get_tail(key, length_bytes)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.requests.append(f"list {prefix}")
        self.before_list(prefix)
        return self.bucket.list(prefix, start_after)

    def close(self) -> None:
        self.bucket.close()

    def _note(self, what: str, key: str) -> None:
        self.requests.append(f"{what} {key}")
        self.before_get(key)


@attrs.define(eq=False)
class LoggedBucket:
    """The directory. Objects of an epoch follow one another unless a number is given."""

    directory: Path
    _numbers: dict[int, int] = attrs.field(factory=dict, init=False)
    _sequences: dict[int, int] = attrs.field(factory=dict, init=False)
    _checkpoints_count: int = attrs.field(default=0, init=False)

    def create_topic(self, partition_count: int = 1) -> None:
        """Create the topic by a change of metadata that only the log has."""
        self.log([change(topics__t=topic_of(TOPIC_ID, partition_count))])

    def log(
        self, entries: Sequence[WalEntry], *, epoch: int = 0, number: int | None = None, durable: int | None = None
    ) -> NumberedKey:
        """Put an object. `durable` is the number of the last one that was acknowledged before."""
        number = self._numbers.get(epoch, 0) + 1 if number is None else number
        self._numbers[epoch] = number
        sequence = self._sequences.get(epoch, 1)
        headers = [parse_header(memoryview(found.data)) for found in entries if found.kind == RECORD_BATCH]
        for place, entry in enumerate(entries):
            entry.sequence = sequence + place
        self._sequences[epoch] = sequence + len(entries)
        header = ObjectHeader(
            salt=number,
            epoch=epoch,
            entry_count=len(entries),
            number=number,
            durable_number=number - 1 if durable is None else durable,
            sequence=sequence,
            body_bytes=sum(len(part) for part in encode_object(_EMPTY, entries, durable_sequence=0)[1:]),
            has_transactions=any(head.is_transactional for head in headers),
        )
        return self._put(epoch, number, b"".join(encode_object(header, entries, durable_sequence=0)))

    def fence(self, epoch: int, number: int, *, by: int) -> NumberedKey:
        """Put the end of an epoch."""
        header = attrs.evolve(_EMPTY, epoch=by, number=number, durable_number=number - 1)
        return self._put(epoch, number, encode_header(header))

    def flush(self, offset: int, *values: bytes, partition: int = 0, epoch: int = 0, generation: int = 0) -> SegmentKey:
        """Put a segment of one batch, as a flush does or, of a later generation, a compaction."""
        key = SegmentKey(
            topic=TOPIC, topic_id=TOPIC_ID, partition=partition, base_offset=offset, epoch=epoch, generation=generation
        )
        data = bytes(batch(offset, *values, epoch=epoch).data)
        version_2_objects(key, [data], leader_epoch=epoch).write_to(self.directory)
        return key

    def checkpoint(
        self,
        position: WalPosition,
        partition_count: int = 1,
        *,
        is_shared: bool = False,
        placements: Sequence[Placement] = (),
    ) -> None:
        """Put a checkpoint of the metadata, which has the topic; that of several brokers if it `is_shared`.

        `placements` are those of the first partitions, as several brokers have them.
        """
        key = NumberedKey(kind="checkpoint", epoch=position.epoch, number=self._checkpoints_count).key
        self._checkpoints_count += 1
        puts = {"topics/t": json.dumps(topic_of(TOPIC_ID, partition_count)).encode()}
        if is_shared or placements:
            puts[SHARED_KEY] = b"99"
        if placements:
            puts[row_key(TOPIC_ID, 0)] = encode_row(placements)
        self._write(key, b"".join(encode_checkpoint(position, [Transaction(puts=puts)])))

    def decide(self, epoch: int, *keys: SegmentKey) -> None:
        """Put a checkpoint of the manifests: the broker of this epoch found these segments, of one record each."""
        segments = [
            Segment(key=key, last_offset=key.base_offset, size_bytes=1, max_timestamp_ms=CREATED_MS) for key in keys
        ]
        partition = ManifestSnapshot(TOPIC_ID, 0, b"", segments)
        body = [partition.head(), encode_segments(segments)]
        key = NumberedKey(kind="manifests", epoch=epoch, number=self._checkpoints_count).key
        self._checkpoints_count += 1
        self._write(key, b"".join([*encode_manifests_header(1, body), *body]))

    def delete(self, key: NumberedKey | SegmentKey) -> None:
        """Remove an object; a segment's `.index`, too."""
        (self.directory / key.key).unlink()
        if isinstance(key, SegmentKey):
            (self.directory / key.of_kind("index").key).unlink()

    def open(self) -> CountingBucket:
        """Open the bucket as a job does."""
        return CountingBucket(BucketOptions(url=StoreUrl.parse(f"file:{self.directory}")).open())

    def catalog(self, *, committed_only: bool = False) -> Catalog:
        """Look with the log."""
        return Catalog(self.open(), committed_only=committed_only, with_log=True)

    def read(self, catalog: Catalog | None = None, *, partition: int = 0) -> list[tuple[int, bytes]]:
        """All offsets and values of a partition that a catalog finds."""
        catalog = catalog or self.catalog()
        log = catalog.partitions(TOPIC).get(partition)
        if log is None:
            return []
        splits = plan(catalog, [Extent(log=log, start_offset=log.start_offset, end_offset=log.end_offset)])
        reader = SplitReader(
            bucket=catalog.bucket,
            namespace=NAMESPACE,
            columns=["offset", "value"],
            fail_on_data_loss=True,
            committed_only=catalog.committed_only,
            with_log=True,
        )
        return [(row["offset"], row["value"]) for rows in reader.read_all(splits) for row in rows.to_pylist()]

    def _put(self, epoch: int, number: int, data: bytes) -> NumberedKey:
        key = wal_key(NAMESPACE, epoch, number)
        self._write(key.key, data)
        return key

    def _write(self, name: str, data: bytes) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


_EMPTY = ObjectHeader(salt=0, epoch=0, entry_count=0, number=0, durable_number=0, sequence=0, body_bytes=0)
