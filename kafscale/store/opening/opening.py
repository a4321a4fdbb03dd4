"""Opens the store that the settings name, with its wrappers, once for each class of work.

Retrying is around the limiter, so that backoff holds no token; metering is innermost, so that a latency is the store's
own. Hedging and parts are for S3, and hedging only for uploads that produces wait for. The S3 client is a sixth of a
broker's imports, so only a bucket in S3 imports it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import attrs
import trio

from kafscale.config import Settings
from kafscale.errors import StartupError
from kafscale.metrics import Metrics
from kafscale.store.base import MultipartUploads, ObjectStore
from kafscale.store.file.open_files import FileSource
from kafscale.store.file.store import FileStore
from kafscale.store.memory import MemoryStore
from kafscale.store.opening.probe import check_listable, check_usable, startup_errors
from kafscale.store.opening.views import StoreViews
from kafscale.store.paths import system_key
from kafscale.store.wrappers.hedging import HedgingStore
from kafscale.store.wrappers.limiter import LimitedStore, PrefetchStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import MeteredStore, StoreMetrics
from kafscale.store.wrappers.multipart import MultipartStore
from kafscale.store.wrappers.reach import PROBES_MAX_COUNT, Reach
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy

STARTUP_RETRY_SECONDS = 10.0  # a store that does not answer for this long is reported instead of waited for
CLOSE_SECONDS = 2.0  # the bound on closing connections at the end of a command


async def open_store(settings: Settings, metrics: Metrics) -> StoreViews:
    """Connect, create the bucket if asked for, and check the store. Raises StartupError of one line."""
    store_metrics = StoreMetrics.register(metrics)
    with startup_errors():
        raw = await open_raw_store(settings)
    starting = RetryingStore(MeteredStore(raw, store_metrics), _starting_policy(settings), Random(), store_metrics)
    try:
        if settings.store.scheme == "s3":
            await _prepare_s3(raw, starting, settings, metrics)
        await check_usable(starting)
    except BaseException:
        await raw.aclose()
        raise
    return wrap_store(raw, settings, store_metrics)


def wrap_store(raw: ObjectStore, settings: Settings, metrics: StoreMetrics) -> StoreViews:
    limiter = StoreLimiter(settings.s3_concurrency, metrics)
    metered = MeteredStore(raw, metrics)
    probe = partial(metered.head, system_key("probe", "reach", namespace=settings.namespace))
    at = f" at {settings.s3_endpoint}" if settings.s3_endpoint else ""
    reach = Reach(f"the object store {settings.store}{at}", probe)
    reach.register(metrics.registry)
    retrying = RetryingStore(metered, _policy(settings), Random(), metrics, reach)

    hedged: ObjectStore = metered
    uploads = raw if isinstance(raw, MultipartUploads) else None  # S3 is
    if uploads and settings.s3_hedge_percentile:  # a local disk would only get slower by it
        hedged = HedgingStore(metered, limiter, metrics, settings.s3_hedge_percentile)

    def view_of(work_class: WorkClass, store: ObjectStore) -> ObjectStore:
        view = attrs.evolve(retrying, store=LimitedStore(store, limiter, work_class))
        if not uploads or not settings.s3_multipart_bytes:
            return view
        return MultipartStore(
            store=view,
            uploads=uploads,
            limiter=limiter,
            work_class=work_class,
            metrics=metrics,
            threshold_bytes=settings.s3_multipart_bytes,
        )

    return StoreViews(
        acknowledge=view_of(WorkClass.ACKNOWLEDGE, hedged),
        fetch=view_of(WorkClass.FETCH, metered),
        background=view_of(WorkClass.BACKGROUND, metered),
        prefetch=PrefetchStore(metered, limiter, metrics.skipped_prefetches),
        files=FileSource(raw.directory, metrics) if isinstance(raw, FileStore) else None,
        reach=reach,
    )


def _policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(deadline_seconds=settings.limits.store_retry_deadline_seconds)


def _starting_policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(deadline_seconds=min(STARTUP_RETRY_SECONDS, settings.limits.store_retry_deadline_seconds))


@asynccontextmanager
async def store_of_command(settings: Settings) -> AsyncIterator[ObjectStore]:
    """Open the store for a command, without creating anything. Raises StartupError if it can't be listed."""
    url = settings.store
    if url.scheme == "memory":
        raise StartupError("--store memory: holds nothing outside of the broker's own process")
    if url.scheme == "file" and not await trio.Path(url.path).is_dir():
        raise StartupError(f"there is no bucket at {url}: give the --store or --data-dir of a broker")
    metrics = StoreMetrics.register(Metrics())
    with startup_errors():
        raw = await open_raw_store(settings)
    try:
        limited = LimitedStore(MeteredStore(raw, metrics), StoreLimiter(settings.s3_concurrency, metrics))
        starting = RetryingStore(limited, _starting_policy(settings), Random(), metrics)
        with startup_errors():
            await check_listable(starting)
        yield attrs.evolve(starting, policy=_policy(settings))
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await raw.aclose()


async def open_raw_store(settings: Settings) -> ObjectStore:
    """Open the store without wrappers or checks. Raises StoreError."""
    url = settings.store
    if url.scheme == "memory":
        return MemoryStore(max_bytes=url.max_bytes)
    if url.scheme == "file":
        return await FileStore.open(url.path)
    return _open_s3(settings)


def _open_s3(settings: Settings) -> ObjectStore:
    from kafscale.store.s3.store import S3Settings, S3Store

    timeout_seconds = settings.limits.store_timeout_seconds
    of_bucket = S3Settings(
        bucket=settings.store.bucket,
        prefix=settings.store.prefix,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        path_style=settings.s3_path_style,
        ca_file=None if settings.s3_ca_file is None else str(settings.s3_ca_file),
        encryption=settings.s3_sse,
        max_connections=settings.s3_concurrency + PROBES_MAX_COUNT if settings.s3_concurrency else math.inf,
        read_timeout_seconds=timeout_seconds,
        write_timeout_seconds=timeout_seconds,
    )
    return S3Store(of_bucket)


async def _prepare_s3(raw: ObjectStore, starting: RetryingStore, settings: Settings, metrics: Metrics) -> None:
    from kafscale.store.s3.store import S3Store

    assert isinstance(raw, S3Store)
    statistics = raw.statistics
    metrics.callback(
        "kafscale_store_connections_opened_total",
        "Connections opened to the store.",
        samples=lambda: [((), found.opened_count)] if (found := statistics()) else [],
        kind="counter",
    )
    if settings.s3_create_bucket:
        with startup_errors():
            await starting.retried("create_bucket", raw.create_bucket)
