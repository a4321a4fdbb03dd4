"""Unmodified clients on a listener with SASL: each mechanism, and what must not let anybody in."""

import asyncio
import ssl
import time
import warnings
from collections.abc import Callable
from functools import partial
from urllib.request import urlopen

import attrs
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafscale.config import SaslMechanism, SecurityProtocol
from tests.devtools.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.sasl import PASSWORD, SaslBroker, sasl_broker, sign, signing_key

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
SCRAM, OAUTH = "SCRAM-SHA-512", "OAUTHBEARER"
WRONG = "not the password"
QUICK = ("--connection-failed-authentication-delay", "10ms")
SESSION_MS = 1500
BOOTSTRAP_MS = 1500


@pytest.fixture(scope="module")
def broker():
    """One on which sessions last as long as connections."""
    with sasl_broker(*QUICK) as running:
        yield running


def alter(broker, *changes):
    """Over the listener without SASL."""
    admin = AdminClient({"bootstrap.servers": broker.process.bootstrap})
    for future in admin.alter_user_scram_credentials(list(changes)).values():
        future.result(DEADLINE_SECONDS)


def add(broker, user):
    """Have the client salt the password, with the least number of iterations."""
    for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        alter(broker, UserScramCredentialUpsertion(user, ScramCredentialInfo(each, 4096), PASSWORD.encode()))


def remove(broker, user):
    for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        alter(broker, UserScramCredentialDeletion(user, each))


# ---- each client, as its users write it ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Login:
    """Who logs in, and how; `token` makes a token each time that it is called."""

    broker: SaslBroker
    mechanism: str
    user: str = ""
    password: str = PASSWORD
    token: Callable[[], str] = sign
    protocol: SecurityProtocol = SecurityProtocol.SASL_PLAINTEXT

    @property
    def bootstrap(self):
        return self.broker.bootstrap(self.protocol)

    @property
    def ca_file(self):
        return str(self.broker.ca_file)


def confluent_config(login):
    config = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol.value,
        "ssl.ca.location": login.ca_file,
        "sasl.mechanism": login.mechanism,
    }
    if login.mechanism == OAUTH:
        return {**config, "oauth_cb": lambda _: (login.token(), time.time() + 300)}
    return {**config, "sasl.username": login.user, "sasl.password": login.password}


