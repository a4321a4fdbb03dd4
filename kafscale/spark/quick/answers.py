"""Rows that DuckDB gives, a batch at a time, in the forms that `kafscale sql` writes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from kafscale.errors import QueryError
from kafscale.spark.quick.texts import json_of, text_of, values_of
from kafscale.spark.sql.formats import Cells, csv_line, unique

PARQUET_FILE = "part-00000.parquet"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QuickAnswer:
    """See `kafscale.spark.sql.answers.Answer`. Columns are told apart by place, as names may repeat."""

    columns: Sequence[str]
    types: Sequence[pa.DataType]
    batches: Iterable[pa.RecordBatch]
    close: Callable[[], None] = attrs.field(default=lambda: None)

    def first_cells(self, max_rows: int) -> Cells:
        """Return at most `max_rows` rows. Raises QueryError, StoreError."""
        rows: list[Sequence[str | None]] = []
        for cells in self._texts():
            rows.append(cells)
            if len(rows) > max_rows:
                break
        return Cells(columns=self.columns, rows=rows[:max_rows], has_more=len(rows) > max_rows)

    def csv_lines(self) -> Iterator[str]:
        """Iterate over lines, the first one of names. Raises QueryError, StoreError."""
        yield csv_line(self.columns)
        yield from map(csv_line, self._texts())

    def json_lines(self) -> Iterator[str]:
        """Iterate over objects. A name that repeats gets a number. Raises QueryError, StoreError."""
        fields = [_json_field(name, type_) for name, type_ in zip(unique(self.columns), self.types, strict=True)]
        for row in self._rows():
            parts = [field(value) for field, value in zip(fields, row, strict=True) if value is not None]
            yield "{" + ",".join(parts) + "}\n"

    def write_parquet(self, path: str) -> None:
        """Write a directory with one file. Raises QueryError, StoreError."""
        import pyarrow.parquet as pq

        try:
            Path(path).mkdir(parents=True)
        except FileExistsError as exc:
            raise QueryError(f"Path {path} already exists: name a directory that is not there") from exc
        except OSError as exc:
            raise QueryError(f"{path} can't be made: {exc.strerror}") from exc
        names = unique(self.columns)
        schema = pa.schema([pa.field(name, type_) for name, type_ in zip(names, self.types, strict=True)])
        with pq.ParquetWriter(Path(path, PARQUET_FILE), schema) as writer:
            for batch in self.batches:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))

    def _texts(self) -> Iterator[Sequence[str | None]]:
        writers = [text_of(type_) for type_ in self.types]
        for row in self._rows():
            yield [None if value is None else write(value) for write, value in zip(writers, row, strict=True)]

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches:
            yield from zip(*(values_of(column) for column in batch.columns), strict=True)


def _json_field(name: str, type_: pa.DataType) -> Callable[[Any], str]:
    """Write a field of an object; bytes that are not UTF-8 in one of another name."""
    key, write = json_of(pa.string())(name), json_of(type_)
    if type_ != pa.binary():
        return lambda value: f"{key}:{write(value)}"
    text, other_key = json_of(pa.string()), json_of(pa.string())(f"{name}_base64")

    def field(value: bytes) -> str:
        try:
            return f"{key}:{text(value.decode())}"
        except UnicodeDecodeError:
            return f'{other_key}:"{b64encode(value).decode()}"'

    return field
