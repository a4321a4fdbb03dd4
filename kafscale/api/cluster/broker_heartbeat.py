"""BrokerHeartbeat (63, KIP-631), version 0: another broker of the same bucket says that one of its incarnations runs.

Kafka's brokers send it to the controller alone. Here the controller also sends it to the others: an answer tells that
they run. In fields of our own the sender tells the controller its load and what to commit for it. The controller
answers after that commit, with the loads of all brokers. A sender that looks for hanging transactions gets the
partitions that its producers have enrolled here. Version 1 has failed log directories (KIP-858); a broker with a failed
one ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.values import partitions_by_topic
from kafscale.errors import KafkaError
from kafscale.wire.messages.brokers import (
    CoordinatedPartition,
    EnrolledProducer,
    EnrolledTopic,
    OwnHeartbeatRequest,
    OwnHeartbeatResponse,
)


async def handle(services: Services, call: Call, request: OwnHeartbeatRequest) -> OwnHeartbeatResponse:
    response = await services.heard_of(request)
    if request.producer_ids is not None and not response.error_code and not response.is_fenced:
        await _add_enrolled(services, request.producer_ids, response)
    return response


async def _add_enrolled(services: Services, producer_ids: Sequence[int], response: OwnHeartbeatResponse) -> None:
    try:
        known = await services.transactions.known(frozenset(producer_ids))
    except KafkaError as exc:
        response.error_code = exc.code
        return
    producers: defaultdict[tuple[int, int], list[TopicPartition]] = defaultdict(list)
    for (producer_id, at), epoch in known.enrolled.items():
        producers[producer_id, epoch].append(at)
    response.coordinated = [
        CoordinatedPartition(partition_index=index, leader_epoch=epoch) for index, epoch in known.epochs.items()
    ]
    response.enrolled = [
        EnrolledProducer(
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[
                EnrolledTopic(name=topic.topic, partitions=topic.partition_ids)
                for topic in partitions_by_topic(frozenset(partitions))
            ],
        )
        for (producer_id, epoch), partitions in producers.items()
    ]


API = Api(63, "BrokerHeartbeat", 0, 0, OwnHeartbeatRequest, OwnHeartbeatResponse, handle)
