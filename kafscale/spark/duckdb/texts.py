"""Rows of a result as Spark writes them: as text, by a CAST to STRING, and as JSON, by its to_json.

Floating-point numbers are written as in Java, times in UTC; bytes in a struct or a list are taken for UTF-8 in text,
and are base64 in JSON. A writer is made once for a type, and called for each value other than null.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kafscale.errors import QueryError
from kafscale.spark.duckdb.kinds import NotAlike
from kafscale.spark.sql.answers import Cells, csv_line, unique

Write = Callable[[Any], str]

_CONTROLS = re.compile(r"\\u00([0-9a-f]{2})")
_YEAR_MAX = 9999


def text_of(type_: pa.DataType) -> Write:
    return _bytes_text if type_ == pa.binary() else _text(type_)


def json_of(type_: pa.DataType) -> Write:
    if pa.types.is_struct(type_):
        fields = [(field.name, _json_name(field.name), json_of(field.type)) for field in type_]
        return lambda value: _joined(
            "{", ",", "}", [f"{key}:{write(value[name])}" for name, key, write in fields if value[name] is not None]
        )
    if pa.types.is_list(type_):
        element = json_of(type_.value_type)
        return lambda value: _joined("[", ",", "]", ["null" if inner is None else element(inner) for inner in value])
    if pa.types.is_map(type_):
        key_text, item = _text(type_.key_type), json_of(type_.item_type)
        return lambda value: _joined(
            "{", ",", "}", [f"{_json_name(key_text(key))}:{item(inner)}" for key, inner in value if inner is not None]
        )
    return _json(type_)


def values_of(column: pa.Array) -> Sequence[Any]:
    """Return the values of a column for the writers. Times are numbers of their unit, as every one is possible."""
    return list(column.cast(_numeric(column.type)).to_pylist())


def _numeric(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _numeric(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_numeric(type_.key_type), _numeric(type_.item_type))
    return pa.list_(pa.field(type_.value_field.name, _numeric(type_.value_type))) if pa.types.is_list(type_) else type_


def _text(type_: pa.DataType) -> Write:
    if pa.types.is_struct(type_):
        fields = [(field.name, _text(field.type)) for field in type_]
        return lambda value: _joined("{", ", ", "}", [_or_null(write, value[name]) for name, write in fields])
    if pa.types.is_list(type_):
        element = _text(type_.value_type)
        return lambda value: _joined("[", ", ", "]", [_or_null(element, inner) for inner in value])
    if pa.types.is_map(type_):
        key_text, item = _text(type_.key_type), _text(type_.item_type)
        return lambda value: _joined(
            "{", ", ", "}", [f"{key_text(k)} -> {_or_null(item, inner)}" for k, inner in value]
        )
    return _scalar_text(type_)


def _scalar_text(type_: pa.DataType) -> Write:
    if pa.types.is_boolean(type_):
        return lambda value: "true" if value else "false"
    if pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_null(type_) or type_ == pa.string():
        return str
    if pa.types.is_floating(type_):
        return _java if type_ == pa.float64() else lambda value: _java(value, float(str(np.float32(value))))
    if pa.types.is_decimal(type_):
        return lambda value: format(value, "f")
    if type_ == pa.binary():
        return lambda value: value.decode("utf-8", "replace")
    if pa.types.is_timestamp(type_):
        return lambda value: _time(value, type_.unit, " ")
    raise NotAlike(f"{type_} is shown by Spark in its own way")


def _json(type_: pa.DataType) -> Write:
    if type_ == pa.string():
        return _json_name
    if pa.types.is_floating(type_):
        number = _scalar_text(type_)
        return lambda value: number(value) if np.isfinite(value) else f'"{number(value)}"'
    if type_ == pa.binary():
        return lambda value: f'"{b64encode(value).decode()}"'
    if pa.types.is_timestamp(type_):
        zone = "Z" if type_.tz is not None else ""
        return lambda value: f'"{_time(value, type_.unit, "T")}{zone}"'
    if pa.types.is_date(type_):
        return lambda value: f'"{value}"'
    if pa.types.is_decimal(type_):
        return lambda value: str(Decimal(value))
    return _scalar_text(type_)


def _java(value: float, shown: float | None = None) -> str:
    """Write `shown`, or the value, as Java's Double.toString does: Python's shortest digits, with Java's exponent."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    sign, digits, exponent = Decimal(repr(value if shown is None else shown)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent if text != "0" else 1  # how many digits are before it
    minus = "-" if sign else ""
    if text == "0":
        return f"{minus}0.0"
    if not -3 < point <= 7:  # below 0.001, or from 10,000,000 on
        return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    return f"{minus}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"


def _time(value: int, unit: str, between: str) -> str:
    """Write a time without trailing zeros in text, and with milliseconds in JSON."""
    moment: Any = np.array([value], "int64").view(f"datetime64[{unit}]")[0]
    date, _, clock = str(np.datetime_as_string(moment, unit="us")).partition("T")
    year = int(date[: date.index("-", 1)])
    if not 0 <= year <= _YEAR_MAX:
        date = f"{'+' if year > 0 else ''}{date}"
    whole, _, fraction = clock.partition(".")
    if between == "T":
        return f"{date}T{whole}.{fraction[:3]}"
    fraction = fraction.rstrip("0")
    return f"{date} {whole}.{fraction}" if fraction else f"{date} {whole}"


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex().upper()}"


def _json_name(text: str) -> str:
    """Write a string as Jackson does: not escaped outside of ASCII, controls in capitals."""
    written = json.dumps(text, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u00{found[1].upper()}", written) if "\\u00" in written else written


def _or_null(write: Write, value: Any) -> str:
    return "null" if value is None else write(value)


def _joined(opening: str, between: str, closing: str, parts: Sequence[str]) -> str:
    return opening + between.join(parts) + closing


PARQUET_FILE = "part-00000.parquet"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DuckDBAnswer:
    """Rows of DuckDB, by batches. Columns go by place, as names may repeat."""

    columns: Sequence[str]
    types: Sequence[pa.DataType]
    batches: Iterable[pa.RecordBatch]
    close: Callable[[], None] = attrs.field(default=lambda: None)

    def first_cells(self, max_rows: int) -> Cells:
        rows: list[Sequence[str | None]] = []
        for cells in self._texts():
            rows.append(cells)
            if len(rows) > max_rows:
                break
        return Cells(columns=self.columns, rows=rows[:max_rows], has_more=len(rows) > max_rows)

    def csv_lines(self) -> Iterator[str]:
        yield csv_line(self.columns)
        yield from map(csv_line, self._texts())

    def json_lines(self) -> Iterator[str]:
        fields = [_json_field(name, type_) for name, type_ in zip(unique(self.columns), self.types, strict=True)]
        for row in self._rows():
            parts = [field(value) for field, value in zip(fields, row, strict=True) if value is not None]
            yield "{" + ",".join(parts) + "}\n"

    def write_parquet(self, path: str) -> None:
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
    """Return the writer of an object's field; bytes that are not UTF-8 get another name."""
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
