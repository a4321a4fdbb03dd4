"""Loads over TLS and with SASL: the generators against a broker of ours, the settings of others, targets and page."""

import socket
import ssl
import threading
from collections.abc import Iterator

import attrs
import pytest
from click.testing import CliRunner

from bench.brokers import OwnBroker, RunningBroker
from bench.consume import FetchPoint, fill
from bench.fetch_load import run_fetch
from bench.figures import Figures, Result
from bench.peers import __main__ as command
from bench.peers import startables
from bench.peers.comparison import comparison
from bench.peers.journal import Journal
from bench.peers.kafka import DEFAULT, KafkaBroker, listener_settings
from bench.peers.librdkafka import LibrdkafkaLoad, run_librdkafka
from bench.peers.names import KAFKA_DEFAULT, KAFKA_DURABLE, KAFKA_ON_MEMORY, OWN, OWN_ON_MEMORY
from bench.peers.plan import pairs_of
from bench.peers.startables import secured_startables
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce
from bench.runner import Runner
from bench.secured import sasl_ssl as settings
from bench.secured import sockets
from bench.secured.sasl_ssl import SaslSsl, sasl_ssl
from bench.secured.sockets import NonBlockingTls, connect
from kafscale.errors import KafkaError
from kafscale.login.properties import read_properties
from kafscale.login.security import client_security
from kafscale.testing.certificates import CertificateFiles
from tests.bench.test_peers import OPTIONS, InlineRunner

SMALL = Point(batch_bytes=1024, in_flight=4, partitions=2)


@pytest.fixture(scope="module")
def security() -> Iterator[SaslSsl]:
    with sasl_ssl() as made:
        yield made


@pytest.fixture(scope="module")
def broker(security: SaslSsl) -> Iterator[RunningBroker]:
    with OwnBroker(security=security).running() as running:
        yield running


# ---- loads ----------------------------------------------------------------------------------------------------------


def test_our_generators_produce_and_fetch_over_tls(broker):
    check_generators(broker)


def check_generators(broker: RunningBroker) -> None:
    """However long that takes: a JVM that has just begun encrypts slowly, and more so on a busy machine."""
    broker.create_topic(SMALL.partitions)
    load = ProduceLoad(address=broker.address, security=broker.security, point=SMALL, seconds=60, count=50)
    assert run_produce(load).requests == 50
    broker.create_topic(2)
    point = FetchPoint.parse("tail/16KiB/2")
    filled = fill(InlineRunner(), broker, point, data_bytes=4 << 20)
    tries = (run_fetch(attrs.evolve(filled, seconds=seconds)) for seconds in (0.2, 5, 20, 60))
    figures = next(each for each in tries if each.requests > 2)
    assert figures.size_bytes > figures.requests * filled.batch_bytes  # so a response is of many records of TLS
    broker.remove_topic()


def test_librdkafka_produces_over_tls(broker):
    broker.create_topic(1)
    load = LibrdkafkaLoad(address=broker.address, security=broker.security, record_bytes=100, seconds=0.1)
    assert run_librdkafka(load).requests > 0


def test_a_load_process_receives_the_security_settings(broker):
    broker.create_topic(SMALL.partitions)
    runner = Runner()
    load = ProduceLoad(address=broker.address, security=broker.security, point=SMALL, seconds=60, count=4)
    assert runner.send(run_produce, load).requests == 4
    runner.close()


def test_another_cipher_is_not_compared(broker, monkeypatch):
    monkeypatch.setattr(sockets, "CIPHER", "TLS_CHACHA20_POLY1305_SHA256")
    with pytest.raises(RuntimeError, match="not on TLS_CHACHA20"):
        connect(broker.address, broker.security)


def test_a_wrong_password_is_refused(broker, monkeypatch):
    monkeypatch.setattr(settings, "PASSWORD", "wrong")
    with pytest.raises(KafkaError, match="login as bench by SCRAM-SHA-512"):
        connect(broker.address, broker.security)


# ---- sockets --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(security: SaslSsl) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """One that does not block, and its peer, which does."""
    certificate = CertificateFiles(certificate_file=security.certificate_file, key_file=security.key_file)
    here, there = socket.socketpair()
    context = certificate.client_context(security.ca_file)
    context.sslsocket_class = NonBlockingTls
    accepted: list[ssl.SSLSocket] = []
    accept = threading.Thread(
        target=lambda: accepted.append(certificate.server_context().wrap_socket(there, server_side=True))
    )
    accept.start()
    secured = context.wrap_socket(here, server_hostname="localhost")
    accept.join()
    secured.setblocking(False)
    with secured, accepted[0] as peer:
        yield secured, peer


def fill_up(here: ssl.SSLSocket) -> None:
    while here.send(bytes(1 << 16)):
        pass


def test_tls_sockets_raise_blocking_io_error_like_plain_sockets(pair):
    here, _ = pair
    with pytest.raises(BlockingIOError):
        here.recv(1 << 16)
    with pytest.raises(BlockingIOError):
        here.recv_into(memoryview(bytearray(10)))
    with pytest.raises(BlockingIOError):
        fill_up(here)


