from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.api.produce.short_way import LEARNED_EVERY_COUNT, PATTERNS_MAX_COUNT, PlainProduce, PlainProduces
from kafscale.errors import DecodeError
from kafscale.wire import codec
from kafscale.wire.frames import SIZE_BYTES, RequestHeader, parse_request_header, request_frame, response_frame
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.wire.wire_messages import messages

FLEXIBLE_SINCE = 9
VERSIONS = range(3, 14)
EXAMPLES_COUNT = 20  # for each version
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def id_of(topic: str) -> bytes:
    """An id for each name; of the empty one all bits are set, like the -1 of an offset."""
    return hashlib.md5(topic.encode()).digest() if topic else b"\xff" * 16


def request(topic: str = "orders", *, index: int = 0, records: bytes | None = b"x", acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=None if records is None else memoryview(records))
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, topic_id=id_of(topic), partition_data=[data])],
    )


def frame(message: ProduceRequest, version: int, *, correlation_id: int = 0, client_id: str | None = "c") -> memoryview:
    header = RequestHeader(0, version, correlation_id, client_id)
    parts = request_frame(header, codec.encode(message, version), flexible_header=version >= 9)
    return memoryview(b"".join(parts)[SIZE_BYTES:])


def decoded(data: memoryview) -> tuple[RequestHeader, Any]:
    header = parse_request_header(data, lambda key: FLEXIBLE_SINCE)
    return header, codec.decoder(ProduceRequest, header.api_version)(data, header.body_offset)[0]


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data(), client_id=st.none() | st.text(max_size=8), acks=st.sampled_from([-1, 1]))
@settings(max_examples=EXAMPLES_COUNT)
def test_a_pattern_match_equals_the_decoded_request(
    version: int, data: st.DataObject, client_id: str | None, acks: int
) -> None:
    message = request(data.draw(st.text(max_size=8)), acks=acks)
    message.transactional_id = data.draw(st.none() | st.text(max_size=8))
    pattern = PlainProduce.of(frame(message, version, client_id=client_id))
    assert pattern is not None
    records = data.draw(st.binary(min_size=1, max_size=8)) * data.draw(st.sampled_from([1, 20, 3000]))
    message.topic_data[0].partition_data = [
        PartitionProduceData(index=data.draw(INT32), records=memoryview(records)),
    ]
    later = frame(message, version, correlation_id=data.draw(INT32), client_id=client_id)
    header, same = decoded(later)
    assert pattern.match(later) == (header.correlation_id, same.topic_data[0].partition_data[0].index, records)
    assert pattern.topic == same.topic_data[0].name
    assert pattern.topic_id == (same.topic_data[0].topic_id if version >= 13 else None)


@given(st.data(), st.sampled_from(VERSIONS))
def test_a_mutated_frame_that_matches_a_pattern_decodes_to_the_same_request(data: st.DataObject, version: int) -> None:
    learned = frame(request(records=b"r" * data.draw(st.sampled_from([1, 126, 127, 300]))), version)
    pattern = PlainProduce.of(learned)
    assert pattern is not None
    changed = bytearray(learned)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    found = pattern.match(memoryview(changed))
    if found is not None:
        header, message = decoded(memoryview(changed))
        expected = decoded(learned)[1]
        expected.topic_data[0].partition_data = [PartitionProduceData(index=found[1], records=found[2])]
        assert message == expected
        assert (header.api_key, header.api_version, header.correlation_id) == (0, version, found[0])


@given(st.data(), st.sampled_from(VERSIONS))
def test_any_request_is_a_pattern_of_itself_or_none(data: st.DataObject, version: int) -> None:
    message = data.draw(messages(ProduceRequest, version))
    whole = frame(message, version)
    pattern = PlainProduce.of(whole)
    batches = [each for topic in message.topic_data for each in topic.partition_data]
    is_plain = message.acks in (-1, 1) and len(message.topic_data) == len(batches) == 1 and bool(batches[0].records)
    assert (pattern is not None) == is_plain
    if pattern is not None:
        assert pattern.match(whole) == (0, batches[0].index, batches[0].records)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [0, 2])
def test_a_produce_with_acks_0_or_invalid_acks_has_no_pattern(version: int, acks: int) -> None:
    assert PlainProduce.of(frame(request(acks=acks), version)) is None


def test_a_frame_with_an_unknown_tagged_field_has_no_pattern() -> None:
    plain = bytes(frame(request(), 9))
    tagged = memoryview(plain[:-1] + b"\x01\x05\x01z")  # a tagged field that nobody knows
    assert decoded(tagged)[1] == decoded(memoryview(plain))[1]
    assert PlainProduce.of(tagged) is None


@pytest.mark.parametrize("version", VERSIONS)
@given(topic=st.text(max_size=40), correlation_id=INT32, index=INT32, base_offset=INT64, log_start_offset=INT64)
@settings(max_examples=EXAMPLES_COUNT)
def test_a_pattern_reply_equals_the_encoded_response(
    version: int, topic: str, correlation_id: int, index: int, base_offset: int, log_start_offset: int
) -> None:
    pattern = PlainProduce.of(frame(request(topic), version))
    assert pattern is not None
    answer = PartitionProduceResponse(index=index, base_offset=base_offset, log_start_offset=log_start_offset)
    of_topic = TopicProduceResponse(name=topic, topic_id=id_of(topic), partition_responses=[answer])
    response = ProduceResponse(responses=[of_topic])
    expected = b"".join(response_frame(correlation_id, codec.encode(response, version), version >= 9))
    assert pattern.reply(correlation_id, index, base_offset, log_start_offset) == expected


def test_a_few_patterns_are_kept_and_very_many_topics_seldom_learned() -> None:
    plain = PlainProduces()
    learned = [frame(request(f"topic-{number}"), 9) for number in range(PATTERNS_MAX_COUNT + 1)]
    for each in learned:
        for _ in range(LEARNED_EVERY_COUNT):
            plain.learn(each)
    assert [plain.match(each) is not None for each in learned] == [False] + [True] * PATTERNS_MAX_COUNT
    other = frame(request("other"), 9)
    plain.learn(learned[0])
    plain.learn(other)
    assert plain.match(other) is None


def test_a_frame_that_ends_early_matches_nothing() -> None:
    whole = frame(request(records=b"r" * 300), 9)
    pattern = PlainProduce.of(whole)
    assert pattern is not None
    assert all(pattern.match(whole[:size]) is None for size in range(len(whole)))
    with pytest.raises(DecodeError):
        decoded(whole[:-1])