def confluent(login, topic):
    """Produce one record and consume it; return the error that the client tells, or None."""
    errors = []
    config = {**confluent_config(login), "error_cb": errors.append}
    producer = Producer({**config, "message.timeout.ms": 60_000, "linger.ms": 0})
    producer.produce(topic, b"confluent", on_delivery=lambda error, _: error and errors.append(error))
    poll_until(lambda: len(producer) == 0 or _refused(errors), lambda: producer.poll(0.05), what="delivered or refused")
    if refused := _refused(errors):
        producer.purge()
        return refused
    consumer = Consumer({**config, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
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


def python_config(login, tokens):
    config = {
        "bootstrap_servers": login.bootstrap,
        "security_protocol": login.protocol.value,
        "sasl_mechanism": login.mechanism,
        "ssl_context": ssl.create_default_context(cafile=login.ca_file),
    }
    if login.mechanism == OAUTH:
        return {**config, "sasl_oauth_token_provider": tokens}
    return {**config, "sasl_plain_username": login.user, "sasl_plain_password": login.password}


def kafka_python(login, topic):
    config = python_config(login, Tokens(login.token))
    try:
        producer = KafkaProducer(**config, bootstrap_timeout_ms=BOOTSTRAP_MS if login.password == WRONG else 60_000)
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


def aiokafka(login, topic):
    async def produce():
        producer = AIOKafkaProducer(**python_config(login, AioTokens(login.token)))
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


CLIENTS = (confluent, kafka_python, aiokafka)
FAULTS = [pytest.mark.faults]


def clients_and(values, *, by_default):
    """Every client with every value; what is not meant to be in the default run is in the long one of faults."""
    return [
        pytest.param(
            client, value, id=f"{client.__name__}-{value}", marks=[] if (client, value) in by_default else FAULTS
        )
        for client in CLIENTS
        for value in values
    ]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.__name__)
def test_every_client_with_tls(client, broker, name):
    add(broker, name)
    assert client(Login(broker=broker, mechanism=SCRAM, user=name, protocol=SecurityProtocol.SASL_SSL), name) is None


@pytest.mark.parametrize(
    ("client", "mechanism"),
    clients_and(MECHANISMS, by_default={*((confluent, each) for each in MECHANISMS), (aiokafka, OAUTH)}),
)
def test_every_client_by_every_mechanism(client, mechanism, broker, name):
    add(broker, name)
    token = partial(sign, {"sub": name})
    assert client(Login(broker=broker, mechanism=mechanism, user=name, token=token), name) is None


@pytest.mark.parametrize(
    ("client", "mechanism"), clients_and([SCRAM, "PLAIN"], by_default={(confluent, SCRAM), (confluent, "PLAIN")})
)
def test_a_wrong_password_and_an_unknown_user(client, mechanism, broker, name):
    """kafka-python and aiokafka try again, and tell in the end that they have no broker."""
    add(broker, name)
    failed_count = _logins(broker, mechanism).get("failed", 0)
    users = name, f"{name}-nobody"
    told = [client(Login(broker=broker, mechanism=mechanism, user=user, password=WRONG), name) for user in users]
    assert all(("uthentication" if client is confluent else "ootstrap") in each for each in told)
    assert _logins(broker, mechanism)["failed"] >= failed_count + 2


def test_a_token_that_has_expired(broker, name):
    login = Login(broker=broker, mechanism=OAUTH, token=partial(sign, lifetime_seconds=-60))
    assert "invalid_token" in confluent(login, name)


def test_a_token_of_somebody_else(broker, name):
    login = Login(broker=broker, mechanism=OAUTH, token=partial(sign, key=signing_key("EC", "of somebody else")))
    assert "invalid_token" in confluent(login, name)


# ---- sessions that end -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brief_broker():
    """One whose sessions are over soon."""
    with sasl_broker(*QUICK, "--connections-max-reauth", f"{SESSION_MS}ms") as running:
        yield running


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", pytest.param(OAUTH, marks=FAULTS)])
def test_new_logins_under_load_without_one_failed_produce(mechanism, brief_broker, name):
    """librdkafka logs in anew by itself before a session ends (KIP-368)."""
    broker = brief_broker
    add(broker, name)
    errors, delivered = [], []
    config = confluent_config(Login(broker=broker, mechanism=mechanism, user=name))
    producer = Producer({**config, "error_cb": errors.append, "linger.ms": 0, "retries": 0})

    def note(error, message):
        (errors if error else delivered).append(error or message.offset())

    until = time.monotonic() + 2 * SESSION_MS / 1000
    while time.monotonic() < until:
        producer.produce(name, b"x", on_delivery=note)
        producer.poll(0.005)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert errors == []
    assert sorted(delivered) == list(range(len(delivered)))
    logins = _logins(broker, mechanism)
    assert logins["succeeded"] >= 3
    assert "failed" not in logins
    assert "closing the connection" not in broker.process.log


@pytest.mark.faults
def test_a_user_who_is_removed_while_connected_is_out_when_the_session_ends(brief_broker, name):
    broker = brief_broker
    add(broker, name)
    errors = []
    config = confluent_config(Login(broker=broker, mechanism="SCRAM-SHA-256", user=name))
    producer = Producer({**config, "error_cb": errors.append})
    producer.produce(name, b"before")
    assert producer.flush(DEADLINE_SECONDS) == 0
    remove(broker, name)
    producer.produce(name, b"after")  # the session goes on until it has to be renewed
    poll_until(lambda: _refused(errors), lambda: producer.poll(0.05), what="a login that is refused")
    producer.purge()
    assert _logins(broker, "SCRAM-SHA-256")["failed"] >= 1


def _logins(broker, mechanism):
    with urlopen(f"http://{broker.process.admin}/metrics") as response:
        lines = response.read().decode().splitlines()
    prefix = f'kafscale_authentications_total{{mechanism="{mechanism}",outcome="'
    found = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return {line.partition('"')[0]: int(float(line.split()[-1])) for line in found}
