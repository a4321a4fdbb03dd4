"""Rows of a result as text, CSV, JSON or Parquet. Spark makes the text of each value, as a CAST to STRING does.

UTF-8 bytes are shown as text, others as 0x… in hexadecimal. In JSON other bytes are base64 in a field that ends in
`_base64`, as `kafscale consume` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from kafscale.spark.sql.failures import spark_errors
from kafscale.spark.sql.progress import Report, told

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TO_QUOTE = re.compile(r'[",\r\n]')


@attrs.frozen(kw_only=True)
class Cells:
    """The first rows of a result. None is NULL. `has_more`: there are further rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    has_more: bool


def first_cells(frame: DataFrame, max_rows: int) -> Cells:
    """Run the query and return at most `max_rows` rows."""
    rows = [tuple(row) for row in _texts(frame).limit(max_rows + 1).collect()]
    return Cells(columns=frame.columns, rows=rows[:max_rows], has_more=len(rows) > max_rows)


def csv_lines(frame: DataFrame) -> Iterator[str]:
    """Run the query and yield CSV, first the names; NULL is empty, an empty string is quoted. Holds few rows."""
    yield csv_line(frame.columns)
    for row in _texts(frame).toLocalIterator(prefetchPartitions=True):
        yield csv_line(row)


def json_lines(frame: DataFrame) -> Iterator[str]:
    """Run the query and yield an object for each row, without NULLs. A repeated name gets a number. Holds few rows."""
    from pyspark.sql.functions import struct, to_json

    named = frame.toDF(*unique(frame.columns))
    fields = [field for name, type_ in named.dtypes for field in _json_fields(named, name, type_)]
    for row in named.select(to_json(struct(*fields))).toLocalIterator(prefetchPartitions=True):
        yield row[0] + "\n"


def write_parquet(frame: DataFrame, path: str) -> None:
    """Run the query and write a new directory of files. A repeated name gets a number."""
    frame.toDF(*unique(frame.columns)).write.mode("errorifexists").parquet(path)


def unique(names: Sequence[str]) -> Sequence[str]:
    """Return the names with `_2` and so on behind repeated ones; case does not tell names apart."""
    taken: set[str] = {name.lower() for name in names}
    used: set[str] = set()
    found = []
    for name in names:
        number, chosen = 2, name
        while chosen.lower() in used or (chosen != name and chosen.lower() in taken):
            number, chosen = number + 1, f"{name}_{number}"
        used.add(chosen.lower())
        found.append(chosen)
    return found


def _texts(frame: DataFrame) -> DataFrame:
    """Make texts of all columns, by position, as names may repeat."""
    types = [type_ for _, type_ in frame.dtypes]
    numbered = frame.toDF(*(f"c{index}" for index in range(len(types))))
    return numbered.select(*(_text(numbered[f"c{index}"], type_) for index, type_ in enumerate(types)))


def _text(column: Column, type_: str) -> Column:
    from pyspark.sql.functions import concat, hex, is_valid_utf8, lit, when

    text = column.cast("string")
    if type_ != "binary":
        return text
    return when(is_valid_utf8(text), text).otherwise(concat(lit("0x"), hex(column)))


def _json_fields(frame: DataFrame, name: str, type_: str) -> Sequence[Column]:
    from pyspark.sql.functions import base64, is_valid_utf8, when

    column = frame[f"`{name.replace('`', '``')}`"]
    if type_ != "binary":
        return [column.alias(name)]
    text = column.cast("string")
    return [
        when(is_valid_utf8(text), text).alias(name),
        when(~is_valid_utf8(text), base64(column)).alias(f"{name}_base64"),
    ]


def csv_line(cells: Sequence[str | None]) -> str:
    """Return a line of CSV."""
    return ",".join(map(_csv_cell, cells)) + "\n"


def _csv_cell(text: str | None) -> str:
    """Write a cell by RFC 4180; the csv module of older Pythons can't tell NULL from an empty string."""
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if not text or _TO_QUOTE.search(text) else text


class QueryAnswer(Protocol):
    """Rows, given once in one of these forms. Every method may raise QueryError and StoreError."""

    @property
    def columns(self) -> Sequence[str]:
        """Return the names of the columns; a command has none."""
        ...

    def first_cells(self, max_rows: int) -> Cells:
        """Return at most `max_rows` rows."""
        ...

    def csv_lines(self) -> Iterator[str]:
        """Yield lines, first the names. NULL is empty, an empty string is quoted."""
        ...

    def json_lines(self) -> Iterator[str]:
        """Yield an object for each row, without NULLs. A repeated name gets a number."""
        ...

    def write_parquet(self, path: str) -> None:
        """Write a new directory of files. A repeated name gets a number."""
        ...

    def close(self) -> None:
        """Release the rest of the rows."""
        ...


@attrs.frozen(eq=False, repr=False)
class SparkAnswer:
    """A DataFrame's rows; each method runs its query, and reports its progress. See `QueryAnswer`."""

    frame: DataFrame
    report: Report | None = None

    @property
    def columns(self) -> Sequence[str]:
        """See `QueryAnswer`."""
        columns: Sequence[str] = self.frame.columns
        return columns

    def first_cells(self, max_rows: int) -> Cells:
        """See `QueryAnswer`."""
        with told(self.frame, self.report), spark_errors():
            return first_cells(self.frame, max_rows)

    def csv_lines(self) -> Iterator[str]:
        """See `QueryAnswer`."""
        with told(self.frame, self.report), spark_errors():
            yield from csv_lines(self.frame)

    def json_lines(self) -> Iterator[str]:
        """See `QueryAnswer`."""
        with told(self.frame, self.report), spark_errors():
            yield from json_lines(self.frame)

    def write_parquet(self, path: str) -> None:
        """See `QueryAnswer`."""
        with told(self.frame, self.report), spark_errors():
            write_parquet(self.frame, path)

    def close(self) -> None:
        """Do nothing."""
