"""The cost of TLS: CPU of the event loop for a Produce of 1 KiB and for a MiB of a fetch, over each transport.

    python -m bench.tls                 without TLS, by the broker's own transport, and by trio's stream of TLS, in turn

The three take turns, several rounds of each, in one run. CPU is that of the broker's main thread, as the kernel counts
it; the client, in this process, is not in it. Produces are sent one at a time or 64 at once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from bench.frames import ACKS_ALL, TIMEOUT_MS
from kafscale.client.client import Client, connect
from kafscale.client.consumer import Consumer
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.login.security import PLAINTEXT, client_security
from kafscale.testing.certificates import make_authority
from kafscale.wire import codec
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import Record, build_batch
from tests.devtools.processes.process import KAFSCALE, BrokerProcess, main_thread_seconds

TRIO = "trio"
WAYS = {"without TLS": None, "own transport": "own", "trio.SSLStream": TRIO}
TOPIC = "bench"
MIB = 1 << 20
PRODUCE_VERSION = 9
FETCHED_MIB = 32
VALUE_BYTES = MIB - (4 << 10)  # a MiB with its headers


@attrs.frozen(kw_only=True)
class Load:
    """A measurement: its unit, and how many units a round does; `run` does one round."""

    name: str
    unit: str
    count: int
    run: Callable[[Client, int], Awaitable[None]]


async def produce(client: Client, count: int, depth: int) -> None:
    """Send Produces of one record of 1 KiB, `depth` at once."""
    connection = await client.leader(TOPIC, 0)
    call = connection.call(ProduceRequest, ProduceResponse, version=PRODUCE_VERSION)
    batch = memoryview(build_batch([Record(value=bytes(1000), timestamp_ms=1)]))
    partitions = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(
        acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(name=TOPIC, partition_data=partitions)]
    )
    body = codec.encode(request, PRODUCE_VERSION)
    for _ in range(count // depth):
        for reply in await connection.send_many(call, [body] * depth):
            await reply.wait_body()


async def fetch(client: Client, count: int) -> None:
    """Fetch this number of MiB from the topic `fetched`."""
    consumer = Consumer(client=client, topic="fetched", positions={0: 0})
    fetched_bytes = 0
    while fetched_bytes < count * VALUE_BYTES:
        fetched_bytes += sum(len(found.record.value or b"") for found in await consumer.poll())


LOADS = (
    Load(name="1 KiB produce, one at a time", unit="us", count=800, run=lambda client, n: produce(client, n, 1)),
    Load(name="1 KiB produce, 64 at once", unit="us", count=9_600, run=lambda client, n: produce(client, n, 64)),
    Load(name="fetch", unit="us/MiB", count=FETCHED_MIB, run=fetch),
)


@contextmanager
def broker(directory: Path, way: str | None) -> Iterator[BrokerProcess]:
    """A broker whose first listener is without TLS, and whose second one is with it, by the way's transport."""
    authority = make_authority(directory)
    certificate = authority.issue("broker")
    options = [
        *("--listen", "SSL=127.0.0.1:0", "--ssl-certificate-file", str(certificate.certificate_file)),
        *("--ssl-key-file", str(certificate.key_file), "--flush-interval", "1h", "--chunk-pool-bytes", "1GiB"),
    ]
    program = KAFSCALE if way != TRIO else ("-m", "bench.tls", "--serve-by-trio")
    with BrokerProcess(directory=directory / "broker", options=options, program=program) as process:
        yield process


@asynccontextmanager
async def connected(process: BrokerProcess, directory: Path, way: str | None) -> AsyncIterator[Client]:
    """A client of the listener that is measured."""
    security, address = PLAINTEXT, process.kafka
    if way is not None:
        security = client_security({"security.protocol": "SSL", "ssl.ca.location": str(directory / "ca.pem")})
        address = Address.parse(process.further_listeners[0])
    async with connect(address, security=security) as client:
        yield client


async def fill(client: Client) -> None:
    """Produce records to fetch, which the chunk pool holds."""
    producer = Producer(client=client, topic="fetched")
    for _ in range(FETCHED_MIB):
        await producer.send([Record(value=bytes(VALUE_BYTES), timestamp_ms=1)], partition=0)


async def measure(process: BrokerProcess, directory: Path, way: str | None) -> dict[str, float]:
    """Microseconds of the event loop for one of each load."""
    found = {}
    async with connected(process, directory, way) as client:
        await client.topic(TOPIC, create=True)
        for load in LOADS:
            before = main_thread_seconds(process.pid)
            await load.run(client, load.count)
            found[load.name] = (main_thread_seconds(process.pid) - before) / load.count * 1e6
    return found


async def compare(rounds: int) -> None:
    """Measure the ways in turn, and print the lowest and the median of each."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            with TemporaryDirectory(prefix="kafscale-bench-") as place:
                directory = Path(place)
                with broker(directory, way) as process:
                    async with connected(process, directory, None) as client:
                        await fill(client)
                    rows[name].append(await measure(process, directory, way))
    for load in LOADS:
        for name, found in rows.items():
            values = [rates[load.name] for rates in found]
            print(f"{load.name:30} {name:16} {min(values):7.1f} {statistics.median(values):7.1f} {load.unit}")


def serve_by_trio(arguments: list[str]) -> None:
    """Run `kafscale` with trio's stream of TLS as its transport."""
    from kafscale.api.handling.calls import Peer
    from kafscale.cli.main import run
    from kafscale.server.kafka.binding import BoundListener
    from kafscale.server.kafka.listener import Acceptor, _peer
    from tests.devtools.fakes.stream_transport import StreamTransport

    plain = Acceptor._connect

    async def connect_by_trio(self: Acceptor, listener: BoundListener, stream: trio.SocketStream) -> None:
        if not listener.protocol.uses_tls:
            await plain(self, listener, stream)
            return
        assert self.tls is not None
        context = self.tls.files.context(listener.protocol)
        peer: Peer = _peer(listener, stream)
        secured = trio.SSLStream(stream, context, server_side=True)
        await secured.do_handshake()
        await self.serve(StreamTransport(secured), peer)

    Acceptor._connect = connect_by_trio  # type: ignore[method-assign]
    sys.exit(run(arguments))


def main() -> None:
    if sys.argv[1:2] == ["--serve-by-trio"]:
        serve_by_trio(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    trio.run(compare, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
