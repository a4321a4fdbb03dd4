"""Unmodified clients over TLS, with and without a certificate of their own, and the certificate replaced under load."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import attrs
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from kafscale.cli.main import run
from kafscale.testing.certificates import CertificateFiles, make_authority
from tests.devtools.processes import timed_loop
from tests.devtools.processes.tls import TlsBroker, tls_broker

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

DEADLINE_SECONDS = 60.0
TOKEN = "a token of tests"
_counter = itertools.count()


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def broker(token_file: Path) -> Iterator[TlsBroker]:
    options = ("--admin-ssl", "--admin-token-file", str(token_file))
    with tls_broker(*options) as running:
        yield running


@pytest.fixture(params=[False, True], ids=["without-certificate", "with-certificate"])
def shown(request: pytest.FixtureRequest, broker: TlsBroker) -> CertificateFiles | None:
    return broker.authority.issue("client") if request.param else None


@pytest.fixture
def topic() -> str:
    return f"tls-{next(_counter)}"


VALUES = [b"%d" % number * 100 for number in range(500)]


def test_librdkafka(broker: TlsBroker, shown: CertificateFiles | None, topic: str) -> None:
    producer = Producer(broker.librdkafka(shown))
    failures: list[Any] = []
    for value in VALUES:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert failures == []
    consumer = Consumer({**broker.librdkafka(shown), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(received) < len(VALUES) and time.monotonic() < deadline:
        received += [message.value() for message in consumer.consume(1000, 0.2)]
    consumer.close()
    assert received == VALUES


def test_kafka_python(broker: TlsBroker, shown: CertificateFiles | None, topic: str) -> None:
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(broker.authority.ca_file),
        "ssl_certfile": None if shown is None else str(shown.certificate_file),
        "ssl_keyfile": None if shown is None else str(shown.key_file),
    }
    producer = KafkaProducer(**settings)
    sent = [producer.send(topic, value) for value in VALUES]
    for each in sent:
        each.get(DEADLINE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_SECONDS * 1000
    )
    assert [message.value for message in itertools.islice(consumer, len(VALUES))] == VALUES
    consumer.close()


def test_aiokafka(broker: TlsBroker, shown: CertificateFiles | None, topic: str) -> None:
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": broker.certificate.client_context(broker.authority.ca_file, shown=shown),
    }

    async def produce_and_consume() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as producer:
            for each in [await producer.send(topic, value) for value in VALUES]:
                await each
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(produce_and_consume(), DEADLINE_SECONDS)) == VALUES


JAVA = """
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location={ca}
ssl.keystore.type=PEM
ssl.keystore.location={both}
"""
LIBRDKAFKA = """
security.protocol = ssl
ssl.ca.location = {ca}
ssl.certificate.location = {certificate}
ssl.key.location = {key}
ssl.key.password = of tests
client.id = of another program
"""
IN_LINES = """
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.certificates={ca_text}
ssl.keystore.type=PEM
ssl.keystore.certificate.chain={certificate_text}
ssl.keystore.key={key_text}
ssl.endpoint.identification.algorithm=
ssl.enabled.protocols=TLSv1.3
"""


def in_one_line(pem: Path) -> str:
    """Return the text of a file as a value of a file of settings, where lines go on behind a backslash."""
    return pem.read_text().strip().replace("\n", " \\\n")


@attrs.frozen
class Done:
    """What a command has returned and written."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def kafscale(
    broker: TlsBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    monkeypatch.setenv("KAFSCALE_BOOTSTRAP", broker.bootstrap)

    def run_command(*arguments: str) -> Done:
        capsys.readouterr()
        code = run(arguments)
        return Done(code, *capsys.readouterr())

    return run_command