def test_recv_into_returns_all_buffered_tls_records_and_then_the_end(pair):
    here, peer = pair
    for number in range(3):
        peer.sendall(bytes([number]) * 1000)
    peer.close()
    buffer = memoryview(bytearray(5000))
    assert here.recv_into(buffer[:1500]) == 1500  # in the middle of a record
    assert here.recv_into(buffer[1500:]) == 1500
    assert bytes(buffer[:3000]) == b"".join(bytes([number]) * 1000 for number in range(3))
    assert here.recv_into(buffer) == 0


# ---- settings -------------------------------------------------------------------------------------------------------


def test_java_properties_mean_the_same_as_our_settings(security):
    properties = read_properties(security.properties_file)
    assert properties == security.properties
    assert client_security(properties).sasl == security.client().sasl


def test_kafka_listens_with_tls_only_when_secured(security):
    assert listener_settings(1, 2, None) == {
        "listeners": "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    secured = listener_settings(1, 2, security)
    assert secured["listeners"] == "SASL_SSL://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert secured["ssl.keystore.location"] == str(security.keystore_file)


@pytest.mark.java
@pytest.mark.timeout(600)  # the first test may wait for Maven
def test_our_generators_log_in_at_kafka(security):
    with KafkaBroker(KAFKA_DEFAULT, DEFAULT, security=security).running() as running:
        check_generators(running)


# ---- targets and page -----------------------------------------------------------------------------------------------


def test_as_much_as_both_kinds_of_kafka_is_wanted():
    compared = comparison(is_secured=True)
    assert {target.factor for target in compared.targets} == {1}
    names = {load.name for load in compared.loads}
    assert {load for load, _ in pairs_of(compared.targets, compared.loads)} == names
    for name in ("produce 1KiB/64/1", "produce 960KiB/5/1", "java article"):
        beside = {target.peer for target in compared.targets if target.load == name and target.broker == OWN}
        assert beside == {KAFKA_DEFAULT, KAFKA_DURABLE}
    for name in ("fetch backlog/16KiB/16", "java consume tail"):
        beside = {target.peer for target in compared.targets if target.load == name and target.broker == OWN}
        assert beside == {KAFKA_DEFAULT}


def test_brokers_with_files_in_memory_are_compared_only_with_each_other():
    pairs = {(target.broker, target.peer) for target in comparison(is_secured=True).targets}
    assert {pair for pair in pairs if {OWN_ON_MEMORY, KAFKA_ON_MEMORY} & {*pair}} == {(OWN_ON_MEMORY, KAFKA_ON_MEMORY)}


def test_in_memory_brokers_differ_only_in_their_name_and_directory(security, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(startables, "MEMORY_FILES", tmp_path)
    brokers = {secured_startable.name: secured_startable for secured_startable in secured_startables(OPTIONS, security)}
    for name, other in ((OWN_ON_MEMORY, OWN), (KAFKA_ON_MEMORY, KAFKA_DEFAULT)):
        assert brokers[name] == attrs.evolve(brokers[other], name=name, directory=tmp_path)
    assert "left out" not in capsys.readouterr().err
    monkeypatch.setattr(startables, "MEMORY_FILES", tmp_path / "none")
    assert {*brokers} - {secured_startable.name for secured_startable in secured_startables(OPTIONS, security)} == {
        OWN_ON_MEMORY,
        KAFKA_ON_MEMORY,
    }
    assert f"{OWN_ON_MEMORY} is left out" in capsys.readouterr().err


def test_a_tls_run_has_a_separate_journal_and_page(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LOCAL_RESULTS", tmp_path)
    (tmp_path / "peers.json").write_text("of a run without TLS")
    journal = Journal.begin(tmp_path / "tls.json")
    for broker, seconds in ((OWN, 2.0), (KAFKA_DEFAULT, 1.0)):
        figures = Figures.of([0.001], seconds=seconds, size_bytes=1 << 20, client_cpu_seconds=0.1)
        journal.add(
            Result(broker=broker, point="fetch tail/16KiB/1", round=0, figures=figures, cpu_seconds=1, rss_mib=1,
                   syncs=1, puts=1, gets=1)
        )  # fmt: skip
    made = CliRunner().invoke(command.main, ["--tls", "--page"])
    assert made.exit_code == 0, made.output
    row = "| fetch tail/16KiB/1 | MiB/s | kafscale | 0.5 | kafka-default | 1 | 0.50 | >= 1x | NO |"
    assert row in (tmp_path / "tls.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("peers.json", "tls-figures.md", "tls.json", "tls.md", "tls.svg")
    }


def test_a_broker_that_runs_already_is_not_compared_over_tls():
    refused = CliRunner().invoke(command.main, ["--tls", "--peer", "other=127.0.0.1:9092"])
    assert refused.exit_code == 2
    assert "leave out --peer" in refused.output
