"""Brokers at real S3 servers, with bad lines on both sides: killed, suspended, cut off, and taken over from.

moto's server, and MinIO where `minio` is on the PATH. FAULTS_SEED chooses the seed, which is printed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import attrs
import pytest
import trio

from kafscale.config import Address
from kafscale.store.base import ObjectStore
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.testing.tcp_proxy import TcpProxy
from tests.devtools.external.s3_processes import S3Process, minio_server, moto_server
from tests.devtools.processes.process import BrokerProcess
from tests.faults.ordeal import OPTIONS, Ordeal, chosen_seed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

SERVERS = {"moto": moto_server, "minio": minio_server}
FOUND_SERVERS = [name for name in SERVERS if name == "moto" or shutil.which(name)]
REGION = "us-east-1"
TROUBLES_COUNT = 12
TROUBLE_MAX_SECONDS = 1.0
PAUSE_MAX_SECONDS = 0.7
CLIENT_TIMEOUT_SECONDS = 1.5
SUSPENDED_SECONDS = 2 * CLIENT_TIMEOUT_SECONDS
FENCED_WITHIN_SECONDS = 20.0
BUSY_SECONDS = 1.0
START_MAX_SECONDS = 120.0  # it reads hundreds of objects back, from a server that others keep busy


@pytest.fixture(scope="module", params=FOUND_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[S3Process]:
    with SERVERS[request.param]() as process:
        yield process


@attrs.define(eq=False)
class Site:
    """A bucket, and an ordeal whose broker reaches it through a proxy, as its clients reach the broker."""

    bucket: S3Settings
    ordeal: Ordeal
    to_store: TcpProxy
    to_broker: TcpProxy
    environ: dict[str, str]
    options: list[str]

    @property
    def broker(self) -> BrokerProcess:
        return self.ordeal.broker

    def another_broker(self, directory: Path) -> BrokerProcess:
        """At the same bucket, with a disk of its own."""
        return BrokerProcess(directory=directory, options=self.options, environ=self.environ)


@asynccontextmanager
async def site(directory: Path, server: S3Process, durability: str) -> AsyncIterator[Site]:
    seed = chosen_seed()
    endpoint = urlsplit(server.endpoint)
    assert endpoint.hostname is not None
    assert endpoint.port is not None
    bucket = S3Settings(bucket=f"bucket-{uuid4()}", endpoint=server.endpoint, region=REGION)

    @asynccontextmanager
    async def open_bucket() -> AsyncIterator[ObjectStore]:
        store = S3Store(bucket, credentials=server.credentials)
        try:
            yield store
        finally:
            await store.aclose()

    async with trio.open_nursery() as nursery:
        to_store = await nursery.start(TcpProxy(Address(endpoint.hostname, endpoint.port)).run)
        options = [*OPTIONS, "--durability", durability, "--store", f"s3://{bucket.bucket}", "--s3-region", REGION]
        options += ["--s3-endpoint", f"http://127.0.0.1:{to_store.port}", *("--s3-create-bucket", "true")]
        environ = {
            "AWS_ACCESS_KEY_ID": server.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.credentials.secret_access_key,
        }
        broker = BrokerProcess(directory=directory, options=options, environ=environ)
        try:
            await trio.to_thread.run_sync(broker.start)  # in a thread, for the proxy must run meanwhile
            to_broker = await nursery.start(TcpProxy(broker.kafka).run)
            ordeal = Ordeal(
                broker,
                seed,
                open_bucket=open_bucket,
                address=Address("127.0.0.1", to_broker.port),
                timeout_seconds=CLIENT_TIMEOUT_SECONDS,
            )
            yield Site(bucket, ordeal, to_store, to_broker, environ, options)
        finally:
            broker.kill()
        nursery.cancel_scope.cancel()


async def kill(at: Site) -> None:
    at.broker.kill()
    await trio.to_thread.run_sync(at.broker.start, START_MAX_SECONDS)


async def suspend(at: Site) -> None:
    """For longer than clients wait: they send again, and it answers whom nobody is there any more."""
    at.broker.suspend()
    await trio.sleep(SUSPENDED_SECONDS)
    at.broker.resume()


def line(side: str, name: str) -> Callable[[Site], Awaitable[None]]:
    """A trouble on one of the lines, for a while."""

    async def trouble(at: Site) -> None:
        proxy: TcpProxy = getattr(at, side)
        if name == "reset":
            proxy.reset()
        elif name == "half_open":
            proxy.half_open()
        elif name == "freeze":
            proxy.freeze()
        elif name == "refuse":
            proxy.refusing = True
            proxy.reset()
        elif name == "delay":
            proxy.delay_seconds = 0.1
        else:
            proxy.set_bandwidth(50_000.0)
        await trio.sleep(at.ordeal.random.uniform(0, TROUBLE_MAX_SECONDS))
        proxy.thaw()
        proxy.refusing = False
        proxy.delay_seconds = 0.0
        proxy.set_bandwidth(math.inf)

    trouble.__name__ = f"{side} {name}"
    return trouble


LINES = ["to_store", "to_broker"]
LINE_TROUBLES = ["reset", "half_open", "freeze", "refuse", "delay", "bandwidth"]
TROUBLES = [kill, kill, suspend, *(line(side, name) for side in LINES for name in LINE_TROUBLES)]


@pytest.mark.parametrize("durability", ["wal", "s3-wal", "segment"])
async def test_kills_suspensions_and_bad_lines_lose_nothing(tmp_path: Path, server: S3Process, durability: str) -> None:
    async with site(tmp_path, server, durability) as at:

        async def make_trouble() -> None:
            for trouble in at.ordeal.random.sample(TROUBLES, TROUBLES_COUNT):
                await trio.sleep(at.ordeal.random.uniform(0, PAUSE_MAX_SECONDS))
                assert at.broker.returncode is None, f"the broker ended by itself: {at.broker.log[-2000:]}"
                print(f"{trio.current_time() - began:.1f} s: {trouble.__name__}")
                await trouble(at)

        began = trio.current_time()
        await at.ordeal.run(make_trouble)
        print(f"{at.ordeal.history.acknowledged_count} records acknowledged")
        assert at.ordeal.problems() == []
        assert at.ordeal.history.acknowledged_count > 100  # otherwise nothing was tried


@pytest.mark.parametrize("durability", ["s3-wal", "segment"])
async def test_a_broker_that_was_suspended_and_superseded_stops_itself_and_nothing_is_lost(
    tmp_path: Path, server: S3Process, durability: str
) -> None:
    async with site(tmp_path / "first", server, durability) as at:
        first = at.broker
        second = at.another_broker(tmp_path / "second")
        with ExitStack() as at_end:
            at_end.callback(second.kill)

            async def take_over() -> None:
                await trio.sleep(BUSY_SECONDS)
                first.suspend()
                at.ordeal.broker = second
                await trio.to_thread.run_sync(second.start)
                at.to_broker.upstream = second.kafka
                at.to_broker.reset()
                await trio.sleep(BUSY_SECONDS)
                first.resume()
                with trio.fail_after(FENCED_WITHIN_SECONDS):
                    while first.returncode is None:
                        await trio.sleep(0.05)
                await trio.sleep(BUSY_SECONDS)

            await at.ordeal.run(take_over)
            assert first.returncode == 1
            assert "superseded" in first.log
            assert at.ordeal.problems() == []
            assert at.ordeal.history.acknowledged_count > 100
