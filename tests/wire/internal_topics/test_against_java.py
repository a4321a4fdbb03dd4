"""Records of the internal topics against what Kafka's own classes write.

All bytes are those of Kafka 4.1.1. In `WRITTEN` they are of the functions by which its coordinators make records:
`GroupCoordinatorRecordHelpers` and `GroupCoordinatorRecordSerde` of kafka-group-coordinator, and of `TransactionLog` of
kafka_2.13, called with the values that are named here. In `OTHER_VERSIONS` they are of `MessageUtil
.toVersionPrefixedBytes` for objects of the generated classes, in versions or with fields that Kafka 4.1 does not write.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kafscale.cluster.transactions.values import TransactionState
from kafscale.wire.internal_topics import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafscale.wire.internal_topics.consumer_offsets import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionMetadata,
    SubscribedTopicMetadata,
    TopicPartitions,
)
from kafscale.wire.internal_topics.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

TOPIC_ID, OTHER_TOPIC_ID = bytes(range(16)), bytes(range(16, 32))
TIME_MS, LATER_MS, EXPIRES_MS = 1_700_000_000_123, 1_700_000_000_456, 1_700_000_009_999

OFFSET_KEY = OffsetCommitKey(group_id="group", topic="topic", partition=3)
OFFSET = OffsetCommitValue(offset=42, leader_epoch=7, metadata="meta", commit_timestamp_ms=TIME_MS)
MEMBER = MemberMetadata(
    member_id="m1",
    group_instance_id="i1",
    client_id="client",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=45_000,
    subscription=b"\1\2\3",
    assignment=b"\4\5",
)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation_id=5,
    protocol_name="range",
    leader_id="m1",
    state_timestamp_ms=TIME_MS,
    members=[MEMBER],
)
CONSUMER = ConsumerGroupMemberMetadataValue(
    instance_id="i1",
    rack_id="r1",
    client_id="client",
    client_host="/127.0.0.1",
    subscribed_topic_names=["a", "b"],
    subscribed_topic_regex="a.*",
    rebalance_timeout_ms=300_000,
    server_assignor="uniform",
)
CLASSIC = ConsumerGroupMemberMetadataValue(
    client_id="client",
    client_host="/127.0.0.1",
    subscribed_topic_names=["a"],
    subscribed_topic_regex="",
    rebalance_timeout_ms=300_000,
    classic_member_metadata=ClassicMemberMetadata(
        session_timeout_ms=45_000, supported_protocols=[ClassicProtocol(name="range", metadata=b"\1\2\3")]
    ),
)
CURRENT = ConsumerGroupCurrentMemberAssignmentValue(
    member_epoch=4,
    previous_member_epoch=3,
    state=1,
    assigned_partitions=[TopicPartitions(topic_id=TOPIC_ID, partitions=[0])],
    partitions_pending_revocation=[TopicPartitions(topic_id=OTHER_TOPIC_ID, partitions=[5])],
)
TRANSACTION_KEY = TransactionLogKey(transactional_id="my-id")
TRANSACTION = TransactionLogValue(
    producer_id=1000,
    producer_epoch=5,
    transaction_timeout_ms=60_000,
    transaction_status=TransactionState.ONGOING,
    transaction_partitions=[PartitionsSchema(topic="a", partition_ids=[0, 2])],
    transaction_last_update_timestamp_ms=LATER_MS,
    transaction_start_timestamp_ms=TIME_MS,
    client_transaction_version=2,
)
OLD_TRANSACTION = attrs.evolve(
    TRANSACTION, transaction_status=TransactionState.PREPARE_ABORT, client_transaction_version=0
)
NO_TRANSACTION = TransactionLogValue(
    producer_id=1000,
    producer_epoch=0,
    transaction_timeout_ms=60_000,
    transaction_status=TransactionState.EMPTY,
    transaction_partitions=None,
    transaction_last_update_timestamp_ms=LATER_MS,
    transaction_start_timestamp_ms=-1,
)


@attrs.frozen
class Written:
    """One record: what it says, and Kafka's bytes of it; no value if it takes something back."""

    name: str
    key: Any
    key_hex: str
    value: Any = None
    value_hex: str = ""
    version: int | None = None  # None: the one that is written as a rule


