"""What the object store did, in numbers: operations by kind and outcome, their latency, bytes; and all store metrics.

`MeteredStore` goes directly around the store that talks to the network or disk, so that a latency is the store's own:
waits for the limiter and backoff are not in it, and each attempt counts.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.errors import StoreError
from kafscale.metrics import Counter, CounterFamily, HistogramFamily, Metrics
from kafscale.store.base import ObjectInfo, ObjectPart, ObjectStore


@attrs.frozen(eq=False, repr=False)
class StoreMetrics:
    """The metric families of the object store and of its wrappers; made once for a broker."""

    registry: Metrics
    operations: CounterFamily
    seconds: HistogramFamily
    wait_seconds: HistogramFamily
    bytes: CounterFamily
    retries: CounterFamily
    lost_replies: CounterFamily
    skipped_prefetches: Counter
    hedges: CounterFamily

    @classmethod
    def register(cls, metrics: Metrics) -> StoreMetrics:
        """Add the families to the registry. Gauges of the limiter are added by the limiter."""
        return cls(
            metrics,
            metrics.counter("kafscale_store_operations_total", "Attempts at the store", "operation", "outcome"),
            metrics.histogram(
                "kafscale_store_operation_seconds", "Latency of attempts at the store", "operation", "outcome"
            ),
            metrics.histogram("kafscale_store_wait_seconds", "Time that operations waited for the limiter", "class"),
            metrics.counter("kafscale_store_bytes_total", "Bytes of objects read and written", "direction"),
            metrics.counter("kafscale_store_retries_total", "Attempts after the first", "operation", "reason"),
            metrics.counter(
                "kafscale_store_lost_replies_total",
                "Conditional writes whose reply was lost, by what reading back found (ours, not_ours)",
                "resolution",
            ),
            metrics.counter("kafscale_store_prefetches_skipped_total", "Prefetches that found no place free").of(),
            metrics.counter(
                "kafscale_store_hedges_total", "Second attempts at slow uploads (started, won, no_place)", "event"
            ),
        )

    @contextmanager
    def measured(self, operation: str) -> Iterator[None]:
        """Count and time one attempt at the store, which the block makes."""
        started = trio.current_time()
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        except StoreError as exc:
            outcome = outcome_of(exc)
            raise
        except trio.Cancelled:
            outcome = "cancelled"
            raise
        finally:
            self.operations.of(operation, outcome).value += 1
            self.seconds.of(operation, outcome).observe(trio.current_time() - started)


@attrs.define(eq=False, repr=False)
class MeteredStore:
    """An `ObjectStore` that counts and times what another one does."""

    store: ObjectStore
    _metrics: StoreMetrics

    async def get(self, key: str) -> ObjectPart:
        with self._metrics.measured("get"):
            return self._read(await self.store.get(key))

    async def get_range(self, key: str, start: int, length_bytes: int) -> ObjectPart:
        with self._metrics.measured("get_range"):
            return self._read(await self.store.get_range(key, start, length_bytes))

    async def get_tail(self, key: str, length_bytes: int) -> ObjectPart:
        with self._metrics.measured("get_tail"):
            return self._read(await self.store.get_tail(key, length_bytes))

    async def head(self, key: str) -> ObjectInfo:
        with self._metrics.measured("head"):
            return await self.store.head(key)

    async def put(self, key: str, parts: Sequence[Buffer]) -> str:
        with self._metrics.measured("put"):
            return self._written(parts, await self.store.put(key, parts))

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        with self._metrics.measured("put_if_absent"):
            return self._written(parts, await self.store.put_if_absent(key, parts))

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> str:
        with self._metrics.measured("put_if_match"):
            return self._written(parts, await self.store.put_if_match(key, parts, etag))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        async with aclosing(self.store.list(prefix, start_after=start_after)) as pages:
            while True:
                with self._metrics.measured("list"):
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        with self._metrics.measured("delete"):
            await self.store.delete(keys)

    async def aclose(self) -> None:
        await self.store.aclose()

    def _read(self, part: ObjectPart) -> ObjectPart:
        self._metrics.bytes.of("read").value += len(part.data)
        return part

    def _written(self, parts: Sequence[Buffer], etag: str) -> str:
        self._metrics.bytes.of("written").value += size_of(parts)
        return etag


def outcome_of(error: StoreError) -> str:
    """The error's name as a label's value: `not_found` for NotFound."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
