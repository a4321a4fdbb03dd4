"""The records of splits with the columns that a query wants, of which `decoded` is made of others.

It does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kafscale.errors import ConfigError
from kafscale.spark.bucket.splits import Split
from kafscale.spark.bucket.subscription import Subscription
from kafscale.spark.source.planning import Planner
from kafscale.spark.values.decoding import DECODED, Decoding
from kafscale.spark.values.options import ValueOptions


def read_records(
    planner: Planner,
    splits: Sequence[Split],
    columns: Sequence[str],
    decoding: Decoding | None,
) -> Iterator[pa.RecordBatch]:
    """Read some splits, one after the other. Raises DataLoss, StoreError, RegistryError."""
    for records in planner.reader(_stored(columns, decoding)).read_all(splits):
        if decoding is None:
            yield records
        else:
            yield from decoding.select(records, columns)


def _stored(columns: Sequence[str], decoding: Decoding | None) -> Sequence[str]:
    if decoding is None:
        return columns
    return list(dict.fromkeys([*(name for name in columns if name != DECODED), "value", "headers"]))


def topic_of_subject(values: ValueOptions, subscription: Subscription) -> str | None:
    """Return the topic whose subject has the reader schema, if none is given.

    Raises ConfigError unless that is one topic.
    """
    if values.subject is not None or values.schema is not None:
        return None
    topics = sorted({*subscription.topics, *(topic for topic, _ in subscription.assigned)})
    if len(topics) != 1:
        found = "a pattern" if subscription.pattern is not None else ", ".join(topics)
        raise ConfigError(
            f"valueFormat reads all values into one schema, and {found} may have many: say which by valueSubject or "
            "valueSchema, or load each topic by itself"
        )
    return topics[0]