OFFSET_KEY_HEX = "0001000567726f75700005746f70696300000003"
GROUP_KEY_HEX = "0002000567726f7570"
WRITTEN = [
    Written(
        "offset",
        OFFSET_KEY,
        OFFSET_KEY_HEX,
        attrs.evolve(OFFSET, topic_id=TOPIC_ID),
        "0004000000000000002a00000007056d6574610000018bcfe5687b010010000102030405060708090a0b0c0d0e0f",
    ),
    Written(
        "offset without leader epoch, metadata and topic id",
        OFFSET_KEY,
        OFFSET_KEY_HEX,
        attrs.evolve(OFFSET, leader_epoch=-1, metadata=""),
        "0004000000000000002affffffff010000018bcfe5687b00",
    ),
    Written(
        "offset that expires",
        OFFSET_KEY,
        OFFSET_KEY_HEX,
        attrs.evolve(OFFSET, leader_epoch=-1, expire_timestamp_ms=EXPIRES_MS),
        "0001000000000000002a00046d6574610000018bcfe5687b0000018bcfe58f0f",
        version=1,
    ),
    Written("offset taken back", OFFSET_KEY, OFFSET_KEY_HEX),
    Written(
        "group",
        GroupMetadataKey(group_id="group"),
        GROUP_KEY_HEX,
        GROUP,
        "00030008636f6e73756d657200000005000572616e676500026d310000018bcfe5687b0000000100026d31000269310006636c69656e74"
        "000a2f3132372e302e302e31000493e00000afc800000003010203000000020405",
    ),
    Written(
        "group without members",
        GroupMetadataKey(group_id="group"),
        GROUP_KEY_HEX,
        GroupMetadataValue(
            protocol_type="", generation_id=0, protocol_name=None, leader_id=None, state_timestamp_ms=0x1A2085426DC
        ),
        "0003000000000000ffffffff000001a2085426dc00000000",
    ),
    Written("group taken back", GroupMetadataKey(group_id="group"), GROUP_KEY_HEX),
    Written(
        "member",
        ConsumerGroupMemberMetadataKey(group_id="group", member_id="m1"),
        "0005000567726f757000026d31",
        CONSUMER,
        "000003693103723107636c69656e740b2f3132372e302e302e31030261026204612e2a000493e008756e69666f726d01000100",
    ),
    Written(
        "member of the classic protocol",
        ConsumerGroupMemberMetadataKey(group_id="group", member_id="m2"),
        "0005000567726f757000026d32",
        CLASSIC,
        "0000000007636c69656e740b2f3132372e302e302e3102026101000493e000010012010000afc8020672616e6765040102030000",
    ),
    Written(
        "group epoch",
        ConsumerGroupMetadataKey(group_id="group"),
        "0003000567726f7570",
        ConsumerGroupMetadataValue(epoch=4, metadata_hash=0x0102030405060708),
        "0000000000040100080102030405060708",
    ),
    Written(
        "group epoch without hash",
        ConsumerGroupMetadataKey(group_id="group"),
        "0003000567726f7570",
        ConsumerGroupMetadataValue(epoch=4),
        "00000000000400",
    ),
    Written("topics taken back", ConsumerGroupPartitionMetadataKey(group_id="group"), "0004000567726f7570"),
    Written(
        "target assignment",
        ConsumerGroupTargetAssignmentMemberKey(group_id="group", member_id="m1"),
        "0007000567726f757000026d31",
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])]
        ),
        "000002000102030405060708090a0b0c0d0e0f0300000000000000010000",
    ),
    Written(
        "epoch of the target assignment",
        ConsumerGroupTargetAssignmentMetadataKey(group_id="group"),
        "0006000567726f7570",
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4),
        "00000000000400",
    ),
    Written(
        "current assignment",
        ConsumerGroupCurrentMemberAssignmentKey(group_id="group", member_id="m1"),
        "0008000567726f757000026d31",
        CURRENT,
        "000000000004000000030102000102030405060708090a0b0c0d0e0f02000000000002101112131415161718191a1b1c1d1e1f02000000"
        "050000",
    ),
    Written(
        "regular expression",
        ConsumerGroupRegularExpressionKey(group_id="group", regular_expression="a.*"),
        "0010000567726f75700003612e2a",
        ConsumerGroupRegularExpressionValue(topics=["a", "ab"], version=17, timestamp_ms=TIME_MS),
        "000003026103616200000000000000110000018bcfe5687b00",
    ),
    Written(
        "transaction",
        TRANSACTION_KEY,
        "000000056d792d6964",
        TRANSACTION,
        "000100000000000003e800050000ea6001020261030000000000000002000000018bcfe569c80000018bcfe5687b0102020002",
    ),
    Written(
        "transaction of an older client",
        TRANSACTION_KEY,
        "000000056d792d6964",
        OLD_TRANSACTION,
        "000100000000000003e800050000ea6003020261030000000000000002000000018bcfe569c80000018bcfe5687b00",
    ),
    Written(
        "no transaction",
        TRANSACTION_KEY,
        "000000056d792d6964",
        NO_TRANSACTION,
        "000100000000000003e800000000ea6000000000018bcfe569c8ffffffffffffffff00",
    ),
    Written(
        "transaction under transaction.version=0",
        TRANSACTION_KEY,
        "000000056d792d6964",
        OLD_TRANSACTION,
        "000000000000000003e800050000ea6003000000010001610000000200000000000000020000018bcfe569c80000018bcfe5687b",
        version=0,
    ),
    Written(
        "no transaction under transaction.version=0",
        TRANSACTION_KEY,
        "000000056d792d6964",
        NO_TRANSACTION,
        "000000000000000003e800000000ea6000ffffffff0000018bcfe569c8ffffffffffffffff",
        version=0,
    ),
]

