"""Tables that are proven by deriving them again from the bucket, and what is found where they are not what follows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafscale.spark.bucket.digests import RangeDigest
from kafscale.spark.bucket.position import Position

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

VALUE = "value: {format: json, columns: [{name: n, type: long, required: true}]}"


def proof_of(lake, mapping: str) -> Any:
    from kafscale.spark.pipeline.proof import prove

    (proof,) = prove(lake.spark, lake.pipeline(mapping))
    return proof


def test_a_table_that_follows_from_the_bucket_is_proven_until_a_row_is_changed(lake, topic, produce):
    mapping = f"- {{topic: {topic}, table: db.{topic}, max_records: 20, metadata: [partition, offset, headers]}}"
    produce(topic, [(number % 2, b"k", b"%d" % number) for number in range(30)])
    produce(topic, [(number % 2, None, None) for number in range(20)])
    lake.run(mapping)
    proof = proof_of(lake, mapping)
    assert (proof.found, proof.snapshots, proof.records, proof.rows) == ("proven", 3, 50, 50)
    assert proof.crcs > 0
    assert proof.is_proven
    lake.spark.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{topic}')")
    assert proof_of(lake, mapping).is_proven
    lake.spark.sql(f"UPDATE lake.db.{topic} SET value = CAST('x' AS BINARY) WHERE partition = 1 AND offset = 3")
    proof = proof_of(lake, mapping)
    assert (proof.missing, proof.extra, proof.is_proven) == (1, 1, False)
    assert "not what follows" in proof.found
    lake.spark.sql(f"DELETE FROM lake.db.{topic} WHERE partition = 1 AND offset = 3")
    assert (proof_of(lake, mapping).missing, proof_of(lake, mapping).extra) == (1, 0)


def test_an_upserted_table_is_proven_by_each_keys_last_batch(lake, broker, topic, produce):
    """A later batch wins, though its records are of another partition and are older than others of the key."""
    from confluent_kafka import Producer

    from tests.devtools.external.spark import flush

    upsert = "mode: upsert, key: {format: string, column: id}"
    mapping = f"- {{topic: {topic}, table: db.{topic}, dead_letters: db.{topic}_dead, {upsert}, {VALUE}}}"
    produce(topic, [(number % 2, b"k%d" % (number % 7), json.dumps({"n": number}).encode()) for number in range(30)])
    produce(topic, [(0, b"k1", None), (1, b"k2", b"bad"), (0, None, b'{"n":1}')])
    lake.run(mapping)
    old = Producer({"bootstrap.servers": broker.bootstrap})
    for partition, key, value in [(1, "k3", '{"n":100}'), (0, "k4", None), (0, "k1", '{"n":7}')]:
        old.produce(topic, value, key, partition=partition, timestamp=int(time.time() * 1000) - 3_600_000)
    old.flush()
    flush(broker)
    lake.run(mapping)
    proof = proof_of(lake, mapping)
    assert (proof.found, proof.snapshots, proof.rows, proof.records) == ("proven", 2, 6, 36)
    lake.spark.sql(f"INSERT INTO lake.db.{topic} VALUES ('k4', 4)")
    assert (proof_of(lake, mapping).missing, proof_of(lake, mapping).extra) == (0, 1)


def test_proof_finds_batches_with_another_crc_than_the_snapshots(lake, topic, produce):
    mapping = f"- {{topic: {topic}, table: db.{topic}}}"
    produce(topic, [(0, None, b"%d" % number) for number in range(30)])
    lake.run(mapping)
    (segment,) = [path for path in Path(lake.store.removeprefix("file:")).rglob("*.kfs") if f"/{topic}/" in str(path)]
    data = bytearray(segment.read_bytes())
    data[32 + 61 + 20] ^= 1
    segment.write_bytes(data)
    assert "the CRC of their batches is another one" in proof_of(lake, mapping).found


def test_a_missing_table_or_snapshot_is_reported(lake, topic, produce):
    mapping = f"- {{topic: {topic}, table: db.{topic}}}"
    assert "there is no such table" in proof_of(lake, mapping).found
    produce(topic, [(0, None, b"v")] * 3)
    lake.run(mapping)
    other = f"- {{topic: {topic}, table: db.{topic}, name: other}}"
    assert "no snapshot of the table is of this mapping" in proof_of(lake, other).found


def at(offsets: dict[int, int]) -> Position:
    return Position(offsets={("t", index): offset for index, offset in offsets.items()})


def committed(batch_id: int, start: dict[int, int], end: dict[int, int]) -> Any:
    return SimpleNamespace(batch_id=batch_id, digests={}, start=at(start), end=at(end))


@pytest.mark.parametrize(
    ("start_offset", "end_offset", "told"),
    [(3, 30, "begins at 3 now"), (0, 20, "up to 30, and the bucket up to 20"), (0, 30, None)],
)
def test_records_missing_from_the_bucket_are_reported(start_offset, end_offset, told):
    from kafscale.spark.pipeline import proof

    logs: Any = {("t", 0): SimpleNamespace(start_offset=start_offset, written_end_offset=end_offset)}
    end = Position(offsets={("t", 0): 30})
    if told is None:
        proof._check_there(logs, Position(), end)
        return
    with pytest.raises(proof._Unproven, match=told):
        proof._check_there(logs, Position(), end)


def test_a_gap_between_batches_is_reported():
    from kafscale.spark.pipeline import proof

    follow = [committed(0, {}, {0: 10}), committed(1, {0: 10}, {0: 20, 1: 5}), committed(2, {0: 20, 1: 5}, {0: 30})]
    proof._check_order(follow)
    with pytest.raises(proof._Unproven, match=r"batch 2 begins at offset 20 .* batch 0 before it ended at 10"):
        proof._check_order([follow[0], follow[2]])


def test_a_snapshot_tells_where_its_batch_began_and_its_crcs():
    from kafscale.spark.pipeline.snapshots import MicroBatch, _committed_of

    start, end = Position(offsets={("t", 0): 3}), Position(offsets={("t", 0): 9}, topic_ids={"t": "id"})
    digests = {("t", 0): RangeDigest(4, 8, 77)}
    batch = MicroBatch(mapping="m", query_id="q", batch_id=1, end=end, start=start, began=start, digests=digests)
    commit = SimpleNamespace(summary=batch.summary, id=1, parent_id=None, timestamp_ms=2)
    found = _committed_of(commit, 0)
    assert found is not None
    assert (found.start, found.end, found.began, found.digests) == (start, end, start, digests)
