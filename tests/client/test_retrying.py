"""Errors that ask for another attempt: each call of the client makes one, and finds its leader or coordinator anew."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from kafscale.client import Consumer, Producer, connect
from kafscale.client.client import Client
from kafscale.client.consumer import LATEST, list_offsets
from kafscale.client.groups import (
    TopicPartition,
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from kafscale.client.retrying import BACKOFF, RETRY_SECONDS, STALE_LEADER, WORTH_ANOTHER, Attempts
from kafscale.client.transactions import abort_transaction, describe_transaction, list_transactions
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import FindCoordinatorRequest
from kafscale.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from kafscale.wire.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from kafscale.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kafscale.wire.messages.records import FetchRequest, FetchResponse, ListOffsetsRequest, ProduceRequest
from kafscale.wire.messages.topics import MetadataRequest
from kafscale.wire.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafscale.wire.records import Record, build_batch
from tests.client.small_cluster import SmallCluster

AT = TopicPartition("t", 0)
Call = Callable[[Client], Awaitable[object]]


async def _produce(client: Client) -> object:
    return await Producer(client=client, topic="t").send_batch(0, build_batch([Record(value=b"x")]))


async def _consume(client: Client) -> object:
    consumer = Consumer(client=client, topic="t", positions={0: 0})
    while not (found := await consumer.poll()):
        pass
    return [each.record.value for each in found]


COORDINATORS: list[tuple[type, Call]] = [
    (FindCoordinatorRequest, lambda client: client.coordinator("g")),
    (ListGroupsRequest, list_groups),
    (ConsumerGroupDescribeRequest, lambda client: describe_group(client, "g")),
    (OffsetFetchRequest, lambda client: committed_offsets(client, "g")),
    (OffsetCommitRequest, lambda client: commit_offsets(client, "g", {AT: 1})),
    (DeleteGroupsRequest, lambda client: delete_group(client, "g")),
    (ListTransactionsRequest, list_transactions),
    (DescribeTransactionsRequest, lambda client: describe_transaction(client, "x")),
    (InitProducerIdRequest, lambda client: abort_transaction(client, "x", 1000)),
]
LEADERS: list[tuple[type, Call]] = [
    (MetadataRequest, lambda client: client.topic("t")),
    (ListOffsetsRequest, lambda client: list_offsets(client, "t", {0: LATEST})),
    (ProduceRequest, _produce),
    (FetchRequest, _consume),
]


@pytest.fixture
async def cluster() -> AsyncIterator[SmallCluster]:
    found = SmallCluster()
    found.create("t").logs[0].append(build_batch([Record(value=b"a")]))
    found.offsets["g"] = {("t", 0): 0}
    described = DescribeTransactionsResponse(transaction_states=[DescribedTransaction(transactional_id="x")])
    found.broker.handlers = {
        **found.broker.handlers,
        ListTransactionsRequest: lambda request: ListTransactionsResponse(),
        DescribeTransactionsRequest: lambda request: described,
        InitProducerIdRequest: lambda request: InitProducerIdResponse(),
    }
    async with found.broker.listening() as found.address:
        yield found


def refusing(cluster: SmallCluster, api: type, codes: list[int]) -> None:
    """Let the broker answer an API with these codes, one after the other, and then as it does."""
    handle = cluster.broker.handlers[api]

    def answer(request: Any) -> Any:
        if not codes:
            return handle(request)
        before = copy.deepcopy(cluster.offsets)
        response = _with_code(copy.deepcopy(handle(request)), codes.pop(0))
        cluster.offsets = before
        return response

    cluster.broker.handlers = {**cluster.broker.handlers, api: answer}


def _with_code(found: Any, code: int) -> Any:
    if isinstance(found, list):
        for each in found:
            _with_code(each, code)
    elif attrs.has(type(found)):
        for field in attrs.fields(type(found)):
            _with_code(getattr(found, field.name), code)
        if hasattr(found, "error_code") and not isinstance(found, FetchResponse):  # that is of the session
            found.error_code = code
    return found


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds:  # trio's own checkpoints have 0
            slept.append(seconds)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(trio, "sleep", sleep)
    return slept


@pytest.mark.parametrize(("api", "call"), COORDINATORS + LEADERS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_retriable_error_ended_the_command(
    cluster: SmallCluster, pauses: list[float], api: type, call: Call
) -> None:
    """`consume --group` failed at once on NOT_COORDINATOR, while a broker took over from another one."""
    of_leader = (api, call) in LEADERS
    codes = sorted(WORTH_ANOTHER if of_leader else WORTH_ANOTHER - STALE_LEADER)
    refusing(cluster, api, left := list(codes))
    async with connect(cluster.address) as client:
        await call(client)
    assert left == []
    assert len(pauses) == len(codes)


@pytest.mark.parametrize(("api", "call"), COORDINATORS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_non_retriable_error_ends_the_call_at_once(
    cluster: SmallCluster, pauses: list[float], api: type, call: Call
) -> None:
    refusing(cluster, api, [error_codes.GROUP_AUTHORIZATION_FAILED] * 2)
    async with connect(cluster.address) as client:
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            await call(client)
    assert pauses == []


async def test_attempts_end(autojump_clock: trio.testing.MockClock) -> None:
    attempts, count = Attempts(), 0
    while await attempts.another():
        count += 1
    waited_seconds = trio.current_time() - autojump_clock.autojump_threshold
    assert RETRY_SECONDS - BACKOFF.longest_seconds <= waited_seconds <= RETRY_SECONDS
    assert 15 < count < 20


def test_only_codes_that_kafkas_clients_retry_are_worth_another_attempt() -> None:
    assert error_codes.RETRIABLE >= WORTH_ANOTHER
    maybe_done = {error_codes.REQUEST_TIMED_OUT, error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    assert not maybe_done & WORTH_ANOTHER
