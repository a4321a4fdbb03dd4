"""What a statement gives, whichever engine has answered it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from kafscale.spark.sql.failures import spark_errors
from kafscale.spark.sql.formats import Cells, csv_lines, first_cells, json_lines, write_parquet
from kafscale.spark.sql.progress import Report, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Answer(Protocol):
    """Rows, which are given once, in one of these forms. Every method may raise QueryError and StoreError."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns; a command has none."""
        ...

    def first_cells(self, max_rows: int) -> Cells:
        """Return at most `max_rows` rows, all at once."""
        ...

    def csv_lines(self) -> Iterator[str]:
        """Iterate over lines, the first one of names. NULL is empty, and an empty string is quoted."""
        ...

    def json_lines(self) -> Iterator[str]:
        """Iterate over objects, one for each row; NULLs are left out. A name that repeats gets a number."""
        ...

    def write_parquet(self, path: str) -> None:
        """Write a directory of files, which must not be there. A name that repeats gets a number."""
        ...

    def close(self) -> None:
        """Let go of what is left."""
        ...


@attrs.frozen(eq=False, repr=False)
class SparkAnswer:
    """A DataFrame's rows; each method runs its query, and reports how much of it is read. See `Answer`."""

    frame: DataFrame
    report: Report | None = None

    @property
    def columns(self) -> Sequence[str]:
        """See `Answer`."""
        columns: Sequence[str] = self.frame.columns
        return columns

    def first_cells(self, max_rows: int) -> Cells:
        """See `Answer`."""
        with told(self.frame, self.report), spark_errors():
            return first_cells(self.frame, max_rows)

    def csv_lines(self) -> Iterator[str]:
        """See `Answer`."""
        with told(self.frame, self.report), spark_errors():
            yield from csv_lines(self.frame)

    def json_lines(self) -> Iterator[str]:
        """See `Answer`."""
        with told(self.frame, self.report), spark_errors():
            yield from json_lines(self.frame)

    def write_parquet(self, path: str) -> None:
        """See `Answer`."""
        with told(self.frame, self.report), spark_errors():
            write_parquet(self.frame, path)

    def close(self) -> None:
        """Do nothing."""
