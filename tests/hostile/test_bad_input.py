"""Bytes that are no request: an answer or a closed connection, few short lines in the log, and never a traceback."""

from __future__ import annotations

import struct

from kafscale.config import Address
from kafscale.wire import codec
from kafscale.wire.error_codes import UNSUPPORTED_VERSION
from kafscale.wire.messages.cluster import ApiVersionsResponse
from kafscale.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    DescribeClientQuotasComponent,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kafscale.wire.messages.configs import AlterConfigsResource as AlteredResource
from kafscale.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from kafscale.wire.messages.replicas import ElectedTopicPartitions, ElectLeadersRequest
from kafscale.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kafscale.wire.schema import STRING_MAX_BYTES
from tests.devtools.processes.process import BrokerProcess
from tests.hostile.hostile import next_answer, raw_connection, request_bytes

API_VERSIONS = 18
TRIES_COUNT = 200
LOG_MAX_BYTES = 20_000


def _frame(api_key: int, version: int, client_id: bytes, body: bytes) -> bytes:
    frame = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id + body
    return len(frame).to_bytes(4) + frame


async def _ask(address: Address, frame: bytes) -> bytes | None:
    async with raw_connection(address) as stream:
        await stream.send_all(frame)
        return await next_answer(stream)


async def test_a_negative_version_of_api_versions_is_answered_in_version_zero(broker: BrokerProcess) -> None:
    """It wrote a traceback each time."""
    for version in (-1, -32768, 5, 32767):
        answer = await _ask(broker.kafka, _frame(API_VERSIONS, version, b"", b"\0" if version >= 3 else b""))
        assert answer is not None
        response = codec.decode(ApiVersionsResponse, 0, answer[4:])
        assert response.error_code == UNSUPPORTED_VERSION
        assert response.api_keys
    assert "Traceback" not in broker.log


async def test_bad_input_is_logged_in_few_short_lines_that_act_on_no_terminal(broker: BrokerProcess) -> None:
    hostile = "\n\x1b[31m\x9b31m\u202e".encode()
    for number in range(TRIES_COUNT):
        frame = [
            _frame(API_VERSIONS, 3, b"x", hostile * 200),
            _frame(3, -1, hostile, b""),
            _frame(9999, 0, hostile * 100, b""),
            b"\xff\xff\xff\xff",
        ][number % 4]
        assert await _ask(broker.kafka, frame) is None
    log = broker.log
    assert "closing the connection of" in log
    assert log.count("closing the connection of") < TRIES_COUNT / 2
    assert len(log) < LOG_MAX_BYTES
    assert "Traceback" not in log
    assert not [each for each in "\x1b\x9b\u202e" if each in log]


async def test_names_as_long_as_can_be_are_quoted_in_part(broker: BrokerProcess) -> None:
    """A message that quoted one was longer than a message can be: the connection ended, with a traceback in the log."""
    longest = "x" * STRING_MAX_BYTES
    nulls = [AlterableConfig(name=f"{index}" * 300, value=None) for index in range(200)]
    number = CreatableTopicConfig(name="retention.ms", value=longest)
    user = DescribeClientQuotasComponent(entity_type=longest, match_type=0, match="a")
    requests = [
        (DescribeConfigsRequest(resources=[_broker_resource(longest)]), 1),
        (AlterConfigsRequest(resources=[AlteredResource(resource_type=2, resource_name="t", configs=nulls)]), 0),
        (CreateTopicsRequest(topics=[_topic(number)], timeout_ms=0), 2),
        (DescribeClientQuotasRequest(components=[user]), 0),
        (ElectLeadersRequest(topic_partitions=[ElectedTopicPartitions(topic=longest, partitions=[0])]), 0),
    ]
    for request, version in requests:
        assert await _ask(broker.kafka, request_bytes(request, version)) is not None, request
    assert "Traceback" not in broker.log


async def test_longer_names_than_any_version_can_tell_are_refused(broker: BrokerProcess) -> None:
    """They were taken, and from then on ListGroups and DescribeGroups of older versions ended each connection."""
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="x" * (STRING_MAX_BYTES + 1),
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    assert await _ask(broker.kafka, request_bytes(request, 9)) is None
    assert "Traceback" not in broker.log


def _broker_resource(name: str) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=4, resource_name=name, configuration_keys=None)


def _topic(config: CreatableTopicConfig) -> CreatableTopic:
    return CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[config])
