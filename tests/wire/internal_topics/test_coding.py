"""Keys and values of internal topics: round trips, what is not known, and bytes that are neither."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from kafscale.errors import DecodeError
from kafscale.wire.internal_topics import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from tests.wire.wire_messages import some_messages

KINDS: list[Any] = [*CONSUMER_OFFSETS.values(), *TRANSACTION_STATE.values()]
RECORDS_COUNT = 20
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@each_kind
def test_keys_round_trip(kind: Any) -> None:
    topic = CONSUMER_OFFSETS if kind in CONSUMER_OFFSETS.values() else TRANSACTION_STATE
    for key in some_messages(kind, 0, RECORDS_COUNT):
        assert decode_key(topic, encode_key(key)) == key
        assert hash(key) == hash(decode_key(topic, encode_key(key)))


@each_kind
def test_values_round_trip_in_every_version(kind: Any) -> None:
    cls = kind.VALUE
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        for value in some_messages(cls, version, RECORDS_COUNT):
            assert decode_value(cls, memoryview(encode_value(value, version))) == value


@each_kind
def test_a_record_cut_short_or_with_bytes_left_over_is_refused(kind: Any) -> None:
    for key in some_messages(kind, 0, 3):
        raw = encode_key(key)
        for wrong in (*(raw[:length] for length in range(len(raw))), raw + b"\0"):
            with pytest.raises(DecodeError):
                decode_key({kind.RECORD_TYPE: kind}, wrong)
    for value in some_messages(kind.VALUE, kind.VALUE.WRITTEN_VERSION, 3):
        raw = encode_value(value)
        for wrong in (*(raw[:length] for length in range(len(raw))), raw + b"\0"):
            with pytest.raises(DecodeError):
                decode_value(kind.VALUE, wrong)


@each_kind
def test_garbage_is_a_record_or_refused(kind: Any) -> None:
    for _ in range(20 * RECORDS_COUNT):
        garbage = random.choice((b"\0\0", b"\0\1", b"\0\4", b"")) + random.randbytes(random.randrange(40))
        with contextlib.suppress(DecodeError):
            decode_key({kind.RECORD_TYPE: kind}, garbage)
        with contextlib.suppress(DecodeError):
            decode_value(kind.VALUE, garbage)


@pytest.mark.parametrize("record_type", [0, 9, 10, 15, 17, 99, -1])
def test_an_unknown_record_type_is_decoded_as_none(record_type: int) -> None:
    assert decode_key(CONSUMER_OFFSETS, record_type.to_bytes(2, "big", signed=True) + b"whatever") is None


def test_keys_of_one_topic_are_none_of_another() -> None:
    assert decode_key(TRANSACTION_STATE, encode_key(OffsetCommitKey(group_id="g", topic="t", partition=0))) is None


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_a_value_of_a_later_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(DecodeError, match=f"OffsetCommitValue of version {version}; known are 0 to 4"):
        decode_value(OffsetCommitValue, version.to_bytes(2, "big", signed=True) + bytes(40))


def test_a_value_is_not_written_in_a_version_that_does_not_exist() -> None:
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp_ms=0)
    with pytest.raises(ValueError, match="has versions 0 to 4, not 5"):
        encode_value(value, 5)
