"""Answers of very many small buffers: their cost is linear in their size, and others are answered meanwhile."""

from __future__ import annotations

from kafscale.wire import codec
from kafscale.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from tests.devtools.processes.process import BrokerProcess
from tests.hostile.hostile import bystander, next_answer, raw_connection, request_bytes

TOPIC = 2
RESOURCES_COUNT = 60_000


async def test_an_answer_of_very_many_buffers_is_sent_in_linear_time(broker: BrokerProcess) -> None:
    """Each sendmsg copied the list of all that was still to be sent."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC, resource_name=f"unknown-{number}", configuration_keys=None)
            for number in range(RESOURCES_COUNT)
        ],
        include_synonyms=True,
    )
    sent = request_bytes(request, 1)
    async with raw_connection(broker.kafka) as attacker, bystander(broker) as seen:
        await attacker.send_all(sent)
        answer = await next_answer(attacker)
    assert answer is not None
    response = codec.decode(DescribeConfigsResponse, 1, answer[4:])
    assert len(response.results) == RESOURCES_COUNT
    assert seen.problems() == []
