"""`kafscale serve` as a process: the ready line, signals, exit codes, and one line for what keeps it from starting."""

from __future__ import annotations

import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trio

from kafscale.client.client import connect
from kafscale.client.consumer import Consumer
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.wire.codec import encode
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafscale.wire.records import Record
from tests.devtools.external.clients import wait_until
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, ProcessFailed

DEADLINE_SECONDS = 15.0
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
FETCH_VERSION = 12  # the last that names topics


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(directory=tmp_path / "broker") as running:
        yield running


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that no test ends."""
    with BrokerProcess(directory=tmp_path_factory.mktemp("lasting")) as running:
        yield running


def _get(address: Address, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def _end(broker: BrokerProcess, *signals: signal.Signals) -> int:
    """Send the signals one behind the other and return the exit code."""
    process = broker._running()
    for number in signals:
        os.kill(process.pid, number)
    return process.wait(DEADLINE_SECONDS)


def _failure(tmp_path: Path, *options: str, **environ: str) -> str:
    """What a broker that can't start writes to stderr; it must be one line, with exit code 1."""
    directory = Path(mkdtemp(dir=tmp_path))
    failing = BrokerProcess(directory=directory, options=options, environ=environ, program=timed_loop.PROGRAM)
    with pytest.raises(ProcessFailed):
        failing.start()
    assert failing.returncode == 1, failing.log
    assert failing.log.count("\n") == 1, failing.log
    return failing.log


async def _produce(address: Address, count: int) -> None:
    async with connect(address) as client:
        producer = Producer(client=client, topic="orders")
        for number in range(count):
            await producer.send([Record(key=None, value=b"%d" % number, timestamp_ms=1)])


async def _consume(address: Address, offset: int) -> list[bytes | None]:
    async with connect(address) as client:
        consumer = Consumer(client=client, topic="orders", positions={0: offset})
        return [each.record.value for each in await consumer.poll()]


async def _wait_for_more(address: Address, waiting: trio.Event, answered: trio.Event) -> None:
    """A fetch at the end of the log, which has half a minute."""
    async with connect(address) as client:
        connection = await client.leader("orders", 0)
        wanted = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
        topics = [FetchTopic(topic="orders", partitions=[wanted])]
        request = FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=topics)
        call = connection.call(FetchRequest, FetchResponse, version=FETCH_VERSION)
        reply = await connection.send_encoded(call, encode(request, FETCH_VERSION))
        waiting.set()
        await reply.wait()
        answered.set()


def test_admin_pages_and_metrics(lasting: BrokerProcess) -> None:
    assert _get(lasting.admin, "/healthz") == (200, "ok\n")
    assert _get(lasting.admin, "/readyz") == (200, "ready\n")
    assert _get(lasting.admin, "/other")[0] == 404
    trio.run(_produce, lasting.kafka, 3)
    assert trio.run(_consume, lasting.kafka, 1) == [b"1", b"2"]
    status, exposition = _get(lasting.admin, "/metrics")
    assert status == 200
    lines = exposition.splitlines()
    assert 'kafscale_topic_appended_records_total{topic="orders"} 3' in lines
    assert 'kafscale_topic_fetched_records_total{topic="orders"} 2' in lines
    assert 'kafscale_requests_total{api="Produce"} 3' in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) > 30
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert {"process_resident_memory_bytes", "kafscale_build_info"} < set(names)
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    with urllib.request.urlopen(urllib.request.Request(f"http://{lasting.admin}/metrics", headers=accept)) as answer:
        assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert answer.read().endswith(b"\n# EOF\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(broker: BrokerProcess, number: signal.Signals) -> None:
    trio.run(_produce, broker.kafka, 1)
    assert _end(broker, number) == 0
    assert "Traceback" not in broker.log


def test_a_waiting_fetch_is_answered_by_the_shutdown(broker: BrokerProcess) -> None:
    trio.run(_produce, broker.kafka, 1)

    async def fetch_across_the_shutdown() -> None:
        waiting, answered = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait_for_more, broker.kafka, waiting, answered)
            await waiting.wait()
            with trio.fail_after(DEADLINE_SECONDS):
                assert await trio.to_thread.run_sync(_end, broker, signal.SIGTERM) == 0
                await answered.wait()

    trio.run(fetch_across_the_shutdown)


