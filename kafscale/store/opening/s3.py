"""Opens a bucket in S3. Imported only where the settings name one."""

from __future__ import annotations

import math

from kafscale.config import Settings
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.opening.probe import startup_errors
from kafscale.store.s3.store import S3Settings, S3Store
from kafscale.store.wrappers.reach import PROBES_MAX_COUNT
from kafscale.store.wrappers.retrying import RetryingStore


def open_s3(settings: Settings) -> S3Store:
    """The client of the bucket that the settings name. Connects to nothing yet."""
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


async def prepare_s3(raw: ObjectStore, starting: RetryingStore, settings: Settings, metrics: Metrics) -> None:
    """Show the pool's counts in the metrics, and create the bucket if that is asked for. Raises StartupError."""
    assert isinstance(raw, S3Store)
    _register_pool(raw, metrics)
    if settings.s3_create_bucket:
        with startup_errors():
            await starting.retried("create_bucket", raw.create_bucket)


def _register_pool(store: S3Store, metrics: Metrics) -> None:
    statistics = store.statistics
    metrics.callback(
        "kafscale_store_connections_opened_total",
        "Connections opened to the store.",
        samples=lambda: [((), found.opened_count)] if (found := statistics()) else [],
        kind="counter",
    )
