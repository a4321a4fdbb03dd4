"""A bucket for statements of SQL, written without a broker: three topics of JSON, and one of what is rare."""

from __future__ import annotations

import json
from pathlib import Path

from kafscale.store.paths import SegmentKey
from kafscale.wire.records import Record, build_batch
from tests.devtools.fakes.segment_objects import version_2_objects

BASE_MS = 1_700_000_000_000
COUNT = 240  # of a topic, a second apart, in four segments of each of two partitions
NOW_SECONDS = 1_700_000_240
TOPICS = ("order-lines.v1", "orders", "payments")
RARE = [
    Record(key=None, value=None, timestamp_ms=-1),
    Record(key=b"", value=b"", timestamp_ms=BASE_MS + 1),
    Record(key=b"\xff\x00", value="größer".encode(), timestamp_ms=BASE_MS + 120, headers=[("h", b"1"), ("i", None)]),
    Record(key=b'"a",b', value=b"not JSON", timestamp_ms=BASE_MS),
    Record(key=b"years", value=b"a\tb\x01", timestamp_ms=BASE_MS * 1000),
]


def write_topics(directory: Path) -> str:
    """Record n of a topic is in partition n % 2, and its value is JSON. Gives the option `store`."""
    for number, topic in enumerate(TOPICS):
        for partition in range(2):
            for segment in range(4):
                _write(directory, topic, bytes([*bytes(15), number + 1]), partition, segment)
    key = SegmentKey(topic="rare", topic_id=bytes([*bytes(15), 9]), partition=0, base_offset=0)
    version_2_objects(key, [bytes(build_batch(RARE, base_offset=0))]).write_to(directory)
    return f"file:{directory}"


def _write(directory: Path, topic: str, topic_id: bytes, partition: int, segment: int) -> None:
    of_segment = range(segment * COUNT // 4, (segment + 1) * COUNT // 4)
    base_offset = segment * COUNT // 8
    records = [_record(topic, number) for number in of_segment if number % 2 == partition]
    key = SegmentKey(topic=topic, topic_id=topic_id, partition=partition, base_offset=base_offset)
    batch = bytes(build_batch(records, base_offset=base_offset))
    version_2_objects(key, [batch]).write_to(directory)


def _record(topic: str, number: int) -> Record:
    value = {"number": number, "status": "paid" if number % 3 else "open", "of": {"topic": topic}, "price": number / 4}
    return Record(
        key=f"key {number % 10}".encode(), value=json.dumps(value).encode(), timestamp_ms=BASE_MS + number * 1000
    )
