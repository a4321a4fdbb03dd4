"""`LagListener` tells the lag of a stream behind the bucket after each batch. Imports pyspark.

    lag = LagListener(store="s3://my-bucket/kafka")
    spark.streams.addListener(lag)
    ...
    lag.lags["orders"].records_behind

Spark does not pass on the lag that a source in Python reports, so the listener looks into the bucket itself.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from kafscale.errors import BrokerUnavailable, KafkaError, StoreError
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.position import METRICS, Position, QueryLag, TopicPartition, measure
from kafscale.spark.source.options import (
    Freshness,
    Given,
    brokers_of,
    bucket_options,
    freshness_of,
    reads_committed_only,
)
from kafscale.store.paths import NAMESPACE_DEFAULT

SOURCE = "PythonMicroBatchStream"  # Spark tells no more of a source in Python than the class that drives it

logger = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """Tells the lag of all streams of a session that read one bucket; skips topics that the bucket lacks.

    on_lag: called with each new lag by Spark's listener thread, so it should be quick.
    options: `store`, `namespace`, `isolationLevel`, `s3Endpoint` and so on, as for the source. Raises ConfigError.
    """

    def __init__(self, on_lag: Callable[[QueryLag], None] | None = None, **options: str) -> None:
        given = Given(options)
        self.on_lag = on_lag
        namespace = given.text("namespace") or NAMESPACE_DEFAULT
        with_log = freshness_of(given) is Freshness.BUCKET
        asked = brokers_of(given)
        brokers = None if asked is None else asked.open()
        self._catalog = Catalog(bucket_options(given).open(), namespace, reads_committed_only(given), with_log, brokers)
        self._lags: Mapping[str, QueryLag] = {}

    @property
    def lags(self) -> Mapping[str, QueryLag]:
        """Return the newest lag of each running query, by its name or else its id. May be called by any thread."""
        return self._lags

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: nothing was read yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Measure the lag after a batch, or after some seconds without one. Logs errors."""
        progress = event.progress
        offsets: dict[TopicPartition, int] = {}
        metrics: dict[str, Any] = {}
        for source in progress.sources:
            if SOURCE in source.description:
                offsets |= _offsets(source.endOffset)
                metrics |= _metrics(source.latestOffset)
        if not offsets:
            return
        try:
            partitions = measure(self._catalog, offsets)
        except (StoreError, BrokerUnavailable, KafkaError) as exc:
            logger.warning("how far query %s is behind is not known: %s", progress.name or progress.id, exc)
            return
        self._tell(
            QueryLag(
                query_id=str(progress.id),
                query_name=progress.name,
                batch_id=progress.batchId,
                partitions=partitions,
                measured_ms=int(time.time() * 1000),
                metrics=metrics,
            )
        )

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: the query had read everything."""

    def onQueryTerminated(self, event: Any) -> None:
        self._lags = {name: lag for name, lag in self._lags.items() if lag.query_id != str(event.id)}

    def _tell(self, lag: QueryLag) -> None:
        name = lag.query_name or lag.query_id
        self._lags = {**self._lags, name: lag}
        logger.info(
            "query %s, which reads %s, is %d records (%d bytes, %.1f s) behind",
            name,
            lag.description,
            lag.records_behind,
            lag.bytes_behind,
            lag.seconds_behind,
        )
        if self.on_lag is not None:
            self.on_lag(lag)


def _metrics(text: str | None) -> Mapping[str, Any]:
    """Return the metrics of a KafScale source, from Spark 4.2 on."""
    try:
        return dict(json.loads(text or "{}").get(METRICS, {}))
    except (ValueError, AttributeError, TypeError):
        return {}


def _offsets(text: str | None) -> Mapping[TopicPartition, int]:
    """Return the offsets of a KafScale source; none of another source in Python."""
    try:
        return Position.parse(text or "{}").offsets
    except (ValueError, AttributeError):
        return {}
