"""Groups and offsets as records of `__consumer_offsets`: both ways, and in the bytes of Kafka 4.1."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, group_tombstone, offset_record, read_record
from kafscale.errors import DecodeError
from kafscale.wire.internal_topics import encode_key, encode_value
from kafscale.wire.internal_topics.consumer_offsets import (
    ClassicProtocol,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafscale.wire.records import Record
from tests.cluster.groups.classic_groups import GroupHarness

TIME_MS, EXPIRES_MS = 1_700_000_000_123, 1_700_000_009_999
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
OFFSETS = st.builds(
    OffsetCommitValue,
    offset=INT64,
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=TEXT,
    commit_timestamp_ms=INT64,
    topic_id=st.binary(min_size=16, max_size=16),
)
PLACES = st.builds(TopicPartition, TEXT, INT32)
MEMBERS = st.builds(
    MemberMetadata,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    session_timeout_ms=INT32,
    rebalance_timeout_ms=INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupMetadataValue,
    generation_id=INT32,
    protocol_type=TEXT,
    protocol_name=st.none() | TEXT,
    leader_id=st.none() | TEXT,
    state_timestamp_ms=INT64,
    members=st.lists(MEMBERS, max_size=3),
)


@given(group_id=TEXT, at=PLACES, offset=st.none() | OFFSETS)
def test_an_offset_record_round_trips(group_id: str, at: TopicPartition, offset: OffsetCommitValue | None) -> None:
    record = offset_record(group_id, at, offset)
    assert read_record(record.encode()) == record


@given(group_id=TEXT, at=PLACES, offset=OFFSETS, expires_ms=INT64)
def test_an_expiring_offset_loses_only_the_fields_missing_from_version_1(
    group_id: str, at: TopicPartition, offset: OffsetCommitValue, expires_ms: int
) -> None:
    written = attrs.evolve(offset, expire_timestamp_ms=expires_ms)
    expected = attrs.evolve(written, leader_epoch=-1, topic_id=bytes(16))
    assert read_record(offset_record(group_id, at, written).encode()) == offset_record(group_id, at, expected)


@given(group_id=TEXT, group=st.none() | GROUPS)
def test_a_group_record_round_trips(group_id: str, group: GroupMetadataValue | None) -> None:
    record = CoordinatorRecord(GroupMetadataKey(group_id), group)
    assert read_record(record.encode()) == record


def test_a_group_record_keeps_only_the_selected_protocol(harness: GroupHarness) -> None:
    """A restart finds that one only."""
    harness.stable(1, protocols={"sticky": b"s", "range": b"r"})
    harness.restart()
    (member,) = harness.group.members
    assert member.protocols == (ClassicProtocol("sticky", b"s"),)


def test_encoded_records_match_the_bytes_of_kafka() -> None:
    """As in tests/wire/internal_topics/test_against_java.py, which has them from Kafka's own classes."""
    at = TopicPartition("topic", 3)
    offset = OffsetCommitValue(
        offset=42, leader_epoch=7, metadata="meta", commit_timestamp_ms=TIME_MS, topic_id=bytes(range(16))
    )
    record = offset_record("group", at, offset).encode(5)
    assert record.timestamp_ms == 5
    assert record.key is not None
    assert record.value is not None
    assert record.key.hex() == "0001000567726f75700005746f70696300000003"
    assert (
        record.value.hex()
        == "0004000000000000002a00000007056d6574610000018bcfe5687b010010000102030405060708090a0b0c0d0e0f"
    )
    expires = offset_record("group", at, attrs.evolve(offset, expire_timestamp_ms=EXPIRES_MS)).encode()
    assert expires.value is not None
    assert expires.value.hex() == "0001000000000000002a00046d6574610000018bcfe5687b0000018bcfe58f0f"
    member = MemberMetadata(
        member_id="m1",
        group_instance_id="i1",
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        subscription=b"\1\2\3",
        assignment=b"\4\5",
    )
    group = GroupMetadataValue(
        generation_id=5,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="m1",
        state_timestamp_ms=TIME_MS,
        members=[member],
    )
    written = CoordinatorRecord(GroupMetadataKey("group"), group).encode()
    assert written.key is not None
    assert written.value is not None
    assert written.key.hex() == "0002000567726f7570"
    assert (
        written.value.hex()
        == "00030008636f6e73756d657200000005000572616e676500026d310000018bcfe5687b0000000100026d3100026931"
        "0006636c69656e74000a2f3132372e302e302e31000493e00000afc800000003010203000000020405"
    )
    assert group_tombstone("group").encode() == Record(key=written.key)
    assert offset_record("group", at, None).encode() == Record(key=record.key)


def test_a_member_of_long_ago_has_its_session_timeout_to_rebalance(harness: GroupHarness) -> None:
    """Version 0 of the value has no rebalance timeout."""
    member = MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout_ms=7_000, subscription=b"", assignment=b""
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation_id=1, protocol_name="range", leader_id="m", members=[member]
    )
    record = read_record(Record(encode_key(GroupMetadataKey("g")), encode_value(value, 0)))
    assert record is not None
    harness.group.restore(record.value)
    assert next(iter(harness.group.members)).rebalance_timeout_ms == 7_000


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_every_version_of_an_offset_that_kafka_ever_wrote_is_read(version: int) -> None:
    value = OffsetCommitValue(offset=9, metadata="m", commit_timestamp_ms=TIME_MS)
    record = Record(encode_key(OffsetCommitKey(group_id="g", topic="t", partition=0)), encode_value(value, version))
    assert read_record(record) == offset_record("g", TopicPartition("t", 0), value)


def test_a_record_of_an_unknown_type_is_ignored() -> None:
    assert read_record(Record(bytes.fromhex("00630001"), b"")) is None


@pytest.mark.parametrize(
    "record",
    [
        Record(None, b"x"),
        Record(b"\0", b"x"),
        Record(bytes.fromhex("0002000567726f7570"), bytes.fromhex("0063")),
        Record(bytes.fromhex("0002000567726f7570"), b""),
        Record(bytes.fromhex("0002000567"), None),
    ],
)
def test_a_malformed_record_is_refused(record: Record) -> None:
    with pytest.raises(DecodeError):
        read_record(record)
