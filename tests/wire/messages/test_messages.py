"""Every message class in every version: the versions that are promised, round trips, and bytes that are no message."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.errors import DecodeError
from kafscale.testing.wire_messages import message_classes, message_versions, messages, versions_of
from kafscale.wire.codec import decode, encode
from kafscale.wire.schema import NEVER

API_VERSIONS = {  # name: (key, first version, last version, first flexible version)
    "Produce": (0, 0, 11, 9),
    "Fetch": (1, 4, 16, 12),
    "ListOffsets": (2, 1, 7, 6),
    "Metadata": (3, 0, 12, 9),
    "OffsetCommit": (8, 2, 8, 8),
    "OffsetFetch": (9, 1, 8, 6),
    "FindCoordinator": (10, 0, 4, 3),
    "JoinGroup": (11, 0, 9, 6),
    "Heartbeat": (12, 0, 4, 4),
    "LeaveGroup": (13, 0, 5, 4),
    "SyncGroup": (14, 0, 5, 4),
    "DescribeGroups": (15, 0, 5, 5),
    "ListGroups": (16, 0, 5, 3),
    "ApiVersions": (18, 0, 4, 3),
    "CreateTopics": (19, 2, 7, 5),
    "DeleteTopics": (20, 1, 6, 4),
    "DeleteRecords": (21, 0, 2, 2),
    "InitProducerId": (22, 0, 4, 2),
    "OffsetForLeaderEpoch": (23, 2, 4, 4),
    "DescribeConfigs": (32, 1, 4, 4),
    "AlterConfigs": (33, 0, 2, 2),
    "DescribeLogDirs": (35, 1, 4, 2),
    "CreatePartitions": (37, 0, 3, 2),
    "DeleteGroups": (42, 0, 2, 2),
    "IncrementalAlterConfigs": (44, 0, 1, 1),
    "OffsetDelete": (47, 0, 0, NEVER),
    "DescribeClientQuotas": (48, 0, 1, 1),
    "AlterClientQuotas": (49, 0, 1, 1),
    "DescribeCluster": (60, 0, 1, 0),
}
EMBEDDED_VERSIONS = {  # messages inside other messages' bytes, without an API key
    "ConsumerProtocolSubscription": (0, 3, NEVER),
    "ConsumerProtocolAssignment": (0, 3, NEVER),
}

few_examples = settings(max_examples=10, deadline=None)
each_version = pytest.mark.parametrize(
    ("cls", "version"),
    [pytest.param(cls, version, id=f"{cls.__name__}-{version}") for cls, version in message_versions()],
)
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


@each_version
@few_examples
@given(data=st.data())
def test_round_trip(cls, version, data):
    message = data.draw(messages(cls, version))
    assert decode(cls, version, b"".join(encode(message, version))) == message


@each_version
@few_examples
@given(data=st.data())
def test_a_message_cut_short_or_with_bytes_left_over_is_refused(cls, version, data):
    raw = b"".join(encode(data.draw(messages(cls, version)), version))
    for length in range(len(raw)):
        with pytest.raises(DecodeError):
            decode(cls, version, raw[:length])
    with pytest.raises(DecodeError):
        decode(cls, version, raw + b"\0")


@each_version
@few_examples
@given(data=st.data())
def test_garbage_is_a_message_or_refused(cls, version, data):
    _assert_message_or_refused(cls, version, data.draw(st.binary(max_size=64)))


@each_version
@few_examples
@given(data=st.data())
def test_a_message_with_one_byte_changed_is_a_message_or_refused(cls, version, data):
    raw = bytearray(b"".join(encode(data.draw(messages(cls, version)), version)))
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    _assert_message_or_refused(cls, version, raw)


def _assert_message_or_refused(cls, version, raw):
    try:
        message = decode(cls, version, raw)
    except DecodeError:
        return
    assert decode(cls, version, b"".join(encode(message, version))) == message
