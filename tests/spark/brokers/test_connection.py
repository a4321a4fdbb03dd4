"""Spark's own connections and its producer on a broker with TLS, SASL and lists, by the settings of Java's clients."""

from contextlib import closing

import attrs
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, ResourceType

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.login.security import client_security
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.producing.producer import ColumnProducer, prepare
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.producing.transaction import WriterTransaction
from kafscale.spark.transactions.decisions import Lead
from kafscale.testing.certificates import make_authority
from kafscale.wire import error_codes
from kafscale.wire.records import Record
from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.external.logins import (
    MECHANISMS,
    OAUTH,
    PLAIN,
    WITH_LISTS,
    allow,
    java_properties,
    login_of_somebody,
)
from tests.devtools.processes.sasl import sasl_broker, sign

SESSION_MS = 60_000
TRANSACTIONAL_IDS = (ResourceType.TRANSACTIONAL_ID,)


@pytest.fixture(scope="module")
def broker():
    quick = ("--connection-failed-authentication-delay", "10ms", "--connections-max-reauth", f"{SESSION_MS}ms")
    with sasl_broker(*quick, *WITH_LISTS) as running:
        yield running


@pytest.fixture
def name(request, broker):
    """A topic."""
    found = "".join(each if each.isalnum() else "-" for each in request.node.name)
    admin = AdminClient({"bootstrap.servers": broker.process.bootstrap})
    admin.create_topics([NewTopic(found, 1)])[found].result(DEADLINE_SECONDS)
    return found


def cluster_of(login, properties):
    security = client_security(properties)
    return closing(Cluster(bootstrap=[Address.parse(login.bootstrap)], security=security, retry_seconds=5.0))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_records_are_written_by_every_mechanism(mechanism, broker, name, tmp_path):
    login = login_of_somebody(broker, mechanism, name)
    allow(broker, login.user, name, kinds=TRANSACTIONAL_IDS)
    properties = java_properties(login, tmp_path)
    settings = ProducerSettings.of({**properties, "bootstrap.servers": login.bootstrap})
    with closing(ColumnProducer.of(settings)) as producer:
        producer.send(pa.RecordBatch.from_pylist([{"value": b"x"}]), name)
        producer.finish()
    with cluster_of(login, properties) as cluster:
        lead = Lead.take(cluster, name, 10_000)
        lead.write(name, 0, Record(value=b"y"), 0)
        lead.commit()
        with pytest.raises(KafkaError) as caught:
            Lead.take(cluster, f"{name}-of-somebody-else", 10_000)
        assert caught.value.code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_another_connection_is_opened_before_a_session_ends(broker, name, tmp_path, monkeypatch):
    login = login_of_somebody(broker, "SCRAM-SHA-256", name)
    with cluster_of(login, java_properties(login, tmp_path)) as cluster:
        assert cluster.partitions(name) == 1
        (first,) = cluster._connections.values()
        assert not first.is_over
        monkeypatch.setattr("kafscale.spark.brokers.cluster.time.monotonic", lambda: first._session_until)
        assert first.is_over
        assert cluster.partitions(name) == 1
        assert first not in cluster._connections.values()


@pytest.mark.parametrize("mechanism", [PLAIN, OAUTH])
def test_a_login_that_fails_is_not_tried_again(mechanism, broker, name, tmp_path):
    login = login_of_somebody(broker, mechanism, name)
    login = attrs.evolve(login, password="wrong secret", token=lambda: sign({"sub": name}, lifetime_seconds=-60))
    with cluster_of(login, java_properties(login, tmp_path)) as cluster:
        with pytest.raises(KafkaError) as caught:
            cluster.patiently(lambda: cluster.partitions(name))
    assert caught.value.code == error_codes.SASL_AUTHENTICATION_FAILED
    assert "wrong secret" not in str(caught.value)


@pytest.mark.parametrize("what", ["password", "authority"])
def test_a_task_that_no_broker_would_serve_fails_at_once(what, broker, name, tmp_path):
    login = login_of_somebody(broker, PLAIN, name)
    if what == "password":
        login = attrs.evolve(login, password="wrong secret")
    properties = java_properties(login, tmp_path)
    if what == "authority":
        properties["ssl.truststore.location"] = str(make_authority(tmp_path, "another").ca_file)
    settings = ProducerSettings.of({**properties, "bootstrap.servers": login.bootstrap})
    cluster = Cluster(bootstrap=settings.bootstrap, security=settings.security)
    transaction = WriterTransaction(cluster=cluster, transactional_id=name, timeout_ms=60_000)
    rows = pa.RecordBatch.from_pylist([{"value": b"x"}])
    with pytest.raises((KafkaError, ConfigError), match=r"SASL_AUTHENTICATION_FAILED|have its authority") as caught:
        prepare([rows], name, settings, transaction)
    assert "wrong secret" not in str(caught.value)


def test_a_broker_of_another_authority_is_not_tried_again(broker, name, tmp_path):
    login = login_of_somebody(broker, PLAIN, name)
    other = make_authority(tmp_path, "another")
    properties = {**java_properties(login, tmp_path), "ssl.truststore.location": str(other.ca_file)}
    with cluster_of(login, properties) as cluster:
        with pytest.raises(ConfigError, match=r"ssl\.ca\.location have its authority"):
            cluster.patiently(lambda: cluster.partitions(name))


def test_tls_to_a_plaintext_listener_is_explained_in_the_error(broker, tmp_path, name):
    login = login_of_somebody(broker, PLAIN, name)
    security = client_security(java_properties(login, tmp_path))
    plain = [Address.parse(broker.process.bootstrap)]
    with closing(Cluster(bootstrap=plain, security=security, retry_seconds=0.0)) as cluster:
        with pytest.raises(BrokerUnavailable, match="is that a listener with TLS"):
            cluster.partitions(name)
