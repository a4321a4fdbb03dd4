"""K1: a broker-wide limiter caps the S3 operations in flight over all partitions.

1,000 partitions with a batch each are flushed at once into a stand-in S3 that answers SlowDown past 32 calls at once.
The log runs in a process of its own, so that its memory can be told from the server's.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from contextlib import aclosing

import attrs
import trio

from bench.claims.claim import Claim, Finding, Variant
from bench.claims.isolation import run_apart
from kafscale.config import Settings, StoreUrl
from kafscale.metrics import Metrics
from kafscale.store.opening.opening import wrap_store
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import memory_log, topic_spec
from tests.devtools.fakes.s3_server import CREDENTIALS, ErrorReply, S3Server, s3_server_in_thread

PARTITIONS_COUNT = 1_000
BATCH_BYTES = 32_000
LATENCY_SECONDS = 0.02
SLOWS_PAST_COUNT = 32
LIMIT = 64


@attrs.frozen(kw_only=True)
class Load:
    """The order for the process with the log."""

    endpoint: str
    concurrency: int
    is_adaptive: bool
    partitions_count: int


def run() -> Finding:
    variants = [
        measure("off", concurrency=0, is_adaptive=False),
        measure("64, fixed", concurrency=LIMIT, is_adaptive=False),
        measure("64, lowered by SlowDown", concurrency=LIMIT, is_adaptive=True),
    ]
    off, fixed, adaptive = (variant.figures for variant in variants)
    assert isinstance(adaptive["refused %"], float)
    return Finding(
        ours=f"at most {adaptive['max in flight']} in flight ({off['max in flight']} without); "
        f"{adaptive['refused %']:.0f} % refused ({off['refused %']:.0f} %)",
        is_shown=max(int(fixed["max in flight"]), int(adaptive["max in flight"])) <= LIMIT < int(off["max in flight"]),
        variants=variants,
    )


def measure(name: str, *, concurrency: int, is_adaptive: bool) -> Variant:
    """Flush in a process of its own, and look at what the server saw."""
    server = S3Server(latency_seconds=LATENCY_SECONDS)
    server.service.buckets["bucket"] = {}
    counters = server.counters
    server.intercept = lambda call: ErrorReply() if counters.in_flight > SLOWS_PAST_COUNT else None
    with s3_server_in_thread(server):
        load = Load(
            endpoint=server.endpoint,
            concurrency=concurrency,
            is_adaptive=is_adaptive,
            partitions_count=PARTITIONS_COUNT,
        )
        told = run_apart(flush_all, load)
    requests = counters.requests.total()
    refused = requests - len(server.service.buckets["bucket"])
    figures = {"max in flight": counters.max_in_flight, "requests": requests, "refused %": 100 * refused / requests}
    return Variant(name=name, figures={**figures, "connections": counters.connections_opened, **told})


def flush_all(load: Load) -> Mapping[str, float]:
    """Return what the process with the log has to tell of itself."""
    return trio.run(flush, load)


async def flush(load: Load) -> Mapping[str, float]:
    settings = Settings(s3_concurrency=load.concurrency, store=StoreUrl(scheme="s3", bucket="bucket"))
    raw = S3Store(S3Settings(bucket="bucket", endpoint=load.endpoint, region="us-east-1"), credentials=CREDENTIALS)
    views = wrap_store(raw, settings, StoreMetrics.register(Metrics()))
    assert views.prefetch.limiter is not None
    views.prefetch.limiter.allowance.is_adaptive = load.is_adaptive
    logs = memory_log(
        views.acknowledge,
        MemoryDisk(),
        topics=[topic_spec(load.partitions_count)],
        chunk_pool_bytes=256 << 20,
        wal_segment_bytes=64 << 20,
        flush_interval_seconds=3600,
    )
    async with aclosing(views), logs as log:
        log.log.flusher.tasks_max_count = math.inf  # it has a bound of its own, below the limiter's
        for index in range(load.partitions_count):
            await log.append(log.partition(index), bytes(BATCH_BYTES))
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = trio.current_time()
        await log.log.flusher.flush_all()
        seconds = trio.current_time() - started
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    return {"seconds": seconds, "memory grown MiB": grown_kib / 1024}


CLAIM = Claim(
    row="k1",
    source="KafScale, S3 concurrency",
    claim="a broker-wide limiter caps the S3 operations in flight over all partitions",
    source_figure="64 default, 0 = off",
    run=run,
)
