"""K3: the connection pool equals the limit and stays warm.

Bursts of small reads, more of them than the limit, with pauses between, at the stand-in S3. Beside our pool stands
httpx's, with an SDK's default of 10 connections that are kept when idle.
"""

from __future__ import annotations

import time

import httpx
import trio

from bench.claims.claim import Claim, Finding, Variant
from kafscale.metrics import Metrics
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from tests.devtools.fakes.s3_server import CREDENTIALS, S3Server, s3_server_in_thread

LIMIT = 64
SDK_IDLE_COUNT = 10
BURSTS_COUNT = 20
BURST_COUNT = 200
PAUSE_SECONDS = 0.05
LATENCY_SECONDS = 0.015
REQUESTS_COUNT = BURSTS_COUNT * BURST_COUNT


def run() -> Finding:
    limits = httpx.Limits(max_connections=LIMIT, max_keepalive_connections=SDK_IDLE_COUNT)
    variants = [
        measure(f"{SDK_IDLE_COUNT} kept idle (an SDK's default)", httpx.AsyncHTTPTransport(limits=limits)),
        measure("ours: as many as the limit", None),
    ]
    sdk, ours = (int(variant.figures["connections"]) for variant in variants)
    return Finding(
        ours=f"{ours} connections for {REQUESTS_COUNT:,} requests, against {sdk:,}",
        is_shown=ours <= LIMIT < sdk,
        variants=variants,
    )


def measure(name: str, transport: httpx.AsyncBaseTransport | None) -> Variant:
    """Read in bursts, with this transport or our own."""
    server = S3Server(latency_seconds=LATENCY_SECONDS)
    server.service.buckets["bucket"] = {}
    with s3_server_in_thread(server):
        seconds = trio.run(read_in_bursts, server.endpoint, transport)
    opened = server.counters.connections_opened
    figures = {"requests": REQUESTS_COUNT, "connections": opened, "per 1,000": 1000 * opened / REQUESTS_COUNT}
    return Variant(name=name, figures={**figures, "ms per burst": 1000 * seconds / BURSTS_COUNT})


async def read_in_bursts(endpoint: str, transport: httpx.AsyncBaseTransport | None) -> float:
    """Seconds without the pauses."""
    settings = S3Settings(bucket="bucket", endpoint=endpoint, region="us-east-1", max_connections=LIMIT)
    raw = S3Store(settings, credentials=CREDENTIALS, transport=transport)
    store = LimitedStore(raw, StoreLimiter(LIMIT, StoreMetrics.register(Metrics())), WorkClass.FETCH)
    await store.put("key", [b"data"])
    busy_seconds = 0.0
    for _ in range(BURSTS_COUNT):
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(BURST_COUNT):
                nursery.start_soon(store.get, "key")
        busy_seconds += time.perf_counter() - started
        await trio.sleep(PAUSE_SECONDS)
    await store.aclose()
    return busy_seconds


CLAIM = Claim(
    row="k3",
    source="KafScale, S3 concurrency",
    claim="the connection pool equals the limit and stays warm",
    source_figure="SDK default of 10 idle: churn",
    run=run,
)
