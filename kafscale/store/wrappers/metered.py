"""Metrics of the object store: operations by kind and outcome, their latency, bytes, and counts of the wrappers.

`MeteredStore` is directly around the store: each attempt counts, without waits for the limiter and between retries.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import trio

from kafscale.buffers import size_of
from kafscale.errors import StoreError
from kafscale.metrics import Counter, CounterFamily, HistogramFamily, Metrics
from kafscale.store.base import ForwardingStore, ObjectPart

T = TypeVar("T")

_PUTS = frozenset({"put", "put_if_absent", "put_if_match"})


@attrs.frozen(eq=False, repr=False)
class StoreMetrics:
    """The metric families of the object store and its wrappers; made once for a broker."""

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
        """Add the families to the registry. The limiter adds its own gauges."""
        return cls(
            metrics,
            metrics.counter(
                "kafscale_store_operations_total",
                "Attempts at the store, by operation and outcome.",
                "operation",
                "outcome",
            ),
            metrics.histogram(
                "kafscale_store_operation_seconds", "Latency of single attempts at the store.", "operation", "outcome"
            ),
            metrics.histogram(
                "kafscale_store_wait_seconds", "Time that operations waited for a place at the store.", "class"
            ),
            metrics.counter(
                "kafscale_store_bytes_total", "Bytes of objects, by direction: read or written.", "direction"
            ),
            metrics.counter(
                "kafscale_store_retries_total",
                "Attempts at the store after the first, by reason.",
                "operation",
                "reason",
            ),
            metrics.counter(
                "kafscale_store_lost_replies_total",
                "Conditional writes without a reply, by the result of reading back: ours or not_ours.",
                "resolution",
            ),
            metrics.counter(
                "kafscale_store_prefetches_skipped_total", "Reads ahead skipped because no place at the store was free."
            ).of(),
            metrics.counter(
                "kafscale_store_hedges_total",
                "Second attempts at slow uploads: started, won, or without a place (no_place).",
                "event",
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
class MeteredStore(ForwardingStore):
    _metrics: StoreMetrics

    async def perform(self, operation: str, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        with self._metrics.measured(operation):
            result = await call(*args)
        if isinstance(result, ObjectPart):
            self._metrics.bytes.of("read").value += len(result.data)
        elif operation in _PUTS:
            self._metrics.bytes.of("written").value += size_of(args[1])
        return result


def outcome_of(error: StoreError) -> str:
    """Return an error's name as a label value: `not_found` for NotFound."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
