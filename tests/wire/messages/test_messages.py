"""Every message class in every version: the versions that are promised, round trips, and bytes that are no message."""

import random

import pytest

from kafscale.errors import DecodeError
from kafscale.wire.codec import decode, encode
from kafscale.wire.schema import NEVER
from tests.wire.wire_messages import message_classes, some_messages, versions_of

API_VERSIONS = {  # name: (key, first version, last version, first flexible version)
    "Produce": (0, 0, 13, 9),
    "Fetch": (1, 4, 18, 12),
    "ListOffsets": (2, 1, 10, 6),
    "Metadata": (3, 0, 13, 9),
    "OffsetCommit": (8, 2, 10, 8),
    "OffsetFetch": (9, 1, 10, 6),
    "FindCoordinator": (10, 0, 6, 3),
    "JoinGroup": (11, 0, 9, 6),
    "Heartbeat": (12, 0, 4, 4),
    "LeaveGroup": (13, 0, 5, 4),
    "SyncGroup": (14, 0, 5, 4),
    "DescribeGroups": (15, 0, 6, 5),
    "ListGroups": (16, 0, 5, 3),
    "SaslHandshake": (17, 0, 1, NEVER),
    "ApiVersions": (18, 0, 4, 3),
    "CreateTopics": (19, 2, 7, 5),
    "DeleteTopics": (20, 1, 6, 4),
    "DeleteRecords": (21, 0, 2, 2),
    "InitProducerId": (22, 0, 5, 2),
    "OffsetForLeaderEpoch": (23, 2, 4, 4),
    "AddPartitionsToTxn": (24, 0, 5, 3),
    "AddOffsetsToTxn": (25, 0, 4, 3),
    "EndTxn": (26, 0, 5, 3),
    "WriteTxnMarkers": (27, 1, 2, 1),
    "TxnOffsetCommit": (28, 0, 5, 3),
    "DescribeAcls": (29, 1, 3, 2),
    "CreateAcls": (30, 1, 3, 2),
    "DeleteAcls": (31, 1, 3, 2),
    "DescribeConfigs": (32, 1, 4, 4),
    "AlterConfigs": (33, 0, 2, 2),
    "AlterReplicaLogDirs": (34, 1, 2, 2),
    "DescribeLogDirs": (35, 1, 4, 2),
    "SaslAuthenticate": (36, 0, 2, 2),
    "CreatePartitions": (37, 0, 3, 2),
    "DeleteGroups": (42, 0, 2, 2),
    "ElectLeaders": (43, 0, 2, 2),
    "IncrementalAlterConfigs": (44, 0, 1, 1),
    "AlterPartitionReassignments": (45, 0, 1, 0),
    "ListPartitionReassignments": (46, 0, 0, 0),
    "OffsetDelete": (47, 0, 0, NEVER),
    "DescribeClientQuotas": (48, 0, 1, 1),
    "AlterClientQuotas": (49, 0, 1, 1),
    "DescribeUserScramCredentials": (50, 0, 0, 0),
    "AlterUserScramCredentials": (51, 0, 0, 0),
    "DescribeQuorum": (55, 0, 2, 0),
    "UpdateFeatures": (57, 0, 2, 0),
    "DescribeCluster": (60, 0, 2, 0),
    "DescribeProducers": (61, 0, 0, 0),
    "UnregisterBroker": (64, 0, 0, 0),
    "BrokerHeartbeat": (63, 0, 0, 0),
    "DescribeTransactions": (65, 0, 0, 0),
    "ListTransactions": (66, 0, 2, 0),
    "ConsumerGroupHeartbeat": (68, 0, 1, 0),
    "ConsumerGroupDescribe": (69, 0, 1, 0),
    "ListConfigResources": (74, 0, 1, 0),
    "DescribeTopicPartitions": (75, 0, 0, 0),
}
EMBEDDED_VERSIONS = {  # messages inside other messages' bytes, without an API key
    "ConsumerProtocolSubscription": (0, 3, NEVER),
    "ConsumerProtocolAssignment": (0, 3, NEVER),
}

MESSAGES_COUNT = 20  # for each version of each class
OFTEN_IN_MESSAGES = bytes((0, 0, 0, 1, 2, 3, 0x7F, 0x80, 0xFF))  # what lengths, tags, nulls and flags begin with
each_class = pytest.mark.parametrize("cls", message_classes(), ids=lambda cls: cls.__name__)


def test_every_api_has_a_request_and_a_response_in_the_promised_versions():
    found = {
        cls.__name__: (cls.API_KEY, cls.MIN_VERSION, cls.MAX_VERSION, cls.FLEXIBLE_SINCE)
        for cls in message_classes()
        if hasattr(cls, "API_KEY")
    }
    promised = {name + kind: versions for name, versions in API_VERSIONS.items() for kind in ("Request", "Response")}
    assert found == promised


def test_embedded_messages_have_the_promised_versions():
    found = {
        cls.__name__: (cls.MIN_VERSION, cls.MAX_VERSION, cls.FLEXIBLE_SINCE)
        for cls in message_classes()
        if not hasattr(cls, "API_KEY")
    }
    assert found == EMBEDDED_VERSIONS


@pytest.mark.parametrize(
    "cls", [cls for cls in message_classes() if cls.__name__.endswith("Response")], ids=lambda cls: cls.__name__
)
def test_a_response_of_defaults_can_be_sent_in_every_version(cls):
    for version in versions_of(cls):
        assert decode(cls, version, b"".join(encode(cls(), version))) == cls()


@each_class
def test_round_trip(cls):
    for version in versions_of(cls):
        for message in some_messages(cls, version, MESSAGES_COUNT):
            assert decode(cls, version, b"".join(encode(message, version))) == message, version


@each_class
def test_a_message_cut_short_or_with_bytes_left_over_is_refused(cls):
    for version in versions_of(cls):
        for message in some_messages(cls, version, MESSAGES_COUNT // 2):
            raw = b"".join(encode(message, version))
            taken = [length for length in range(len(raw)) if not _is_refused(cls, version, raw[:length])]
            assert taken == [], version
            assert _is_refused(cls, version, raw + b"\0"), version


@each_class
def test_garbage_is_a_message_or_refused(cls):
    for version in versions_of(cls):
        for number in range(2 * MESSAGES_COUNT):
            size = random.randrange(65)
            garbage = random.randbytes(size) if number % 2 else bytes(random.choices(OFTEN_IN_MESSAGES, k=size))
            _assert_message_or_refused(cls, version, garbage)


@each_class
def test_a_message_with_one_byte_changed_is_a_message_or_refused(cls):
    for version in versions_of(cls):
        for message in some_messages(cls, version, 2 * MESSAGES_COUNT):
            raw = bytearray(b"".join(encode(message, version)))
            if raw:
                byte = random.choice((*OFTEN_IN_MESSAGES, random.randrange(256)))
                raw[random.randrange(len(raw))] = byte
            _assert_message_or_refused(cls, version, raw)


def _is_refused(cls, version, raw):
    try:
        decode(cls, version, raw)
    except DecodeError:
        return True
    return False


def _assert_message_or_refused(cls, version, raw):
    try:
        message = decode(cls, version, raw)
    except DecodeError:
        return
    again = decode(cls, version, b"".join(encode(message, version)))
    assert again == message or repr(again) == repr(message), (
        version
    )  # garbage may be a NaN, which does not equal itself
