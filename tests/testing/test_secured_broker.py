"""A broker with TLS, users and lists in a thread, as a client sees it. The client is in another trio loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from kafscale.client.admin import TopicToCreate, create_topic
from kafscale.client.client import connect
from kafscale.client.producer import Producer
from kafscale.config import Address, SecurityProtocol
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.login.security import client_security
from kafscale.testing.secured_broker import PASSWORD_MECHANISMS, SecuredBroker, secured_broker
from kafscale.wire.error_codes import SASL_AUTHENTICATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from kafscale.wire.records import Record

TOPIC = "orders"


@pytest.fixture
def broker() -> Iterator[SecuredBroker]:
    with secured_broker() as broker:
        broker.create_topic(TOPIC)
        broker.add_user("app")
        yield broker


async def send(settings: dict[str, str], value: bytes) -> None:
    """Send a record with these settings of a client. Raises KafkaError, BrokerUnavailable."""
    security = client_security({name: each for name, each in settings.items() if name != "bootstrap.servers"})
    with trio.fail_after(30):
        async with connect(Address.parse(settings["bootstrap.servers"]), security=security) as client:
            await Producer(client=client, topic=TOPIC).send([Record(key=None, value=value, timestamp_ms=1)])


async def refusal(settings: dict[str, str]) -> int:
    with pytest.raises(KafkaError) as caught:
        await send(settings, b"refused")
    return caught.value.code


def values(broker: SecuredBroker) -> list[bytes | None]:
    return [each.value for each in broker.records(TOPIC)]


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
async def test_a_user_can_log_in_and_do_only_allowed_operations(broker: SecuredBroker, mechanism: str) -> None:
    settings = broker.client_settings("app", mechanism=mechanism)
    assert await refusal(settings) == TOPIC_AUTHORIZATION_FAILED
    broker.allow("app", "write", topic="ord", prefixed=True)
    await send(settings, b"one")
    broker.deny("app", "write", topic="*")
    assert await refusal(settings) == TOPIC_AUTHORIZATION_FAILED
    broker.remove_acls("app")
    broker.allow("app", "all", topic=TOPIC)
    await send(settings, b"two")
    assert values(broker) == [b"one", b"two"]


async def test_the_admin_can_do_everything(broker: SecuredBroker) -> None:
    settings = broker.client_settings("admin")
    await send(settings, b"one")
    security = client_security({name: each for name, each in settings.items() if name != "bootstrap.servers"})
    async with connect(Address.parse(broker.bootstrap), security=security) as client:
        await create_topic(client, TopicToCreate(name="made", partition_count=1))
    assert broker.records("made") == []


async def test_passwords_change_and_users_go(broker: SecuredBroker) -> None:
    broker.allow("app", "write", topic=TOPIC)
    before = broker.client_settings("app")
    assert broker.add_user("app", "another") == "another"
    assert await refusal(before) == SASL_AUTHENTICATION_FAILED
    now = broker.client_settings("app")
    await send(now, b"one")
    broker.remove_user("app")
    assert await refusal(now) == SASL_AUTHENTICATION_FAILED
    with pytest.raises(ConfigError, match="there is no user 'app'"):
        broker.client_settings("app")


async def test_users_and_lists_outlast_restarts_and_crashes(broker: SecuredBroker) -> None:
    broker.allow("app", "write", topic=TOPIC)
    settings = broker.client_settings("app")
    for value, interrupt in [(b"one", broker.crash), (b"two", broker.restart), (b"three", broker.crash)]:
        await send(settings, value)
        interrupt()
    assert values(broker) == [b"one", b"two", b"three"]


async def test_clients_without_the_ca_or_without_tls_are_refused(broker: SecuredBroker) -> None:
    settings = broker.client_settings("admin")
    with pytest.raises(BrokerUnavailable, match="TLS handshake"):
        await send({name: each for name, each in settings.items() if name != "ssl.ca.location"}, b"x")
    with pytest.raises(BrokerUnavailable):
        await send({"bootstrap.servers": broker.bootstrap}, b"x")
    assert values(broker) == []


async def test_client_certificates_name_the_user_on_an_ssl_listener() -> None:
    with secured_broker(protocol="SSL", default_partitions=2) as broker:
        broker.create_topic(TOPIC)
        assert await refusal(broker.client_settings("app")) == TOPIC_AUTHORIZATION_FAILED
        broker.allow("app", "write", topic=TOPIC)
        await send(broker.client_settings("app"), b"one")
        await send(broker.client_settings("admin"), b"two")
        assert values(broker) == [b"one", b"two"]
        with pytest.raises(BrokerUnavailable):
            await send(login_of_nobody(broker), b"three")
        assert broker.settings.default_partitions_count == 2


def login_of_nobody(broker: SecuredBroker) -> dict[str, str]:
    """Settings of a client that trusts the broker and shows no certificate."""
    named = {"bootstrap.servers", "security.protocol", "ssl.ca.location"}
    return {name: each for name, each in broker.client_settings("nobody").items() if name in named}


async def test_a_login_without_tls() -> None:
    with secured_broker(protocol="SASL_PLAINTEXT") as broker:
        broker.create_topic(TOPIC)
        assert "ssl.ca.location" not in broker.client_settings("admin")
        await send(broker.client_settings("admin"), b"one")
        assert values(broker) == [b"one"]


def test_client_settings_have_the_proxy_address_and_temporary_files_are_removed() -> None:
    with secured_broker(authorizer="none") as broker:
        assert broker.protocol is SecurityProtocol.SASL_SSL
        assert broker.client_settings("admin")["bootstrap.servers"] == broker.bootstrap
        directory = broker.ca_file.parent
        assert directory.exists()
    assert not directory.exists()


@pytest.mark.parametrize(
    ("operations", "resource", "message"),
    [
        (["read"], {}, "give one resource, not none"),
        (["read"], {"topic": "a", "group": "b"}, "not topic, group"),
        (["read"], {"table": "a"}, "not table; allowed: topic"),
        (["alter"], {"cluster": "mine"}, "allowed: kafka-cluster"),
        (["reed"], {"topic": "a"}, "'reed' is not an operation; allowed: all, read"),
    ],
)
def test_invalid_acls_are_refused_with_a_reason(
    broker: SecuredBroker, operations: list[str], resource: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        broker.allow("app", *operations, **resource)


def test_invalid_mechanisms_and_protocols_are_refused(broker: SecuredBroker) -> None:
    with pytest.raises(ConfigError, match="'GSSAPI' is not a mechanism for passwords"):
        broker.client_settings("app", mechanism="GSSAPI")
    for protocol in ("PLAINTEXT", "TLS"):
        with pytest.raises(ConfigError, match="is not a secured protocol"), secured_broker(protocol=protocol):
            pass


def test_a_start_warns_of_a_private_key_readable_by_others(
    broker: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.restart()
    assert "may read" not in caplog.text
    (broker.ca_file.parent / "broker-key.pem").chmod(0o644)
    broker.restart()
    assert "broker-key.pem (0644)" in caplog.text
