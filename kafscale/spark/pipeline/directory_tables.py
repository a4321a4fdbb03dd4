"""Iceberg's tables of a hadoop catalog in a directory of this machine, looked at without Spark, whose start takes 20 s.

All that a look asks for is in files: `metadata/vN.metadata.json` has schemas and snapshots, a snapshot names a list of
manifests (Avro), those the data files (Parquet). What can't be read here raises NeedsSpark: other catalogs, and tables
with deletes. A test compares what is told with what Spark tells. This module imports pyspark, and starts no JVM.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import attrs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.pipeline.config import MARK, Encoding, Pipeline, TableMapping
from kafscale.spark.pipeline.records import check_names, required, upsert_by
from kafscale.spark.pipeline.snapshots import OFFSETS, Commit
from kafscale.spark.source.source import HEADERS

_METADATA_FILE: Final = re.compile(r"v(\d+)(\.gz)?\.metadata\.json(\.gz)?")
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DATA: Final = 0  # content of a manifest, and of a file; others are deletes
_DELETED: Final = 2  # status of a manifest's entry

SIMPLE_TYPES: Final[Mapping[str, Callable[[], DataType]]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamptz": TimestampType,
    "timestamp": TimestampNTZType,
}


class NeedsSpark(Exception):
    """The table or value can't be read without Spark."""


@attrs.frozen
class FoundSnapshot:
    """A snapshot in a table's metadata, as a commit."""

    fields: Mapping[str, Any]

    @property
    def id(self) -> int:
        """Iceberg's number of it."""
        return int(self.fields["snapshot-id"])

    @property
    def parent_id(self) -> int | None:
        """The number of the one before it."""
        return self.fields.get("parent-snapshot-id")

    @property
    def timestamp_ms(self) -> int:
        """Return when it was committed."""
        return int(self.fields["timestamp-ms"])

    def summary(self) -> Mapping[str, str]:
        """Return its summary, if it is a batch's."""
        told = {name: value for name, value in self.fields.get("summary", {}).items() if name != "operation"}
        return told if OFFSETS in told else {}


@attrs.frozen
class DirectoryTables:
    """The tables below a directory. All calls raise NeedsSpark."""

    warehouse: Path

    @classmethod
    def of(cls, pipeline: Pipeline) -> DirectoryTables | None:
        """Return the tables of a pipeline; None where its catalog is no directory of this machine, or settings may
        make it another one.
        """
        catalog = pipeline.catalog
        is_directory = catalog.type == "hadoop" and not catalog.properties and not pipeline.spark
        path = _local_path(catalog)
        return cls(path) if is_directory and path is not None else None

    def exists(self, table: str) -> bool:
        """Tell whether there is such a table."""
        return self._newest(table) is not None

    def commits(self, table: str) -> Iterator[Commit]:
        """Iterate over the current snapshot of a table, its parent and so on."""
        metadata = self._metadata(table)
        snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
        found = snapshots.get(metadata.get("current-snapshot-id"))
        while found is not None:
            yield FoundSnapshot(found)
            found = snapshots.get(found.get("parent-snapshot-id"))

    def schema(self, table: str) -> StructType:
        """Return the columns of a table as Spark has them."""
        metadata = self._metadata(table)
        current = metadata.get("current-schema-id")
        schema = next((each for each in metadata.get("schemas", ()) if each.get("schema-id") == current), None)
        if schema is None:
            raise NeedsSpark(f"{table} has no schema {current}")
        return _struct(schema)

    def count(self, table: str, column: str, value: str) -> int:
        """Count the rows of a table that have a value in a column."""
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.parquet

        found = 0
        for path in self._data_files(table):
            try:
                values = pyarrow.parquet.read_table(path, columns=[column], partitioning=None)[column]
            except (OSError, pa.ArrowException, LookupError) as exc:
                raise NeedsSpark(f"{path} can't be read: {exc}") from exc
            found += pyarrow.compute.sum(pyarrow.compute.equal(values, value)).as_py() or 0
        return found

    def _data_files(self, table: str) -> Iterator[Path]:
        current = next(self.commits(table), None)
        if current is None:
            return
        assert isinstance(current, FoundSnapshot)
        for manifest in _avro(current.fields.get("manifest-list", "")):
            if manifest.get("content", _DATA) != _DATA:
                raise NeedsSpark(f"{table} has deletes")
            for entry in _avro(manifest["manifest_path"]):
                file = entry["data_file"]
                if file.get("content", _DATA) != _DATA or file["file_format"].upper() != "PARQUET":
                    raise NeedsSpark(f"{table} has files that are no rows of Parquet")
                if entry["status"] != _DELETED:
                    yield _path_of(file["file_path"])

    def _metadata(self, table: str) -> Mapping[str, Any]:
        path = self._newest(table)
        if path is None:
            raise NeedsSpark(f"there is no table {table}")
        try:
            data = path.read_bytes()
            found: Mapping[str, Any] = json.loads(gzip.decompress(data) if ".gz" in path.name else data)
        except (OSError, EOFError, ValueError) as exc:
            raise NeedsSpark(f"{path} can't be read: {exc}") from exc
        return found

    def _newest(self, table: str) -> Path | None:
        directory = self.warehouse.joinpath(*table.split("."), "metadata")
        try:
            versions = {
                int(found[1]): path for path in directory.iterdir() if (found := _METADATA_FILE.fullmatch(path.name))
            }
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise NeedsSpark(f"{directory} can't be listed: {exc}") from exc
        return versions[max(versions)] if versions else None


