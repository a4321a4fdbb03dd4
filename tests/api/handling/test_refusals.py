"""Refusing any request: the answer can be encoded, and whatever was asked for gets the error."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.api.handling.calls import Api
from kafscale.api.handling.refusals import at_once, refusal, set_errors
from kafscale.api.table import every_api
from kafscale.wire.codec import decode, encode
from kafscale.wire.error_codes import NONE, NOT_COORDINATOR, NOT_LEADER_OR_FOLLOWER
from kafscale.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kafscale.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.wire.wire_messages import messages

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("api", every_api(), ids=lambda api: api.name)
def test_can_be_encoded_in_every_version(api: Api) -> None:
    versions = st.integers(api.min_version, api.max_version)

    @settings(max_examples=20, deadline=None)
    @given(versions.flatmap(lambda version: st.tuples(st.just(version), messages(api.request, version))))
    def check(drawn: tuple[int, Any]) -> None:
        version, request = drawn
        data = b"".join(encode(refusal(request, api.response, NOT_COORDINATOR), version))
        decode(api.response, version, memoryview(data))

    check()


def test_every_requested_partition_gets_the_error() -> None:
    topic = ListOffsetsTopic(
        name="orders", partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 7)]
    )
    response = refusal(ListOffsetsRequest(topics=[topic]), ListOffsetsResponse, NOT_LEADER_OR_FOLLOWER)
    [answered] = response.topics
    assert answered.name == "orders"
    assert [(each.partition_index, each.error_code) for each in answered.partitions] == [
        (0, NOT_LEADER_OR_FOLLOWER),
        (7, NOT_LEADER_OR_FOLLOWER),
    ]


def test_a_fetch_is_refused_by_partition_and_its_session_is_not() -> None:
    request = FetchRequest(
        topics=[FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[_fetch_partition(3)])],
        max_wait_ms=0,
        min_bytes=0,
    )
    response = refusal(request, FetchResponse, NOT_LEADER_OR_FOLLOWER)
    assert response.error_code == NONE
    [topic] = response.responses
    assert (topic.topic, topic.topic_id) == ("orders", TOPIC_ID)
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(3, NOT_LEADER_OR_FOLLOWER)]


def test_an_incremental_fetch_that_names_nothing_is_refused_as_a_whole() -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, forgotten_topics_data=[ForgottenTopic(partitions=[1])])
    response = refusal(request, FetchResponse, NOT_LEADER_OR_FOLLOWER, many=at_once)
    assert response.responses == []
    assert response.error_code == NOT_LEADER_OR_FOLLOWER


def test_plain_names_and_numbers_are_answered_one_by_one() -> None:
    deleted = refusal(DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=0), DeleteTopicsResponse, NOT_COORDINATOR)
    assert [(each.name, each.error_code) for each in deleted.responses] == [
        ("a", NOT_COORDINATOR),
        ("b", NOT_COORDINATOR),
    ]
    topic = OffsetFetchRequestTopic(name="orders", partition_indexes=[4])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[topic])])
    [group] = refusal(request, OffsetFetchResponse, NOT_COORDINATOR, many=at_once).groups
    assert (group.group_id, group.error_code) == ("g", NOT_COORDINATOR)
    assert [each.partition_index for each in group.topics[0].partitions] == [4]


def test_errors_are_set_wherever_there_is_a_place() -> None:
    topic = ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    response = refusal(ListOffsetsRequest(topics=[topic]), ListOffsetsResponse, NONE, many=at_once)
    set_errors(response, NOT_COORDINATOR)
    assert response.topics[0].partitions[0].error_code == NOT_COORDINATOR
    assert attrs.asdict(response)["throttle_time_ms"] == 0


def _fetch_partition(index: int) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
