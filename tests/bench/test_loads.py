"""The loads against a broker in this process, small: they must send what they say, and measure what they sent."""

from collections.abc import Iterator

import pytest

from bench.end_to_end import EndToEndLoad, run_end_to_end
from bench.points import TOPIC, Point
from bench.produce_load import ProduceLoad, run_produce
from kafscale.config import Address
from kafscale.testing.background_broker import BackgroundBroker, running_broker

SMALL = Point(batch_bytes=1024, in_flight=2, partitions=6)


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with running_broker() as broker:
        broker.create_topic(TOPIC, partitions=6)
        yield broker


def address_of(broker: BackgroundBroker) -> Address:
    return Address.parse(broker.bootstrap)


def test_connections_have_partitions_of_their_own(broker):
    load = ProduceLoad(address=address_of(broker), point=SMALL, seconds=30, count=30, connections=3)
    figures = run_produce(load)
    stored = broker.records(TOPIC)
    assert figures.requests == len(stored) == 30
    assert {each.partition for each in stored} == set(range(6))
    assert figures.seconds < 30


def test_a_rate_is_kept_and_latency_counts_from_when_a_request_was_due(broker):
    load = ProduceLoad(address=address_of(broker), point=SMALL, seconds=0.5, requests_per_second=100)
    figures = run_produce(load)
    assert 0 < figures.requests == len(broker.records(TOPIC)) <= 51  # fewer where the machine was busy
    assert figures.p50_ms > 0


def test_every_batch_is_seen_by_the_consumer(broker):
    load = EndToEndLoad(address=address_of(broker), point=SMALL, seconds=0.3, requests_per_second=100)
    figures = run_end_to_end(load)
    assert figures.requests == 30
    assert figures.p50_ms > 0


def test_a_refused_batch_raises_its_error_code(broker):
    too_many = Point(batch_bytes=1024, in_flight=9, partitions=9)
    with pytest.raises(RuntimeError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        run_produce(ProduceLoad(address=address_of(broker), point=too_many, seconds=5))
