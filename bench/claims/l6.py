"""L6: the first read of an object fetches its last 64 KiB, and its index is kept; then one ranged GET a fetch.

A segment of batches of 64 KiB is fetched batch by batch, as a consumer does that lags behind, by a broker that has just
been started, and once more; a stand-in S3 counts requests and bytes. Without read-ahead and cache each fetch gets
exactly what it returns; with them several fetches share a GET. Without the feature each fetch gets the whole object,
which is what a reader without an index has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

import attrs
import trio

from bench.claims.claim import Claim, Finding, Variant
from kafscale.store.base import ForwardingStore, ObjectPart, ObjectStore
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import MemoryLog, memory_log
from tests.devtools.fakes.s3_server import CREDENTIALS, S3Server, s3_server_in_thread

BATCHES_COUNT = 64
VALUE = bytes(64 << 10)
POOL_BYTES = 16 << 20
MOST_BYTES = 1.1  # times what is returned, with read-ahead


class ReadSettings(TypedDict, total=False):
    """Settings of the log's reader; what is left out is as by default."""

    readahead_bytes: int
    cache_bytes: int


OFF = ReadSettings(readahead_bytes=0, cache_bytes=0)


@attrs.define(eq=False)
class WholeObjects(ForwardingStore):
    """Gets all of an object, whatever is wanted of it."""

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        found = await self.store.get(key)
        return attrs.evolve(found, data=memoryview(found.data)[start : start + length_bytes])

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        found = await self.store.get(key)
        return attrs.evolve(found, data=memoryview(found.data)[-length_bytes:])


def run() -> Finding:
    server = S3Server()
    server.service.buckets["bucket"] = {}
    with s3_server_in_thread(server):
        trio.run(write, server)
        off = trio.run(read, server, OFF, lambda store: store)
        on = trio.run(read, server, ReadSettings(), lambda store: store)
        whole = trio.run(read, server, OFF, WholeObjects)
    warm, ahead = off["warm"], on["first pass"]
    return Finding(
        ours=f"{off['first fetch']['GETs']} GETs for the first fetch, then {warm['GETs per fetch']:.2f} of "
        f"{100 * warm['bytes / wanted']:.1f} % of the returned bytes; with read-ahead {ahead['GETs per fetch']:.2f} of "
        f"{100 * ahead['bytes / wanted']:.1f} %; whole objects {100 * whole['warm']['bytes / wanted']:,.0f} %",
        is_shown=off["first fetch"]["GETs"] == 2
        and warm["GETs per fetch"] == 1
        and warm["bytes / wanted"] == 1
        and ahead["GETs per fetch"] <= 1 + 2 / BATCHES_COUNT
        and ahead["bytes / wanted"] <= MOST_BYTES,
        variants=[
            Variant(name=f"{setting}: {phase}", figures=figures)
            for setting, found in {"no read-ahead": off, "as by default": on, "whole objects": whole}.items()
            for phase, figures in found.items()
        ],
    )


async def write(server: S3Server) -> None:
    """Two segments: what a restart looks at is the last one."""
    store = _store(server)
    async with memory_log(store, MemoryDisk(), chunk_pool_bytes=POOL_BYTES, wal_segment_bytes=POOL_BYTES) as log:
        for count in (BATCHES_COUNT, 1):
            for _ in range(count):
                await log.append(log.partition(), VALUE)
            await log.log.flusher.flush_all()
    await store.aclose()


async def read(
    server: S3Server, settings: ReadSettings, wrap: Callable[[ObjectStore], ObjectStore]
) -> Mapping[str, Mapping[str, float]]:
    """Figures of the first fetch, of those behind it in the first pass, of all of that, and of a second pass."""
    store = _store(server)
    async with memory_log(wrap(store), MemoryDisk(), leader_epoch=2, **settings) as log:
        first = await _fetch(log, server, 0, 1)
        warm = await _fetch(log, server, 1, BATCHES_COUNT)
        again = await _fetch(log, server, 0, BATCHES_COUNT)
    await store.aclose()
    both = _Fetched(
        first.count + warm.count,
        first.returned_bytes + warm.returned_bytes,
        first.requests + warm.requests,
        first.sent_bytes + warm.sent_bytes,
    )
    found = {"first fetch": first, "warm": warm, "first pass": both, "second pass": again}
    return {name: fetched.figures() for name, fetched in found.items()}


@attrs.frozen
class _Fetched:
    """Fetches, and the requests that the server saw."""

    count: int
    returned_bytes: int
    requests: int
    sent_bytes: int

    def figures(self) -> Mapping[str, float]:
        return {
            "fetches": self.count,
            "GETs": self.requests,
            "GETs per fetch": self.requests / self.count,
            "KiB per fetch": self.sent_bytes / self.count / 1024,
            "bytes / wanted": self.sent_bytes / self.returned_bytes,
        }


async def _fetch(log: MemoryLog, server: S3Server, first: int, end: int) -> _Fetched:
    """Fetch each batch by a fetch of its own."""
    counters = server.counters
    requests_before, sent_before, returned_bytes = counters.requests.total(), counters.bytes_sent, 0
    for offset in range(first, end):
        slices = await log.log.reader.read(log.partition(), offset, 1)
        assert slices is not None
        returned_bytes += slices.size_bytes
        slices.release()
    return _Fetched(
        end - first,
        returned_bytes,
        counters.requests.total() - requests_before,
        counters.bytes_sent - sent_before,
    )


def _store(server: S3Server) -> S3Store:
    return S3Store(S3Settings(bucket="bucket", endpoint=server.endpoint, region="us-east-1"), credentials=CREDENTIALS)


CLAIM = Claim(
    row="l6",
    source="klite, segments",
    claim="the first read fetches the last 64 KB, the index is kept; then one ranged GET a fetch, of exactly the bytes",
    source_figure="1 GET",
    run=run,
)
