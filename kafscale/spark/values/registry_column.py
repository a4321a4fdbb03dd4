"""`from_registry` decodes a column of framed values; further functions split and count good and bad values.

from kafscale.spark import from_registry, split_values

decoded = frame.withColumn("decoded", from_registry("value", "http://localhost:8081", subject="orders-value"))
orders, dead_letters = split_values(decoded, "decoded")
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql.functions import col, count, lit
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from kafscale.spark.values.decoder import Decoding
from kafscale.spark.values.options import ValueOptions
from kafscale.spark.workers.calls import ease_next_call
from kafscale.values.registry import RegistryOptions


class RegistryReading(TypedDict, total=False):
    """The options of `ValueOptions` as keywords; subject or schema is needed."""

    format: str
    subject: str
    version: int | str
    schema: str
    message: str
    validate: bool


def from_registry(column: Column | str, registry: RegistryOptions | str, **reading: Unpack[RegistryReading]) -> Column:
    """Return the values of a column, each decoded by its own writer schema, as struct<value, error>.

    registry: its URL (several by commas), or `RegistryOptions` with credentials.
    value: the reader schema's columns; null for an error or without a value (a tombstone).
    error: the error of a bad value, else null. A registry that does not answer fails the task.
    Raises ConfigError, UnknownSchema, RegistryError: the reader schema is looked up here.
    """
    if isinstance(registry, str):
        registry = RegistryOptions(urls=RegistryOptions.parse_urls(registry))
    decoding = Decoding.of(ValueOptions(registry=registry, **reading))

    def decode(values: pa.Array) -> pa.Array:
        ease_next_call()
        return decoding.decode(values)

    make_udf: Any = arrow_udf  # which kind it tells by the annotations above, though its own want it told
    result: Column = make_udf(decode, spark_type(decoding.type))(column)
    return result


def spark_type(type_: pa.DataType) -> DataType:
    """Return Spark's type of an Arrow type; timestamps without a zone are TIMESTAMP_NTZ."""
    return from_arrow_type(type_, prefer_timestamp_ntz=True)


def split_values(frame: DataFrame, column: str) -> tuple[DataFrame, DataFrame]:
    """Return the rows whose value was decoded, as `column`, and the bad rows, with the error's text as `column`.

    column: made by from_registry. Each of the two frames decodes when it is used: `cache()` or `persist()` the frame
    before if both are.
    """
    good = frame.where(col(f"{column}.error").isNull()).withColumn(column, col(f"{column}.value"))
    bad = frame.where(col(f"{column}.error").isNotNull()).withColumn(column, col(f"{column}.error"))
    return good, bad


def count_values(frame: DataFrame, column: str, observation: Observation | str) -> DataFrame:
    """Return the same rows, and count them on their way as `value_count` and `dead_letter_count`.

    observation: an Observation, which has both after the first action; for a stream a name, under which a
    StreamingQueryListener finds them in each progress.
    """
    return frame.observe(
        observation,
        count(lit(1)).alias("value_count"),
        count(col(f"{column}.error")).alias("dead_letter_count"),
    )
