"""K8: the latency of a flush is that of the slower of `.kfs` and `.index`, not their sum.

Under `--durability segment` a produce waits for the flush of its batch: small batches, one at a time, to a stand-in S3
that takes 15 ms for each request. Without the feature the `.index` is uploaded when the `.kfs` has been.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from bench.claims.claim import Claim, Finding
from bench.claims.rounds import alternate, quantile
from kafscale.buffers import Buffer
from kafscale.config import Durability
from kafscale.store.base import ForwardingStore, ObjectStore
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec
from tests.devtools.fakes.s3_server import CREDENTIALS, S3Server, s3_server_in_thread

ROUNDS_COUNT = 3
LATENCY_SECONDS = 0.015
PRODUCERS_COUNT = 4  # each with a partition of its own
PRODUCES_COUNT = 60  # of each
VALUE = bytes(1000)


def run() -> Finding:
    variants = alternate(
        {
            "one after the other": partial(measure, OneAfterTheOther),
            "in parallel": partial(measure, lambda store: store),
        },
        ROUNDS_COUNT,
    )
    sequential, parallel = (variant.figures["produce p50 ms"] for variant in variants)
    saved = 100 * (1 - parallel / sequential)
    return Finding(
        ours=f"{saved:.0f} % off: p50 {parallel:.1f} ms in parallel, {sequential:.1f} ms one after the other",
        is_shown=saved >= 25,
        variants=variants,
    )


@attrs.define(eq=False)
class OneAfterTheOther(ForwardingStore):
    """Holds the upload of an `.index` until that of its `.kfs` has ended."""

    _ended: defaultdict[str, trio.Event] = attrs.field(factory=lambda: defaultdict(trio.Event), init=False)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        pair, _, kind = key.rpartition(".")
        if kind == "index":
            await self._ended[pair].wait()
        etag = await self.store.put_if_absent(key, parts)
        self._ended[pair].set()
        return etag


def measure(wrap: Callable[[ObjectStore], ObjectStore]) -> dict[str, float]:
    server = S3Server(latency_seconds=LATENCY_SECONDS)
    server.service.buckets["bucket"] = {}
    with s3_server_in_thread(server):
        seconds = trio.run(produce, server.endpoint, wrap)
    return {
        "produces": len(seconds),
        "produce p50 ms": 1000 * quantile(seconds, 0.5),
        "produce p99 ms": 1000 * quantile(seconds, 0.99),
    }


async def produce(endpoint: str, wrap: Callable[[ObjectStore], ObjectStore]) -> list[float]:
    """Seconds of each."""
    store = S3Store(S3Settings(bucket="bucket", endpoint=endpoint, region="us-east-1"), credentials=CREDENTIALS)
    seconds: list[float] = []
    topics = [topic_spec(PRODUCERS_COUNT)]
    async with memory_log(wrap(store), MemoryDisk(), topics=topics, durability=Durability.SEGMENT) as log:
        async with trio.open_nursery() as nursery:
            for index in range(PRODUCERS_COUNT):
                nursery.start_soon(_produce, log, index, seconds)
    await store.aclose()
    return seconds


async def _produce(log: MemoryLog, index: int, seconds: list[float]) -> None:
    for _ in range(PRODUCES_COUNT):
        started = trio.current_time()
        await log.append(log.partition(index), VALUE)
        seconds.append(trio.current_time() - started)


CLAIM = Claim(
    row="k8",
    source="KafScale, parallel uploads",
    claim="the latency of a flush is max(.kfs, .index), not the sum",
    source_figure="30-45 % off end-to-end produce latency",
    run=run,
)