@pytest.mark.parametrize("form", [JAVA, LIBRDKAFKA, IN_LINES], ids=["java", "librdkafka", "text"])
def test_our_own_commands(
    broker: TlsBroker,
    kafscale: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    topic: str,
    form: str,
) -> None:
    client = broker.authority.issue("command", password=b"of tests" if form is LIBRDKAFKA else None)
    both = tmp_path / "both.pem"
    both.write_text(client.key_file.read_text() + client.certificate_file.read_text())
    config = tmp_path / "client.properties"
    config.write_text(
        form.format(
            ca=broker.authority.ca_file,
            ca_text=in_one_line(broker.authority.ca_file),
            certificate_text=in_one_line(client.certificate_file),
            key_text=in_one_line(client.key_file),
            both=both,
            certificate=client.certificate_file,
            key=client.key_file,
        )
    )
    done = kafscale("topics", "create", topic, "--command-config", str(config))
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("KAFSCALE_COMMAND_CONFIG", str(config))
    done = kafscale("topics", "list", "--json")
    assert topic in [each["topic"] for each in json.loads(done.stdout)], done.stderr


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        (
            "",
            1,
            "is that a Kafka listener? Where it wants TLS, set security.protocol=SSL or SASL_SSL",
        ),
        (
            "security.protocol=SSL",
            1,
            "failed: its certificate is not valid here: self-signed certificate in certificate chain; does",
        ),
        ("security.protocol=TLS", 2, "--command-config {path}: security.protocol: 'TLS' is not known here; allowed: "),
        (
            "security.protocol=SSL\nssl.ca.location=none.pem",
            2,
            "ssl.ca.location: 'none.pem' can't be read (No such file",
        ),
        ("security.protocol=SSL\nssl.ca.pem=", 2, "ssl.ca.location: has no certificates of authorities; allowed: PEM"),
        ("security.protocol=SSL\nssl.truststore.location=a.jks", 2, "ssl.truststore.type: 'JKS' can't be read here"),
        ("security.protocol=SSL\nssl.provider=x", 2, "ssl.provider: is not known here; allowed: "),
        (
            "security.protocol=SSL\nssl.enabled.protocols=SSLv3",
            2,
            "ssl.enabled.protocols: 'SSLv3' is not known; allowed",
        ),
    ],
)
def test_a_wrong_security_setting_is_a_one_line_error(
    kafscale: Callable[..., Done], tmp_path: Path, lines: str, code: int, message: str
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(lines)
    done = kafscale("topics", "list", "--command-config", str(config))
    assert done.returncode == code
    assert message.format(path=config) in done.stderr
    assert done.stderr.count("\n") == 1


def error_of(settings: dict[str, str]) -> KafkaError:
    errors: list[KafkaError] = []
    client = AdminClient({**settings, "error_cb": errors.append, "log_level": 0})
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not errors and time.monotonic() < deadline:
        client.poll(0.05)
    return errors[0]


def test_a_client_that_trusts_another_authority_does_not_connect(broker: TlsBroker, tmp_path: Path) -> None:
    other = make_authority(tmp_path, "another")
    error = error_of({**broker.librdkafka(), "ssl.ca.location": str(other.ca_file)})
    assert "certificate verify failed" in error.str()


def test_a_client_without_tls_is_closed(broker: TlsBroker) -> None:
    error = error_of({"bootstrap.servers": broker.bootstrap})
    assert error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


def served_certificate(broker: TlsBroker) -> bytes:
    context = broker.certificate.client_context(broker.authority.ca_file)
    with socket.create_connection((broker.address.host, broker.address.port), DEADLINE_SECONDS) as tcp:
        with context.wrap_socket(tcp, server_hostname="localhost") as secured:
            return secured.getpeercert(binary_form=True) or b""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_certificate_is_replaced_under_load_without_a_failed_produce(broker: TlsBroker, topic: str) -> None:
    """Three times, on SIGHUP, between which new connections come; a key that is not its own is left, and is in the log.

    `tests/server/test_watched_files.py` has the reading of files that have changed.
    """
    failures: list[Any] = []
    producers = [Producer({**broker.librdkafka(), "linger.ms": 1, "message.timeout.ms": 30_000}) for _ in range(2)]

    def produce() -> None:
        for producer in producers:
            producer.produce(topic, bytes(200), on_delivery=lambda error, _: failures.append(error) if error else None)
            producer.poll(0)

    for _ in range(3):
        before = served_certificate(broker)
        stranger = broker.authority.issue("stranger")
        broker.certificate.key_file.write_bytes(stranger.key_file.read_bytes())
        logged = broker.process.log.count("is not the key of the certificate")
        os.kill(broker.process.pid, signal.SIGHUP)
        until(lambda logged=logged: produce() or broker.process.log.count("is not the key of the certificate") > logged)
        assert served_certificate(broker) == before
        broker.authority.issue("broker")
        os.kill(broker.process.pid, signal.SIGHUP)
        until(lambda before=before: produce() or served_certificate(broker) != before)
        until(lambda: "the certificate of --ssl-certificate-file was read again" in broker.process.log)
        producers.append(Producer({**broker.librdkafka(), "linger.ms": 1}))
    for producer in producers:
        assert producer.flush(DEADLINE_SECONDS) == 0
    assert failures == []


def test_a_certificate_that_is_replaced_is_shown_without_a_signal() -> None:
    with tls_broker(*timed_loop.fixed(ssl_reload_interval_seconds=0.1), program=timed_loop.PROGRAM) as broker:
        before = served_certificate(broker)
        broker.authority.issue("broker")
        until(lambda: served_certificate(broker) != before)


def admin_answer(broker: TlsBroker, path: str, token: str | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    context = broker.certificate.client_context(broker.authority.ca_file)
    request = Request(f"https://localhost:{broker.process.admin.port}{path}", headers=headers)
    try:
        with urlopen(request, context=context, timeout=DEADLINE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as exc:
        with exc:
            return exc.code, f"{exc.headers['WWW-Authenticate']} {exc.read().decode()}"


@pytest.mark.parametrize("token", [None, "", "a token", TOKEN + "x", TOKEN[:-1]])
def test_the_admin_server_wants_its_token_but_of_probes(broker: TlsBroker, token: str | None) -> None:
    assert admin_answer(broker, "/healthz", token)[0] == 200
    assert admin_answer(broker, "/readyz", token)[0] == 200
    for path in ("/metrics", "/flush", "/none"):
        status, text = admin_answer(broker, path, token)
        assert status == 401
        assert text.startswith("Bearer this needs the token of --admin-token-file")


def test_metrics_show_the_certificate_expiry_to_token_holders(broker: TlsBroker) -> None:
    status, text = admin_answer(broker, "/metrics", TOKEN)
    shown = re.findall(r"^kafscale_ssl_certificate_expiry_timestamp_seconds(?:{.*})? (\S+)$", text, re.MULTILINE)
    assert status == 200
    assert len(shown) == len(broker.process.broker_ids)
    assert [float(each) for each in shown] == [pytest.approx(time.time() + 86_400, abs=600)] * len(shown)


def test_flush_over_tls_with_a_token(broker: TlsBroker, kafscale: Callable[..., Done], token_file: Path) -> None:
    ways = ("--admin", str(broker.process.admin), "--admin-ca-file", str(broker.authority.ca_file))
    done = kafscale("flush", *ways, "--admin-token-file", str(token_file))
    assert (done.returncode, done.stdout[:7]) == (0, "flushed"), done.stderr
    done = kafscale("flush", *ways)
    assert done.returncode == 1
    assert "needs a token: give --admin-token-file" in done.stderr
    done = kafscale("flush", *ways[:2], "--admin-ssl")
    assert "the TLS handshake with" in done.stderr
    assert done.returncode == 1


def test_the_admin_server_speaks_no_plain_http(broker: TlsBroker) -> None:
    with pytest.raises(ConnectionError):
        urlopen(f"http://localhost:{broker.process.admin.port}/healthz", timeout=DEADLINE_SECONDS)
