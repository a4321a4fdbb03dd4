"""Unmodified clients on a listener with SASL: each mechanism, and what must not let anybody in."""

import gc
import re
import shutil
import time
from collections import Counter
from functools import partial
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # which it has, and does not list
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafscale.config import SecurityProtocol
from kafscale.testing.certificates import make_authority
from tests.devtools.external.clients import DEADLINE_SECONDS, poll_until
from tests.devtools.external.logins import (
    MECHANISMS,
    MTLS,
    OAUTH,
    PLAIN,
    SCRAM,
    WITH_LISTS,
    WRONG,
    Login,
    add,
    aiokafka,
    allow,
    confluent,
    confluent_config,
    disallow,
    franz_go,
    kafka_python,
    kcat,
    kcat_does_scram,
    login_of_somebody,
    refused,
    remove,
)
from tests.devtools.processes.sasl import PASSWORD, sasl_broker, sign, signing_key

# kafka-python leaves sockets open when a login fails
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

QUICK = ("--connection-failed-authentication-delay", "10ms")
SESSION_MS = 1500


@pytest.fixture(scope="module", autouse=True)
def free_sockets():
    """Free the sockets of kafka-python while their warnings are ignored, not in the setup of the next file."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def broker():
    """One on which sessions last as long as connections."""
    with sasl_broker(*QUICK, *WITH_LISTS) as running:
        yield running


# ---- each client by each mechanism -----------------------------------------------------------------------------------

GO = [
    pytest.mark.go,
    pytest.mark.timeout(1200),  # the first test may wait for downloads
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not on the PATH"),
]
KCAT = [pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")]
CLIENTS = {confluent: [], kafka_python: [], aiokafka: [], kcat: KCAT, franz_go: GO}
FAULTS = [pytest.mark.faults]


def clients_and(values, *, by_default):
    """Every client with every value; what is not meant to be in the default run is in the long one of faults."""

    def marks(client, value):
        return CLIENTS[client] + ([] if client is franz_go or (client, value) in by_default else FAULTS)

    return [
        pytest.param(client, value, id=f"{client.__name__}-{value}", marks=marks(client, value))
        for client in CLIENTS
        for value in values
    ]


def clients_with_tokens():
    """Those that can be given one, which kcat can't."""
    return [each for each in clients_and([OAUTH], by_default={(confluent, OAUTH)}) if each.values[0] is not kcat]


@pytest.mark.parametrize(
    ("client", "mechanism"),
    clients_and(MECHANISMS, by_default={*((confluent, each) for each in MECHANISMS), (aiokafka, OAUTH), (kcat, PLAIN)}),
)
def test_every_client_by_every_mechanism_over_tls(client, mechanism, broker, name):
    """That the lists let it is the proof that it is known by its name."""
    told = client(login_of_somebody(broker, mechanism, name), name)
    if client is not kcat or mechanism in ("PLAIN", MTLS) or (mechanism != OAUTH and kcat_does_scram()):
        assert told is None
    else:  # of tokens it has those alone that nobody has signed
        assert "uthentication fail" in told


@pytest.mark.parametrize(("client", "mechanism"), clients_and([PLAIN], by_default={(kafka_python, PLAIN)}))
def test_every_client_without_tls(client, mechanism, broker, name):
    assert client(login_of_somebody(broker, mechanism, name, SecurityProtocol.SASL_PLAINTEXT), name) is None


