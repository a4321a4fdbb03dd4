"""Unmodified clients on a listener with SASL: each mechanism, and what must not let anybody in."""

import asyncio
import time
import warnings
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafscale.config import SaslMechanism
from tests.devtools.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.process import broker_process
from tests.devtools.sasl import PASSWORD, sign, signing_key, write_key_set

with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.sasl.oauth import AbstractTokenProvider

# kafka-python leaves sockets of its own behind when a login fails
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MECHANISMS = [each.value for each in SaslMechanism]
OAUTH = "OAUTHBEARER"
WRONG = "not the password"
SESSION_MS = 1500
BOOTSTRAP_MS = 1500


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One with all mechanisms, on which sessions last as long as connections."""
    with sasl_broker(tmp_path_factory.mktemp("sasl")) as process:
        yield process


def sasl_broker(directory, *options):
    mechanisms = [option for each in MECHANISMS for option in ("--sasl-mechanisms", each)]
    url = write_key_set(directory / "keys.json", signing_key())
    return broker_process(
        *("--listen", "SASL_PLAINTEXT=127.0.0.1:0", "--sasl-oauthbearer-jwks-endpoint-url", url),
        *("--connection-failed-authentication-delay", "10ms", "--sasl-oauthbearer-clock-skew", "0", *mechanisms),
        *options,
    )


def alter(broker, *changes):
    """Over the listener without SASL."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.alter_user_scram_credentials(list(changes)).values():
        future.result(DEADLINE_SECONDS)


