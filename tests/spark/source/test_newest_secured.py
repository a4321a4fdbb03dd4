"""`freshness=broker` on a broker with TLS, logins and access control lists; without a JVM.

It is a process, as its bucket must be one that readers beside it can open, which that of `secured_broker` is not.
"""

import pickle

import attrs
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.errors import ConfigError, KafkaError
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.testing.certificates import make_authority
from kafscale.wire import error_codes
from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.external.logins import (
    MECHANISMS,
    PLAIN,
    SCRAM,
    WITH_LISTS,
    Login,
    java_properties,
    login_of_somebody,
)
from tests.devtools.external.spark import flush, store_of
from tests.devtools.processes.sasl import PASSWORD, SaslBroker, sasl_broker

pytestmark = pytest.mark.timeout(300)

TOPIC, OTHER_TOPIC = "orders", "payments"


@pytest.fixture(scope="module")
def broker():
    """One value in a segment, one behind it."""
    quick = ("--connection-failed-authentication-delay", "10ms", "--durability", "wal", "--flush-interval", "1h")
    with sasl_broker(*quick, *WITH_LISTS) as running:
        plain = {"bootstrap.servers": running.process.bootstrap}
        admin = AdminClient(plain)
        for future in admin.create_topics([NewTopic(TOPIC, 1), NewTopic(OTHER_TOPIC, 1)]).values():
            future.result(DEADLINE_SECONDS)
        producer = Producer(plain)
        for value in (b"a", b"b"):
            producer.produce(TOPIC, value)
            assert producer.flush(DEADLINE_SECONDS) == 0
            if value == b"a":
                flush(running.process)
        yield running


def options_of(broker: SaslBroker, login: Login, tmp_path, **more: str) -> dict[str, str]:
    secured = {f"kafka.{name}": value for name, value in java_properties(login, tmp_path).items()}
    where = {"store": store_of(broker.process), "subscribe": TOPIC, "kafka.bootstrap.servers": login.bootstrap}
    return {**where, "freshness": "broker", **secured, **more}


def values(options: dict[str, str]) -> list[bytes]:
    """As Spark does: what a task needs goes to it pickled."""
    given = Given(options)
    chosen = ReadOptions.of(given)
    made = Planner.of(chosen)
    try:
        splits = made.batch(BatchOptions.of(given), QueryBounds())
    finally:
        made.close()
    there = Planner.of(pickle.loads(pickle.dumps(chosen)))
    try:
        read = there.reader(["value"]).read_all(pickle.loads(pickle.dumps(splits)))
        return [row["value"] for rows in read for row in rows.to_pylist()]
    finally:
        there.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_records_of_a_secured_broker_are_read_by_every_mechanism(mechanism, broker, tmp_path):
    login = login_of_somebody(broker, mechanism, TOPIC)
    assert values(options_of(broker, login, tmp_path)) == [b"a", b"b"]


def test_settings_of_a_file_secure_the_connections(broker, tmp_path):
    login = login_of_somebody(broker, SCRAM, TOPIC)
    file = tmp_path / "client.properties"
    file.write_text("\n".join(f"{name}={value}" for name, value in java_properties(login, tmp_path).items()))
    options = options_of(broker, login, tmp_path, kafkaConfigFile=str(file))
    bare = {name: value for name, value in options.items() if not name.startswith("kafka.s")}
    assert len(bare) < len(options)
    assert values(bare) == [b"a", b"b"]
    assert PASSWORD not in repr(ReadOptions.of(Given(bare)))


def test_unauthorized_topics_are_hidden_from_patterns_and_refused_by_name(broker, tmp_path):
    options = options_of(broker, login_of_somebody(broker, SCRAM, TOPIC), tmp_path)
    by_pattern = {name: value for name, value in options.items() if name != "subscribe"}
    assert values({**by_pattern, "subscribePattern": ".*"}) == [b"a", b"b"]
    with pytest.raises(KafkaError, match=OTHER_TOPIC) as caught:
        values({**options, "subscribe": OTHER_TOPIC})
    assert caught.value.code == error_codes.TOPIC_AUTHORIZATION_FAILED


def test_a_refused_login_fails_at_once_without_showing_the_password(broker, tmp_path):
    login = attrs.evolve(login_of_somebody(broker, PLAIN, TOPIC), password="wrong secret")
    with pytest.raises(KafkaError) as caught:
        values(options_of(broker, login, tmp_path))
    assert caught.value.code == error_codes.SASL_AUTHENTICATION_FAILED
    assert "wrong secret" not in str(caught.value)


def test_a_broker_of_an_untrusted_authority_fails_the_query(broker, tmp_path):
    login = login_of_somebody(broker, PLAIN, TOPIC)
    other = {"kafka.ssl.truststore.location": str(make_authority(tmp_path, "another").ca_file)}
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location have its authority"):
        values({**options_of(broker, login, tmp_path), **other})
