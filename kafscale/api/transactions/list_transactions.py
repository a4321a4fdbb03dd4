"""ListTransactions (66): the transactional ids that this broker coordinates (KIP-664).

v1  only what has been open for longer than so many milliseconds (KIP-994)
v2  only ids that fit a regular expression of RE2, as a whole (KIP-1152)

Another broker that wants to know whether a transaction hangs (`kafscale.cluster.coordination.searching`) is told, with
ClusterAction, which partitions its producers have enrolled, and of which partitions of `__transaction_state` that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.coordination.state_records import now_ms
from kafscale.cluster.groups.consumer.events import Refused
from kafscale.cluster.groups.consumer.regexes import compile_regex
from kafscale.cluster.transactions.questions import TransactionFilter
from kafscale.cluster.transactions.values import TopicPartition, partitions_by_topic
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.rights import CLUSTER_ACTION, DESCRIBE_TRANSACTION
from kafscale.wire.error_codes import INVALID_REGULAR_EXPRESSION
from kafscale.wire.messages.list_transactions import TransactionState
from kafscale.wire.messages.own.enrolled import (
    CoordinatedPartition,
    EnrolledProducer,
    EnrolledRequest,
    EnrolledResponse,
    EnrolledTopic,
)

MATCHES_PER_TURN = 8  # an expression of the largest size may take some milliseconds for one id


async def handle(services: Services, call: Call, request: EnrolledRequest) -> EnrolledResponse:
    if request.wants_enrolled:
        return await _enrolled(services, call, request)
    wanted = TransactionFilter(
        producer_ids=frozenset(request.producer_id_filters),
        state_names=frozenset(request.state_filters),
        longer_than_ms=request.duration_filter,
    )
    try:
        matches = _matcher(request.transactional_id_pattern)
        await services.transactions.wait_settled()
    except KafkaError as exc:
        return EnrolledResponse(error_code=exc.code)
    found = services.transactions.coordinators.list(wanted, now_ms=now_ms())
    return EnrolledResponse(
        error_code=found.error_code,
        unknown_state_filters=sorted(found.unknown_state_names),
        transaction_states=[
            TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
            )
            async for each in in_turns(found.transactions, steps=MATCHES_PER_TURN)
            if matches(each.transactional_id)
            and services.access.allows(call, DESCRIBE_TRANSACTION, each.transactional_id, tells=False)
        ],
    )


async def _enrolled(services: Services, call: Call, request: EnrolledRequest) -> EnrolledResponse:
    try:
        services.access.check(call, CLUSTER_ACTION)
        known = await services.transactions.known(frozenset(request.producer_id_filters))
    except KafkaError as exc:
        return EnrolledResponse(error_code=exc.code)
    producers: defaultdict[tuple[int, int], list[TopicPartition]] = defaultdict(list)
    for (producer_id, at), epoch in known.enrolled.items():
        producers[producer_id, epoch].append(at)
    return EnrolledResponse(
        coordinated=[
            CoordinatedPartition(partition_index=index, leader_epoch=epoch) for index, epoch in known.epochs.items()
        ],
        enrolled=[
            EnrolledProducer(
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[
                    EnrolledTopic(name=each.topic, partitions=list(each.partition_ids))
                    for each in partitions_by_topic(frozenset(partitions))
                ],
            )
            for (producer_id, epoch), partitions in producers.items()
        ],
    )


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return what tells whether an id fits. Raises KafkaError INVALID_REGULAR_EXPRESSION."""
    if not pattern:
        return lambda _: True
    try:
        compiled = compile_regex(pattern)
    except Refused as exc:
        raise KafkaError(INVALID_REGULAR_EXPRESSION, str(exc)) from exc
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


API = Api(66, "ListTransactions", 0, 2, EnrolledRequest, EnrolledResponse, handle)