def add(broker, user, *mechanisms, password=PASSWORD):
    """Have clients salt the password, with the least number of iterations."""
    for each in mechanisms or (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        alter(broker, UserScramCredentialUpsertion(user, ScramCredentialInfo(each, 4096), password.encode()))


def remove(broker, user):
    for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        alter(broker, UserScramCredentialDeletion(user, each))


# ---- each client, as its users write it ------------------------------------------------------------------------------


def confluent_config(broker, mechanism, user, password, token):
    config = {
        "bootstrap.servers": broker.further_listeners[0],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == OAUTH:
        return {**config, "oauth_cb": lambda _: (token(), time.time() + 300)}
    return {**config, "sasl.username": user, "sasl.password": password}


def confluent(broker, topic, mechanism, user, password=PASSWORD, token=None):
    """Produce one record and consume it; return the error that the client tells, or None."""
    errors = []
    config = confluent_config(broker, mechanism, user, password, token) | {"error_cb": errors.append}
    producer = Producer({**config, "message.timeout.ms": 60_000})
    producer.produce(topic, b"confluent", on_delivery=lambda error, _: error and errors.append(error))
    poll_until(lambda: len(producer) == 0 or _refused(errors), lambda: producer.poll(0.05), what="delivered or refused")
    if refused := _refused(errors):
        producer.purge()
        return refused
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    assert message.value() == b"confluent"
    return None


def _refused(errors):
    return next((each.str() for each in errors if each.code() == KafkaError._AUTHENTICATION), None)


class Tokens(AbstractTokenProvider):
    def __init__(self, token=None):
        super().__init__()
        self._token = token

    def token(self):
        return self._token()


class AioTokens(AioTokenProvider):
    def __init__(self, token):
        self._token = token

    async def token(self):
        return self._token()


def python_config(broker, mechanism, user, password, tokens):
    config = {
        "bootstrap_servers": broker.further_listeners[0],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == OAUTH:
        return {**config, "sasl_oauth_token_provider": tokens}
    return {**config, "sasl_plain_username": user, "sasl_plain_password": password}


def kafka_python(broker, topic, mechanism, user, password=PASSWORD, token=None):
    config = python_config(broker, mechanism, user, password, Tokens(token))
    try:
        producer = KafkaProducer(**config, bootstrap_timeout_ms=BOOTSTRAP_MS if token is None else 60_000)
    except KafkaPythonError as exc:
        return str(exc)
    try:
        producer.send(topic, b"kafka-python").get(DEADLINE_SECONDS)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **config)
    assert next(consumer).value == b"kafka-python"
    consumer.close()
    return None


def aiokafka(broker, topic, mechanism, user, password=PASSWORD, token=None):
    async def produce():
        producer = AIOKafkaProducer(**python_config(broker, mechanism, user, password, AioTokens(token)))
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"aiokafka")
        finally:
            await producer.stop()

    try:
        asyncio.run(produce())
    except AiokafkaError as exc:
        return str(exc)
    return None


CLIENTS = pytest.mark.parametrize("client", [confluent, kafka_python, aiokafka], ids=lambda each: each.__name__)


@CLIENTS
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_client_by_every_mechanism(mechanism, client, broker, name):
    add(broker, name)
    assert client(broker, name, mechanism, name, token=lambda: sign({"sub": name})) is None


@CLIENTS
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_wrong_password_and_an_unknown_user(mechanism, client, broker, name):
    """kafka-python and aiokafka try again, and tell in the end that they have no broker."""
    add(broker, name)
    failed_count = _logins(broker, mechanism).get("failed", 0)
    told = client(broker, name, mechanism, name, password=WRONG), client(broker, name, mechanism, f"{name}-nobody")
    assert all(("uthentication" if client is confluent else "ootstrap") in each for each in told)
    assert _logins(broker, mechanism)["failed"] >= failed_count + 2


def test_a_token_that_has_expired(broker, name):
    assert "invalid_token" in confluent(broker, name, OAUTH, name, token=lambda: sign(lifetime_seconds=-60))


def test_a_token_of_somebody_else(broker, name):
    token = sign(key=signing_key("EC", "of somebody else"))
    assert "invalid_token" in confluent(broker, name, OAUTH, name, token=lambda: token)


# ---- sessions that end -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brief_broker(tmp_path_factory):
    """One whose sessions are over soon."""
    directory = tmp_path_factory.mktemp("brief")
    with sasl_broker(directory, "--connections-max-reauth", f"{SESSION_MS}ms") as process:
        yield process


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", OAUTH])
def test_new_logins_under_load_without_one_failed_produce(mechanism, brief_broker, name):
    """librdkafka logs in anew by itself before a session ends (KIP-368)."""
    broker = brief_broker
    add(broker, "alice")
    errors, delivered = [], []
    config = confluent_config(broker, mechanism, "alice", PASSWORD, lambda: sign(lifetime_seconds=60))
    producer = Producer({**config, "error_cb": errors.append, "linger.ms": 0, "retries": 0})

    def note(error, message):
        (errors if error else delivered).append(error or message.offset())

    until = time.monotonic() + 2.5 * SESSION_MS / 1000
    while time.monotonic() < until:
        producer.produce(name, b"x", on_delivery=note)
        producer.poll(0.005)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert errors == []
    assert sorted(delivered) == list(range(len(delivered)))
    logins = _logins(broker, mechanism)
    assert logins["succeeded"] >= 3
    assert "failed" not in logins
    assert "closing the connection" not in broker.log


def test_a_user_who_is_removed_while_connected_is_out_when_the_session_ends(brief_broker, name):
    broker = brief_broker
    add(broker, name)
    errors = []
    config = confluent_config(broker, "SCRAM-SHA-256", name, PASSWORD, None)
    producer = Producer({**config, "error_cb": errors.append})
    producer.produce(name, b"before")
    assert producer.flush(DEADLINE_SECONDS) == 0
    remove(broker, name)
    producer.produce(name, b"after")  # the session goes on until it has to be renewed
    poll_until(lambda: _refused(errors), lambda: producer.poll(0.05), what="a login that is refused")
    producer.purge()
    assert _logins(broker, "SCRAM-SHA-256")["failed"] >= 1


def _logins(broker, mechanism):
    with urlopen(f"http://{broker.admin}/metrics") as response:
        lines = response.read().decode().splitlines()
    prefix = f'kafscale_authentications_total{{mechanism="{mechanism}",outcome="'
    found = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return {line.partition('"')[0]: int(float(line.split()[-1])) for line in found}