GROUP_WITHOUT_PROTOCOL = attrs.evolve(GROUP, protocol_name=None)
OLDER_MEMBER = attrs.evolve(MEMBER, group_instance_id=None)
OTHER_VERSIONS = [
    (
        attrs.evolve(OFFSET, leader_epoch=-1),
        0,
        "0000000000000000002a00046d6574610000018bcfe5687b",
    ),
    (attrs.evolve(OFFSET, leader_epoch=-1), 2, "0002000000000000002a00046d6574610000018bcfe5687b"),
    (OFFSET, 3, "0003000000000000002a0000000700046d6574610000018bcfe5687b"),
    (
        attrs.evolve(
            GROUP_WITHOUT_PROTOCOL,
            state_timestamp_ms=-1,
            members=[attrs.evolve(OLDER_MEMBER, rebalance_timeout_ms=-1)],
        ),
        0,
        (
            "00000008636f6e73756d657200000005ffff00026d310000000100026d310006636c69656e74000a2f3132372e302e302e310000afc8"
            "00000003010203000000020405"
        ),
    ),
    (
        attrs.evolve(GROUP_WITHOUT_PROTOCOL, state_timestamp_ms=-1, members=[OLDER_MEMBER]),
        1,
        (
            "00010008636f6e73756d657200000005ffff00026d310000000100026d310006636c69656e74000a2f3132372e302e302e31000493e0"
            "0000afc800000003010203000000020405"
        ),
    ),
    (
        attrs.evolve(GROUP_WITHOUT_PROTOCOL, members=[OLDER_MEMBER]),
        2,
        (
            "00020008636f6e73756d657200000005ffff00026d310000018bcfe5687b0000000100026d310006636c69656e74000a2f3132372e30"
            "2e302e31000493e00000afc800000003010203000000020405"
        ),
    ),
    (
        GROUP_WITHOUT_PROTOCOL,
        4,
        (
            "000409636f6e73756d65720000000500036d310000018bcfe5687b02036d3103693107636c69656e740b2f3132372e302e302e310004"
            "93e00000afc8040102030304050000"
        ),
    ),
    (
        ConsumerGroupPartitionMetadataValue(
            topics=[
                SubscribedTopicMetadata(
                    topic_id=TOPIC_ID,
                    topic_name="a",
                    num_partitions=2,
                    partition_metadata=[PartitionMetadata(partition=1, racks=["r1", "r2"])],
                )
            ]
        ),
        0,
        "000002000102030405060708090a0b0c0d0e0f026100000002020000000103037231037232000000",
    ),
    (
        attrs.evolve(
            TRANSACTION,
            previous_producer_id=999,
            next_producer_id=1001,
            next_producer_epoch=6,
            transaction_status=TransactionState.PREPARE_COMMIT,
        ),
        1,
        (
            "000100000000000003e800050000ea6002020261030000000000000002000000018bcfe569c80000018bcfe5687b04000800000000"
            "000003e7010800000000000003e90202000203020006"
        ),
    ),
]

each_record = pytest.mark.parametrize("record", WRITTEN, ids=lambda record: record.name)
each_other = pytest.mark.parametrize(
    ("value", "version", "value_hex"),
    OTHER_VERSIONS,
    ids=[f"{type(value).__name__}-{version}" for value, version, _ in OTHER_VERSIONS],
)


@each_record
def test_records_are_written_as_kafka_does(record: Written) -> None:
    assert encode_key(record.key).hex() == record.key_hex
    if record.value is not None:
        assert encode_value(record.value, record.version).hex() == record.value_hex


@each_record
def test_records_written_by_kafka_are_decoded(record: Written) -> None:
    kinds = TRANSACTION_STATE if isinstance(record.key, TransactionLogKey) else CONSUMER_OFFSETS
    key = decode_key(kinds, bytes.fromhex(record.key_hex))
    assert key == record.key
    if record.value is not None:
        assert decode_value(key.VALUE, bytes.fromhex(record.value_hex)) == record.value


@each_other
def test_other_versions_are_as_kafkas(value: Any, version: int, value_hex: str) -> None:
    assert encode_value(value, version).hex() == value_hex
    assert decode_value(type(value), bytes.fromhex(value_hex)) == value


def test_the_samples_cover_each_record_type() -> None:
    types = {type(record.key) for record in WRITTEN}
    assert types == {*CONSUMER_OFFSETS.values(), *TRANSACTION_STATE.values()}


def test_the_samples_cover_each_version_of_each_value() -> None:
    found = {(type(value), version) for value, version, _ in OTHER_VERSIONS} | {
        (type(record.value), record.value.WRITTEN_VERSION if record.version is None else record.version)
        for record in WRITTEN
        if record.value is not None
    }
    classes: list[Any] = [key.VALUE for key in (*CONSUMER_OFFSETS.values(), *TRANSACTION_STATE.values())]  # type: ignore[attr-defined]
    assert found == {(cls, version) for cls in classes for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)}


def test_statuses_have_the_names_that_kafkas_tools_know() -> None:
    titles = [state.kafka_name for state in TransactionState]
    assert titles == [
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"),
        "PrepareEpochFence",
    ]
