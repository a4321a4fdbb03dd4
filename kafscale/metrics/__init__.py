"""Metrics of brokers, supervisors and pipelines: what is counted, and the pages that Prometheus scrapes.

`families` counts, `formats` writes and negotiates the two formats of pages, `process` measures this process. Imports
only `kafscale.escaping` and the version.
"""

from kafscale.metrics.families import (
    LABEL_SETS_MAX_COUNT,
    LATENCY_BUCKETS_SECONDS,
    Callback,
    Counter,
    CounterFamily,
    Family,
    Histogram,
    HistogramFamily,
    Labels,
    Measured,
    Metrics,
    Sample,
)
from kafscale.metrics.formats import PageFormat

__all__ = [
    "LABEL_SETS_MAX_COUNT",
    "LATENCY_BUCKETS_SECONDS",
    "Callback",
    "Counter",
    "CounterFamily",
    "Family",
    "Histogram",
    "HistogramFamily",
    "Labels",
    "Measured",
    "Metrics",
    "PageFormat",
    "Sample",
]
