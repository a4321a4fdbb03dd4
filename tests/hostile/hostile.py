"""Shared code of the tests of attacks: a well-behaved client beside the attack, and connections that send raw bytes.

    with broker_process(program=timed_loop.PROGRAM) as broker:
        async with bystander(broker) as seen:
            async with raw_connection(broker.kafka) as attacker:
                await attacker.send_all(announced_frame(16 << 20))
        assert seen.problems(grown_max_mib=64) == []

The client runs on the test's own event loop: an attack that computes for long has to do so before it begins.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import nan
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.client.client import connect
from kafscale.client.consumer import Consumer
from kafscale.client.producer import Producer
from kafscale.config import Address
from kafscale.errors import KafScaleError
from kafscale.wire import codec
from kafscale.wire.frames import FrameReader, RequestHeader, request_frame
from kafscale.wire.messages.cluster import ApiVersionsRequest
from kafscale.wire.records import Record
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, peak_rss_mib, reset_peak_rss

ROUND_PAUSE_SECONDS = 0.02
GIVE_UP_SECONDS = 30.0  # Kafka's clients: request.timeout.ms; a round that takes longer is a failure
WARM_UP_ROUNDS = 3  # the first creates the topic
MAX_ANSWER_BYTES = 1 << 30
STEP_MAX_SECONDS = 0.25  # of CPU time at a stretch, in which no client is served; a tenth of that is usual
STANDSTILL_SECONDS = 15.0  # of any time, for what waits and does not compute; a busy machine takes a part of it

# What each broker had when a client was beside it first: those that come later see what earlier attacks have left, too.
_calm_mib: WeakKeyDictionary[BrokerProcess, float] = WeakKeyDictionary()


@attrs.define(kw_only=True)
class Seen:
    """Experience of the well-behaved client; complete at the end of the block.

    A round is one record produced with acks=all and fetched. `failures` are rounds that ended with an error, as text.
    """

    round_seconds: list[float] = attrs.field(factory=list)
    longest_step_seconds: float = nan  # of the event loop, in CPU time; not known of a broker that does not time it
    failures: list[str] = attrs.field(factory=list)
    grown_mib: float = 0.0  # the broker's peak of resident memory above what it had before the first attack

    @property
    def worst_seconds(self) -> float:
        """The longest round. A stop of the broker's event loop is in it, and whatever keeps the machine busy."""
        return max(self.round_seconds)

    def problems(self, *, step_max_seconds: float = STEP_MAX_SECONDS, grown_max_mib: float | None = None) -> list[str]:
        """Return in which ways the client was held up, and the broker has grown too much; empty if it was served."""
        found = list(self.failures)
        if not self.longest_step_seconds < step_max_seconds:
            found.append(f"the event loop computed for {self.longest_step_seconds:.3f} s at a stretch")
        if self.worst_seconds > STANDSTILL_SECONDS:
            found.append(f"a round took {self.worst_seconds:.1f} s")
        if grown_max_mib is not None and self.grown_mib > grown_max_mib:
            found.append(f"the broker has grown by {self.grown_mib:.0f} MiB")
        return found


@asynccontextmanager
async def bystander(broker: BrokerProcess, *, topic: str = "bystander") -> AsyncIterator[Seen]:
    """Produce and fetch one record after the other while the block runs; at least one round comes after the attack."""
    seen = Seen()
    stop = trio.Event()
    warm = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_produce_and_fetch, broker, topic, seen, warm, stop)
        await warm.wait()
        reset_peak_rss(broker.pid)
        calm_mib = _calm_mib.setdefault(broker, peak_rss_mib(broker.pid))
        is_timed = timed_loop.are_timed(broker.directory)
        if is_timed:
            timed_loop.forget_steps(broker.directory)
        try:
            yield seen
        finally:
            stop.set()
    if broker.returncode is None:
        seen.grown_mib = peak_rss_mib(broker.pid) - calm_mib
    if is_timed:
        seen.longest_step_seconds = timed_loop.longest_step_seconds(broker.directory)


async def _produce_and_fetch(broker: BrokerProcess, topic: str, seen: Seen, warm: trio.Event, stop: trio.Event) -> None:
    async with connect(broker.kafka) as client:
        producer = Producer(client=client, topic=topic)
        consumer = Consumer(client=client, topic=topic, positions={0: 0})
        for number in range(WARM_UP_ROUNDS):
            await _round(producer, consumer, b"%d" % number)
        warm.set()
        is_last = False
        while not is_last:
            is_last = stop.is_set()
            begun = time.perf_counter()
            try:
                with trio.fail_after(GIVE_UP_SECONDS):
                    await _round(producer, consumer, b"%f" % begun)
            except (KafScaleError, OSError, trio.TooSlowError) as exc:
                seen.failures.append(f"{type(exc).__name__}: {exc}")
            seen.round_seconds.append(time.perf_counter() - begun)
            with trio.move_on_after(ROUND_PAUSE_SECONDS):
                await stop.wait()


async def _round(producer: Producer, consumer: Consumer, value: bytes) -> None:
    await producer.send([Record(key=None, value=value, timestamp_ms=1)], partition=0)
    while value not in [found.record.value for found in await consumer.poll()]:
        pass


@asynccontextmanager
async def raw_connection(address: Address) -> AsyncIterator[trio.SocketStream]:
    """A connection that has sent nothing yet, and is reset at the end, whatever it has in flight."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


@asynccontextmanager
async def raw_connections(address: Address, count: int) -> AsyncIterator[list[trio.SocketStream]]:
    """Many of them at once."""
    streams: list[trio.SocketStream] = []
    try:
        for _ in range(count):
            streams.append(await trio.open_tcp_stream(address.host, address.port))
        yield streams
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def greet(stream: trio.SocketStream) -> None:
    """Ask for versions, as every client does first: a connection that has asked for nothing gets small frames only."""
    await stream.send_all(request_bytes(ApiVersionsRequest(), 0))
    assert await next_answer(stream) is not None


def announced_frame(size_bytes: int, *, api_key: int = 0) -> bytes:
    """The first six bytes of a request of this size, and nothing of the rest."""
    return size_bytes.to_bytes(4) + api_key.to_bytes(2)


def request_bytes(message: object, version: int, *, correlation_id: int = 1, client_id: str = "hostile") -> bytes:
    """A whole request as it goes over the wire, whatever its fields say."""
    header = RequestHeader(
        api_key=message.API_KEY,  # type: ignore[attr-defined]
        api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    flexible = codec.is_flexible(type(message), version)
    return b"".join(request_frame(header, codec.encode(message, version), flexible_header=flexible))


async def next_answer(stream: trio.abc.ReceiveStream) -> bytes | None:
    """The next response without its length, or None where the broker has closed the connection instead."""
    frames = FrameReader(MAX_ANSWER_BYTES)
    try:
        while data := await stream.receive_some(1 << 20):
            frames.receive_data(data)
            for frame in frames.next_frames():
                return bytes(frame)
    except trio.BrokenResourceError:
        pass
    return None