@pytest.mark.parametrize(
    ("client", "mechanism"), clients_and([PLAIN, MTLS], by_default={(confluent, PLAIN), (confluent, MTLS)})
)
def test_a_user_without_an_acl_is_refused(client, mechanism, broker, name):
    login = login_of_somebody(broker, mechanism, f"{name}-of-its-own")
    allow(broker, "somebody-else", name)
    admin = AdminClient({"bootstrap.servers": broker.process.bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(DEADLINE_SECONDS)
    assert "uthori" in client(login, name)


@pytest.mark.parametrize(
    ("client", "mechanism"), clients_and([SCRAM, PLAIN], by_default={(confluent, SCRAM), (confluent, PLAIN)})
)
def test_a_wrong_password_and_an_unknown_user(client, mechanism, broker, name):
    """kafka-python and aiokafka try again, and tell in the end that they have no broker."""
    add(broker, name)
    failed_count = _logins(broker, mechanism).get("failed", 0)
    users = name, f"{name}-nobody"
    told = [client(Login(broker=broker, mechanism=mechanism, user=user, password=WRONG), name) for user in users]
    assert all(("ootstrap" if client in (kafka_python, aiokafka) else "uthentication") in each for each in told)
    assert _logins(broker, mechanism)["failed"] >= failed_count + 2


def test_a_scram_user_with_a_one_byte_salt_can_log_in(broker, name):
    login = login_of_somebody(broker, "SCRAM-SHA-256", name)
    admin = AdminClient({"bootstrap.servers": broker.process.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    brought = UserScramCredentialUpsertion(login.user, info, PASSWORD.encode(), b"s")
    admin.alter_user_scram_credentials([brought])[login.user].result(DEADLINE_SECONDS)
    broker.process.settle()
    assert confluent(login, name) is None


def test_a_connected_user_loses_access_when_rights_are_revoked(broker, name):
    errors = []
    login = login_of_somebody(broker, SCRAM, name)
    producer = Producer({**confluent_config(login), "linger.ms": 0})

    def produce():
        producer.produce(name, b"x", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_SECONDS) == 0

    produce()
    assert errors == [None]
    disallow(broker, login.user)
    produce()
    assert errors[-1].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(("client", "mechanism"), clients_with_tokens())
@pytest.mark.parametrize(
    "token",
    [partial(sign, lifetime_seconds=-60), partial(sign, key=signing_key("EC", "of somebody else"))],
    ids=["expired", "of somebody else"],
)
def test_a_token_that_is_not_good(token, client, mechanism, broker, name):
    let_in_count = _logins(broker, mechanism)["succeeded"]
    told = client(Login(broker=broker, mechanism=mechanism, token=token, password=WRONG), name)
    assert {confluent: "invalid_token", franz_go: "oauth"}.get(client, "ootstrap") in told
    assert _logins(broker, mechanism)["succeeded"] == let_in_count


@pytest.mark.parametrize(("client", "mechanism"), clients_and([PLAIN], by_default={(confluent, PLAIN)}))
def test_no_password_is_sent_to_a_broker_of_an_untrusted_authority(client, mechanism, broker, name, tmp_path):
    add(broker, name)
    tried = _logins(broker, mechanism)
    other = make_authority(tmp_path, "another").ca_file
    login = Login(broker=broker, mechanism=mechanism, user=name, protocol=SecurityProtocol.SASL_SSL, trusted=other)
    told = client(login, name)
    assert ("ootstrap" if client in (kafka_python, aiokafka) else "ertificate") in told
    assert _logins(broker, mechanism) == tried


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
def test_a_removed_user_is_refused_at_reauthentication(brief_broker, name):
    broker = brief_broker
    add(broker, name)
    errors = []
    config = confluent_config(Login(broker=broker, mechanism="SCRAM-SHA-256", user=name))
    producer = Producer({**config, "error_cb": errors.append})
    producer.produce(name, b"before")
    assert producer.flush(DEADLINE_SECONDS) == 0
    remove(broker, name)
    producer.produce(name, b"after")  # the session goes on until it has to be renewed
    poll_until(lambda: refused(errors), lambda: producer.poll(0.05), what="a login that is refused")
    producer.purge()
    assert _logins(broker, "SCRAM-SHA-256")["failed"] >= 1


def _logins(broker, mechanism):
    with urlopen(f"http://{broker.process.admin}/metrics") as response:
        text = response.read().decode()
    sample = rf'^kafscale_authentications_total{{.*mechanism="{mechanism}",outcome="(\w+)"}} (\S+)$'
    counts = Counter()
    for outcome, count in re.findall(sample, text, re.MULTILINE):  # of each broker
        counts[outcome] += int(float(count))
    return counts
