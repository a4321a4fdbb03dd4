from __future__ import annotations

import attrs
import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from kafscale.client.groups import delete_group
from kafscale.config import Address
from kafscale.console import sampling
from kafscale.console.cluster import ClusterAccess
from kafscale.console.sampling import ClusterSamples, Sampling
from kafscale.login.security import PLAINTEXT
from kafscale.testing.background_broker import BackgroundBroker


@attrs.define
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def produce_and_commit(broker: BackgroundBroker, count: int, offset: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(count):
        producer.produce("orders", b"v")
    assert producer.flush(20.0) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def access_to(broker: BackgroundBroker) -> ClusterAccess:
    return ClusterAccess([Address.parse(broker.bootstrap)], PLAINTEXT)


async def test_a_cluster_is_sampled_and_gets_no_samples_while_it_is_gone(kafscale_broker: BackgroundBroker) -> None:
    kafscale_broker.create_topic("orders")
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 10, 4)
    clock, access = Clock(), access_to(kafscale_broker)
    cluster = ClusterSamples(access, samples_all=True, clock=clock)
    await cluster.sample()
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 50, 5)
    clock.now += 10
    await cluster.sample()
    kafscale_broker.stop()
    clock.now += 10
    await cluster.sample()
    assert cluster.samples.lags["billing"].last_hour(clock.now)[-3:] == [6.0, 55.0, None]
    assert cluster.samples.throughput.last_hour(clock.now)[-3:] == [None, 5.0, None]
    kafscale_broker.start()
    clock.now += 10
    await cluster.sample()
    assert cluster.samples.lags["billing"].latest(clock.now, 1) == 55.0
    await access.aclose()


async def test_groups_that_no_page_shows_are_sampled_for_as_long_as_they_exist(
    kafscale_broker: BackgroundBroker,
) -> None:
    kafscale_broker.create_topic("orders")
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 10, 4)
    clock, access = Clock(), access_to(kafscale_broker)
    cluster = ClusterSamples(access, samples_all=True, clock=clock)
    for _ in range(4):
        await cluster.sample()
        clock.now += 1800
    clock.now -= 1800
    assert [value for value in cluster.samples.lags["billing"].last_hour(clock.now) if value is not None] == [6.0] * 3
    await delete_group(await access.client(), "billing")
    clock.now += 10
    await cluster.sample()
    assert cluster.samples.lags == {}
    await access.aclose()


async def test_pages_that_look_at_the_same_time_share_an_answer(kafscale_broker: BackgroundBroker) -> None:
    kafscale_broker.create_topic("orders")
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 10, 4)
    clock, access = Clock(), access_to(kafscale_broker)
    cluster = ClusterSamples(access, samples_all=False, clock=clock)
    assert (await cluster.lags(["billing"]))["billing"].total == 6
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 1, 5)
    assert (await cluster.lags(["billing"]))["billing"].total == 6
    clock.now += 1
    assert (await cluster.lags(["billing"]))["billing"].total == 6
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 1, 11)
    clock.now += 1
    assert (await cluster.lags(["billing"]))["billing"].total == 1
    await access.aclose()


async def test_a_user_with_a_login_samples_only_groups_that_a_page_showed(kafscale_broker: BackgroundBroker) -> None:
    kafscale_broker.create_topic("orders")
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 10, 4)
    access = access_to(kafscale_broker)
    cluster = ClusterSamples(access, samples_all=False)
    await cluster.sample()
    assert cluster.samples.lags == {}
    await cluster.lags(["billing"])
    assert list(cluster.samples.lags) == ["billing"]
    await access.aclose()


def test_users_whose_samples_are_kept_are_bounded() -> None:
    address = [Address("127.0.0.1", 9)]
    kept = Sampling(ClusterAccess(address, PLAINTEXT), needs_login=True)
    first = ClusterAccess(address, PLAINTEXT)
    samples = kept.of(first)
    assert kept.of(first) is samples
    for _ in range(sampling.CLUSTERS_MAX_COUNT):
        kept.of(ClusterAccess(address, PLAINTEXT))
    assert kept.of(first) is not samples


async def test_the_task_samples_each_cluster_again_and_again(
    kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "STEP_SECONDS", 0.05)
    kafscale_broker.create_topic("orders")
    await trio.to_thread.run_sync(produce_and_commit, kafscale_broker, 10, 4)
    access = access_to(kafscale_broker)
    kept = Sampling(access, needs_login=False)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.run)
            while kept.of(access).samples.throughput.latest(kept.of(access).clock()) is None:
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    assert "billing" in kept.of(access).samples.lags
    await access.aclose()
