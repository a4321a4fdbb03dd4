"""Positions and records."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from kafscale.client import Consumer, connect
from kafscale.client.client import Client
from kafscale.client.retrying import BACKOFF
from kafscale.errors import CorruptBatch
from kafscale.wire.batch_header import CONTROL
from kafscale.wire.error_codes import NONE, NOT_LEADER_OR_FOLLOWER
from kafscale.wire.messages.records import FetchRequest, FetchResponse
from kafscale.wire.records import Record, build_batch
from tests.client.small_cluster import SmallCluster


@pytest.fixture
async def cluster() -> AsyncIterator[SmallCluster]:
    found = SmallCluster()
    async with found.broker.listening() as found.address:
        yield found


@pytest.fixture
async def client(cluster: SmallCluster) -> AsyncIterator[Client]:
    async with connect(cluster.address) as connected:
        yield connected


def batch(*values: bytes, attributes: int = 0) -> bytearray:
    return build_batch([Record(value=value) for value in values], attributes=attributes)


async def values(consumer: Consumer) -> list[tuple[int, int, bytes | None]]:
    return [(each.partition, each.record.offset, each.record.value) for each in await consumer.poll()]


async def test_records_before_the_position_in_a_batch_are_left_out(cluster: SmallCluster, client: Client) -> None:
    cluster.create("t").logs[0].append(batch(b"0", b"1", b"2"))
    consumer = Consumer(client=client, topic="t", positions={0: 1})
    assert await values(consumer) == [(0, 1, b"1"), (0, 2, b"2")]
    assert (consumer.positions, consumer.ends) == ({0: 3}, {0: 3})
    assert await values(consumer) == []


async def test_several_partitions_are_read_in_one_poll(cluster: SmallCluster, client: Client) -> None:
    for number, log in enumerate(cluster.create("t", 3).logs):
        log.append(batch(b"%d" % number))
    consumer = Consumer(client=client, topic="t", positions={0: 0, 2: 0})
    assert await values(consumer) == [(0, 0, b"0"), (2, 0, b"2")]
    assert len([each for each in cluster.broker.requests if isinstance(each, FetchRequest)]) == 1


async def test_control_batches_are_stepped_over(cluster: SmallCluster, client: Client) -> None:
    log = cluster.create("t").logs[0]
    log.append(batch(b"marker", attributes=CONTROL))
    log.append(batch(b"seen"))
    assert await values(Consumer(client=client, topic="t", positions={0: 0})) == [(0, 1, b"seen")]


async def test_a_batch_that_is_cut_off_at_the_end_is_read_next_time(cluster: SmallCluster, client: Client) -> None:
    log = cluster.create("t").logs[0]
    log.append(batch(b"a"))
    log.append(batch(b"b"))
    whole = log.batches[1]
    log.batches[1] = whole[:-1]
    consumer = Consumer(client=client, topic="t", positions={0: 0})
    assert await values(consumer) == [(0, 0, b"a")]
    log.batches[1] = whole
    assert await values(consumer) == [(0, 1, b"b")]


async def test_the_consumer_backs_off_before_asking_a_moved_leader_again(
    cluster: SmallCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("t").logs[0].append(batch(b"a"))
    codes, pauses, handle = [NOT_LEADER_OR_FOLLOWER, NONE], list[float](), cluster.broker.handlers[FetchRequest]

    def answer(request: FetchRequest) -> FetchResponse:
        response = handle(request)
        response.responses[0].partitions[0].error_code = codes.pop(0)
        return response

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await trio.lowlevel.checkpoint()

    cluster.broker.handlers = {**cluster.broker.handlers, FetchRequest: answer}
    monkeypatch.setattr(trio, "sleep", pause)
    consumer = Consumer(client=client, topic="t", positions={0: 0})
    assert [await values(consumer) for _ in range(2)] == [[], [(0, 0, b"a")]]
    assert pauses == [BACKOFF.first_seconds]


async def test_a_batch_with_a_length_that_none_has_is_an_error(cluster: SmallCluster, client: Client) -> None:
    log = cluster.create("t").logs[0]
    log.append(batch(b"a"))
    log.batches[0][8:12] = bytes(4)
    with pytest.raises(CorruptBatch, match="length of 12 bytes"):
        await Consumer(client=client, topic="t", positions={0: 0}).poll()
