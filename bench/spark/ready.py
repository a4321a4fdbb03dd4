"""A source in Python that has its rows at hand: it reads, checks and decodes nothing, and plans at once.

What it takes is Spark's own: to start a job, to call Python's workers, to take rows out of Arrow, and what the query
does with them. No source in Python is faster, whatever it reads from. This module imports pyspark, and Spark's workers
import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark.data import Shape
from kafscale.spark.bucket.decode import CHUNK_ROWS, COLUMN_TYPES
from kafscale.spark.source.source import SCHEMA
from kafscale.spark.workers.calls import ease_next_call

FORMAT = "ready"


class Rows(InputPartition):
    """The number of rows of a task."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class ReadyDataSource(DataSource):
    """`format("ready")`, with the options of `options_of`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.numbers = {name.lower(): int(value) for name, value in options.items() if value.isdecimal()}
        ease_next_call()

    @classmethod
    def name(cls) -> str:
        """See pyspark."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of Kafka's source."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query."""
        return ReadyReader(self.numbers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return ReadyStreamReader(self.numbers)


class _Reading:
    def __init__(self, numbers: Mapping[str, int]) -> None:
        self.numbers = numbers

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Pass the rows on."""
        ease_next_call()
        numbers, left = self.numbers, partition.count
        chunk = rows_at_hand(numbers["valuebytes"], numbers["batchrows"], numbers["timestampms"])
        while left:
            yield chunk if left >= len(chunk) else chunk.slice(0, left)
            left -= min(left, len(chunk))


class ReadyReader(_Reading, DataSourceReader):
    """Reads rows."""

    def partitions(self) -> list[InputPartition]:
        """Share them out."""
        ease_next_call()
        rows, tasks = self.numbers["rows"], self.numbers["tasks"]
        return [Rows(rows * (number + 1) // tasks - rows * number // tasks) for number in range(tasks)]


class ReadyStreamReader(_Reading, DataSourceStreamReader):
    """Gives a row for each micro-batch."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        super().__init__(numbers)
        self.count = 0

    def initialOffset(self) -> dict[str, int]:
        """Begin at 0."""
        return {"count": 0}

    def latestOffset(self) -> dict[str, int]:
        """Go on by one."""
        self.count += 1
        return {"count": self.count}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one task with the row."""
        return [Rows(1)]


@cache
def rows_at_hand(value_bytes: int, batch_rows: int, timestamp_ms: int) -> pa.RecordBatch:
    """Make some thousands of rows as those of a shape are, once in a process."""
    numbers = range(CHUNK_ROWS)
    columns = {
        "key": [b"key %06d" % (number % batch_rows) for number in numbers],
        "value": [os.urandom(value_bytes) for _ in numbers],
        "topic": ["ready"] * CHUNK_ROWS,
        "partition": [0] * CHUNK_ROWS,
        "offset": list(numbers),
        "timestamp": [timestamp_ms * 1000] * CHUNK_ROWS,
        "timestampType": [0] * CHUNK_ROWS,
    }
    arrays = [pa.array(columns[name], COLUMN_TYPES[name]) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, names=SCHEMA.names)


def options_of(shape: Shape, rows: int, timestamp_ms: int) -> Mapping[str, str]:
    """Return the options of a frame with this number of rows; the full number comes by four tasks."""
    numbers = {
        "rows": rows,
        "tasks": 4 if rows == shape.all_rows else 1,
        "valueBytes": shape.value_bytes,
        "batchRows": shape.batch_rows,
        "timestampMs": timestamp_ms,
    }
    return {name: str(number) for name, number in numbers.items()}
