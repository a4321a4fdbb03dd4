"""File descriptors: connections leave some for the log, and a time without any passes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from kafscale.client.client import connect
from kafscale.client.producer import Producer
from kafscale.errors import BrokerUnavailable
from kafscale.wire.records import Record
from tests.devtools.processes.process import BrokerProcess
from tests.hostile.hostile import bystander, greet, raw_connection, raw_connections

SOFT, HARD = 64, 256
OPTIONS = ("--wal-segment-bytes", "64KiB", "--flush-interval", "200ms", "--segment-bytes", "64KiB")
LIMITED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT}, {HARD}))
sys.argv[0] = "kafscale"
from kafscale.cli.main import main
main()
"""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that may have few files open, and needs new ones often."""
    with BrokerProcess(directory=tmp_path, options=OPTIONS, program=("-c", LIMITED)) as broker:
        yield broker
        assert broker.returncode is None, broker.log


async def _produce(producer: Producer, count: int) -> None:
    """Enough for several files of the log."""
    for _ in range(count):
        await producer.send([Record(key=None, value=bytes(30_000), timestamp_ms=1)], partition=0)


async def test_idle_connections_leave_descriptors_for_the_log(limited: BrokerProcess) -> None:
    """At the next rotation the broker ended."""
    async with bystander(limited) as seen, raw_connections(limited.kafka, HARD + 50) as attackers:
        with trio.fail_after(20):
            while not await _produce_anew(limited):  # until those that are silent have to make room
                await trio.sleep(0.1)
        assert len(os.listdir(f"/proc/{limited.pid}/fd")) < HARD
    assert not seen.failures
    assert attackers
    assert f"the limit of open files is {HARD} now, no longer {SOFT}" in limited.log
    assert 0 < limited.log.count("a connection was refused") <= 20
    assert "Traceback" not in limited.log


async def _produce_anew(broker: BrokerProcess) -> bool:
    """Over a new connection; False if that is refused."""
    try:
        async with connect(broker.kafka) as client:
            await _produce(Producer(client=client, topic="bystander"), 20)
    except BrokerUnavailable:
        return False
    return True


@contextmanager
def _no_descriptors(broker: BrokerProcess) -> Iterator[None]:
    """The broker can open nothing more; what is open stays."""
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)


async def test_a_time_without_descriptors_passes(limited: BrokerProcess) -> None:
    """Files of the log, objects of the store and the metadata wait, and nobody is told that something is lost."""
    async with connect(limited.kafka) as client:
        producer = Producer(client=client, topic="orders")
        await _produce(producer, 1)
        async with trio.open_nursery() as nursery:
            with _no_descriptors(limited):
                nursery.start_soon(_produce, producer, 40)
                await trio.sleep(1)
                assert limited.returncode is None
        await _produce(producer, 5)
    async with bystander(limited) as seen:
        pass
    assert not seen.failures


async def test_a_connection_that_comes_without_descriptors_wrote_a_traceback_each_100_ms(
    limited: BrokerProcess,
) -> None:
    """It waits, one line says so, and it is served when there are descriptors again; so is the admin server."""
    async with bystander(limited) as seen:
        async with AsyncExitStack() as stack:
            with _no_descriptors(limited):
                waiting = [await stack.enter_async_context(raw_connection(limited.kafka)) for _ in range(3)]
                probe = await stack.enter_async_context(raw_connection(limited.admin))
                await trio.sleep(1)
            with trio.fail_after(10):
                for stream in waiting:
                    await greet(stream)
                await probe.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await probe.receive_some()).startswith(b"HTTP/1.1 200")
    assert not seen.failures
    assert "Traceback" not in limited.log
    assert limited.log.count("wait until there is room") == 2
    assert limited.log.count("are accepted again") == 2
