"""A1: a connection is not muted while a request is being persisted: 4 requests take 1.x T, not 4 T.

Produces pipelined on one connection to a broker whose disk takes T = 5 ms to sync, with the default of requests in
flight and with `--max-in-flight-requests 1`, which is Kafka's serial model.
"""

from __future__ import annotations

from functools import partial

import trio

from bench.claims.claim import Claim, Finding
from bench.claims.rounds import alternate
from bench.frames import ProduceRing, produce_reply_layout
from bench.points import TOPIC, Point
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Limits
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

ROUNDS_COUNT = 9
SYNC_SECONDS = 0.005
DEPTHS = (4, 64)
DEFAULT = Limits().max_in_flight_requests_count


def run() -> Finding:
    variants = alternate(
        {
            f"{depth} pipelined, {_named(limit)}": partial(measure, depth, limit)
            for depth in DEPTHS
            for limit in (1, DEFAULT)
        },
        ROUNDS_COUNT,
    )
    serial, ours, deep_serial, deep = (variant.figures["T"] for variant in variants)
    few, many = DEPTHS
    return Finding(
        ours=f"{few} requests take {ours:.1f} T ({serial:.1f} T one at a time), {many} take {deep:.1f} T "
        f"({deep_serial:.0f} T)",
        is_shown=ours < few - 1 and serial >= few and deep < many / 8 and deep_serial >= many,
        variants=variants,
    )


def _named(limit: int) -> str:
    return "one at a time" if limit == 1 else f"up to {limit} in flight"


def measure(depth: int, limit: int) -> dict[str, float]:
    """Return how long `depth` requests take that are sent at once."""
    seconds = trio.run(_produce, depth, limit)
    return {"ms": 1000 * seconds, "T": seconds / SYNC_SECONDS}


async def _produce(depth: int, limit: int) -> float:
    parts = memory_parts()
    settings = memory_settings(limits=Limits(max_in_flight_requests_count=limit))
    async with memory_broker(parts, settings) as running, running.open_stream() as stream:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        assert isinstance(parts.disk, MemoryDisk)
        parts.disk.sync_seconds = SYNC_SECONDS
        await _exchange(stream, 1)  # the first one finds everything cold
        return await _exchange(stream, depth)


async def _exchange(stream: trio.abc.Stream, depth: int) -> float:
    """Return the seconds until the last of `count` requests is answered, which are sent by one write."""
    ring = ProduceRing.of(Point(batch_bytes=1 << 10, in_flight=depth, partitions=1), [0])
    missing_bytes = depth * produce_reply_layout().size
    started = trio.current_time()
    await stream.send_all(ring.frames)
    while missing_bytes:
        missing_bytes -= len(await stream.receive_some())
    return trio.current_time() - started


CLAIM = Claim(
    row="a1",
    source="AutoMQ",
    claim="a connection is not muted while a request is being persisted",
    source_figure="4 T becomes 1.x T",
    run=run,
)
