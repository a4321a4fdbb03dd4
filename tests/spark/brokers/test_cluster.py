"""Addresses as librdkafka takes them; what is asked again, and for how long."""

import pytest

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.spark.brokers.cluster import Cluster, parse_bootstrap
from kafscale.wire import error_codes

NOWHERE = Address("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [Address("a", 1)]),
        (" a:1 , b ,", [Address("a", 1), Address("b", 9092)]),
        ("PLAINTEXT://a:1", [Address("a", 1)]),
        ("[::1]:7,[::2]", [Address("::1", 7), Address("::2", 9092)]),
    ],
)
def test_bootstrap_servers(text, addresses):
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:99999", "a b:1"])
def test_malformed_bootstrap_servers_are_refused(text):
    with pytest.raises(ConfigError, match=r"^bootstrap\.servers"):
        parse_bootstrap(text)


def test_only_temporary_errors_are_retried():
    failures = [
        BrokerUnavailable("away"),
        KafkaError(error_codes.NOT_COORDINATOR),
        KafkaError(error_codes.INVALID_TXN_STATE),
    ]
    tried = []

    def attempt():
        tried.append(failures[len(tried)])
        raise tried[-1]

    with pytest.raises(KafkaError) as caught:
        Cluster(bootstrap=[NOWHERE]).patiently(attempt)
    assert caught.value.code == error_codes.INVALID_TXN_STATE
    assert len(tried) == 3


def test_a_broker_that_stays_away_is_given_up():
    cluster = Cluster(bootstrap=[NOWHERE, NOWHERE], retry_seconds=0.0)
    with pytest.raises(BrokerUnavailable, match=r"can't connect to 127\.0\.0\.1:1"):
        cluster.patiently(lambda: list(cluster.brokers()))