def test_acknowledged_records_survive_a_stop_and_a_kill(broker: BrokerProcess) -> None:
    for kill in (False, True):
        trio.run(_produce, broker.kafka, 10)
        broker.restart(kill=kill)
    _, exposition = _get(broker.admin, "/metrics")
    assert "kafscale_partitions 1" in exposition.splitlines()
    trio.run(_produce, broker.kafka, 1)
    assert broker.stop() == 0


def test_a_signal_during_the_start_ends_the_broker_cleanly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        endpoint.settimeout(DEADLINE_SECONDS)
        options = ("--store", "s3://bucket", "--s3-endpoint", f"http://127.0.0.1:{endpoint.getsockname()[1]}")
        starting = BrokerProcess(directory=tmp_path / "starting", options=options, environ=KEYS)
        starting.launch()
        try:
            connection, _ = endpoint.accept()  # it has come as far as the bucket, which will not answer
            with connection:
                assert _end(starting, signal.SIGTERM) == 0
        finally:
            starting.kill()
    assert "Traceback" not in starting.log


def test_a_signal_while_modules_are_imported_ends_the_process_cleanly(tmp_path: Path) -> None:
    """A container's first process got no SIGTERM before trio watched for it, and was killed a minute later."""
    reached = tmp_path / "reached"
    (tmp_path / "trio.py").write_text(f"import time\nopen({str(reached)!r}, 'w').close()\ntime.sleep(60)\n")
    starting = BrokerProcess(directory=tmp_path / "starting", environ={"PYTHONPATH": str(tmp_path)})
    starting.launch()
    try:
        wait_until(reached.exists, "the import of trio", seconds=DEADLINE_SECONDS)
        assert _end(starting, signal.SIGTERM) == 0
    finally:
        starting.kill()


def test_a_second_broker_on_the_data_directory_is_refused(lasting: BrokerProcess, tmp_path: Path) -> None:
    message = _failure(tmp_path, "--data-dir", str(lasting.data_dir))
    assert str(lasting.data_dir) in message
    assert f"process {lasting.pid}" in message


def test_a_port_that_is_taken_is_named(lasting: BrokerProcess, tmp_path: Path) -> None:
    assert f"--listen {lasting.kafka}: another program listens there" in _failure(
        tmp_path, "--listen", f"SECOND={lasting.kafka}"
    )
    assert f"--admin-listen {lasting.admin}: another program listens there" in _failure(
        tmp_path, "--admin-listen", str(lasting.admin)
    )


def test_another_store_on_the_same_data_directory_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    assert broker.stop() == 0
    message = _failure(tmp_path, "--data-dir", str(broker.data_dir), "--store", f"file:{tmp_path / 'other'}")
    assert str(tmp_path / "other") in message
    assert "--data-dir" in message


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in _failure(tmp_path, "--data-dir", str(tmp_path / "file"))


def test_an_endpoint_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    options = ("--store", "s3://bucket", "--s3-endpoint", endpoint, *timed_loop.fixed(store_retry_deadline_seconds=0.1))
    assert endpoint.removeprefix("http://") in _failure(tmp_path, *options, **KEYS)


def test_a_further_listener_is_in_the_ready_line_and_is_advertised(tmp_path: Path) -> None:
    options = ("--listen", "WILD=0.0.0.0:0", "--listen", "NAMED=127.0.0.1:0")
    options += ("--advertised-listener", "NAMED=broker.example:19092")
    broker = BrokerProcess(directory=tmp_path / "broker", options=options)
    with broker:
        wild, named = (Address.parse(text) for text in broker.further_listeners)

        async def told(port: int) -> list[str]:
            async with connect(Address("127.0.0.1", port)) as client:
                metadata = await client.metadata()
                return [f"{each.host}:{each.port}" for each in metadata.brokers]

        assert trio.run(told, broker.kafka.port) == [str(broker.kafka)]
        assert trio.run(told, wild.port) == [f"127.0.0.1:{wild.port}"]
        assert trio.run(told, named.port) == ["broker.example:19092"]