def _local_path(catalog: CatalogOptions) -> Path | None:
    warehouse = catalog.warehouse or ""
    if warehouse.startswith("file:"):
        return _path_of(warehouse)
    return None if "://" in warehouse else Path(warehouse)


def _path_of(location: str) -> Path:
    """Read a path or a file: URL, which Hadoop writes with one slash or three. Raises NeedsSpark."""
    if location.startswith("file:"):
        return Path("/" + unquote(location.removeprefix("file:")).lstrip("/"))
    if "://" in location:
        raise NeedsSpark(f"{location} is no file of this machine")
    return Path(location)


def _avro(location: str) -> Iterator[dict[str, Any]]:
    import fastavro

    try:
        with _path_of(location).open("rb") as file:
            for each in fastavro.reader(file):
                assert isinstance(each, dict)
                yield each
    except (OSError, ValueError, LookupError) as exc:
        raise NeedsSpark(f"{location} can't be read: {exc}") from exc


def _struct(fields: Mapping[str, Any]) -> StructType:
    return StructType(
        [StructField(each["name"], _type(each["type"]), not each["required"]) for each in fields["fields"]]
    )


def _type(type_: Any) -> DataType:
    """Return Spark's type for one of Iceberg's, as its JSON writes it. Raises NeedsSpark."""
    if isinstance(type_, str):
        return simple_type(type_)
    kind = type_["type"]
    if kind == "struct":
        return _struct(type_)
    if kind == "list":
        return ArrayType(_type(type_["element"]), not type_["element-required"])
    if kind == "map":
        return MapType(_type(type_["key"]), _type(type_["value"]), not type_["value-required"])
    raise NeedsSpark(f"there is no type {kind} here")


def simple_type(name: str) -> DataType:
    """Return Spark's type for a name of one of Iceberg's that is neither struct, list nor map. Raises NeedsSpark."""
    if name in SIMPLE_TYPES:
        return SIMPLE_TYPES[name]()
    found = _DECIMAL.fullmatch(name)
    if found is None:
        raise NeedsSpark(f"there is no type {name} here")
    return DecimalType(int(found[1]), int(found[2]))


_OF_METADATA: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ms": LongType(),
    "timestamp_type": IntegerType(),
    "record_id": StringType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": HEADERS.dataType,
    "headers_json": StringType(),
}


def simple_columns(mapping: TableMapping) -> StructType:
    """Return the columns of the mapping's rows. Raises ConfigError, and NeedsSpark for values that are not simple."""
    sides = {side: encoding for side, encoding in (("key", mapping.key), ("value", mapping.value)) if encoding}
    if mapping.fan_out is not None:
        raise NeedsSpark("a fan-out names tables by values")
    columns = [
        (name, _OF_METADATA[source]) for name, source in mapping.metadata_columns.items() if source in _OF_METADATA
    ]
    if len(columns) != len(mapping.metadata_columns):
        raise NeedsSpark("metadata of changes is in values")
    if mapping.deletes == MARK:
        columns.append((mapping.deleted_column, BooleanType()))
    of_side = {side: list(_columns(side, encoding)) for side, encoding in sides.items()}
    columns += [each for found in of_side.values() for each in found]
    names = [name for name, _ in columns]
    check_names(mapping, names)
    upsert_by(mapping, names, [name for name, _ in of_side.get("key", ())])
    needed = required(sides)
    return StructType([StructField(name, type_, name not in needed) for name, type_ in columns])


def _columns(side: str, encoding: Encoding) -> Iterator[tuple[str, DataType]]:
    if encoding.envelope is not None or encoding.by_registry:
        raise NeedsSpark("a schema, or an envelope, says what the columns are")
    if encoding.format != "json":
        yield encoding.column or side, BinaryType() if encoding.format == "bytes" else StringType()
        return
    for each in encoding.columns:
        name = each.type.lower()
        yield each.name, TimestampType() if name == "timestamp" else simple_type(name)
