"""Status and validation of a pipeline's mappings, by Spark, or without it, as Spark takes 20 s to start.

Without Spark, tables are those of a hadoop catalog of Iceberg in a local directory: `metadata/vN.metadata.json` has
schemas and snapshots, a snapshot names a list of manifests (Avro), and those the data files (Parquet). Other catalogs,
and tables with deletes, raise NeedsSpark. The columns of rows are those of `records.rows_of`, by the same checks; a
test compares the answers with Spark's. This module imports pyspark, and starts no JVM by itself.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import attrs
from pyspark.sql import SparkSession, types
from pyspark.sql.functions import col

from kafscale.errors import KafScaleError
from kafscale.spark.bucket.position import Json, Position
from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.pipeline.config import MARK, Encoding, Pipeline, TableMapping
from kafscale.spark.pipeline.document import MappingCheck
from kafscale.spark.pipeline.records import check_names, empty_rows, required, upsert_by
from kafscale.spark.pipeline.runner import Lag, behind_of, planner_of
from kafscale.spark.pipeline.schema import changes
from kafscale.spark.pipeline.snapshots import OFFSETS, Commit, newest
from kafscale.spark.pipeline.tables import format_of
from kafscale.spark.source.source import HEADERS

_METADATA_FILE: Final = re.compile(r"v(\d+)(\.gz)?\.metadata\.json(\.gz)?")
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DATA: Final = 0  # content of a manifest, and of a file; others are deletes
_DELETED: Final = 2  # status of a manifest's entry

SIMPLE_TYPES: Final[Mapping[str, Callable[[], types.DataType]]] = {
    "boolean": types.BooleanType,
    "int": types.IntegerType,
    "long": types.LongType,
    "float": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamptz": types.TimestampType,
    "timestamp": types.TimestampNTZType,
}


class NeedsSpark(Exception):
    """A table or value can't be read without Spark."""


@attrs.frozen
class DirectoryTables:
    """The tables below a directory, without Spark. Every method raises NeedsSpark."""

    warehouse: Path

    @classmethod
    def of(cls, pipeline: Pipeline) -> DirectoryTables | None:
        """Return the tables of a pipeline whose catalog is a local directory, without settings that may change it."""
        catalog = pipeline.catalog
        is_directory = catalog.type == "hadoop" and not catalog.properties and not pipeline.spark
        path = _local_path(catalog)
        return cls(path) if is_directory and path is not None else None

    def columns(self, mapping: TableMapping) -> types.StructType:
        return _columns_of(mapping)

    def exists(self, table: str) -> bool:
        return self._newest(table) is not None

    def commits(self, table: str) -> Iterator[Commit]:
        for snapshot in self._ancestry(table):
            told = {name: value for name, value in snapshot.get("summary", {}).items() if name != "operation"}
            yield Commit(
                id=int(snapshot["snapshot-id"]),
                parent_id=snapshot.get("parent-snapshot-id"),
                timestamp_ms=int(snapshot["timestamp-ms"]),
                summary=partial(dict, told if OFFSETS in told else {}),
            )

    def _ancestry(self, table: str) -> Iterator[Mapping[str, Any]]:
        metadata = self._metadata(table)
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
        found = snapshots.get(metadata.get("current-snapshot-id"))
        while found is not None:
            yield found
            found = snapshots.get(found.get("parent-snapshot-id"))

    def schema(self, table: str) -> types.StructType:
        metadata = self._metadata(table)
        current = metadata.get("current-schema-id")
        schema = next((schema for schema in metadata.get("schemas", ()) if schema.get("schema-id") == current), None)
        if schema is None:
            raise NeedsSpark(f"{table} has no schema {current}")
        return _struct(schema)

    def count(self, table: str, column: str, value: str) -> int:
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
        current = next(self._ancestry(table), None)
        if current is None:
            return
        for manifest in _avro(current.get("manifest-list", "")):
            if manifest.get("content", _DATA) != _DATA:
                raise NeedsSpark(f"{table} has deletes")
            for entry in _avro(manifest["manifest_path"]):
                file = entry["data_file"]
                if file.get("content", _DATA) != _DATA or file["file_format"].upper() != "PARQUET":
                    raise NeedsSpark(f"{table} has files other than rows of Parquet")
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
        raise NeedsSpark(f"{location} is not a file of this machine")
    return Path(location)


def _avro(location: str) -> Iterator[dict[str, Any]]:
    import fastavro

    try:
        with _path_of(location).open("rb") as file:
            for entry in fastavro.reader(file):
                assert isinstance(entry, dict)
                yield entry
    except (OSError, ValueError, LookupError) as exc:
        raise NeedsSpark(f"{location} can't be read: {exc}") from exc


def _struct(fields: Mapping[str, Any]) -> types.StructType:
    return types.StructType(
        [types.StructField(field["name"], _type(field["type"]), not field["required"]) for field in fields["fields"]]
    )


def _type(type_: Any) -> types.DataType:
    if isinstance(type_, str):
        return simple_type(type_)
    kind = type_["type"]
    if kind == "struct":
        return _struct(type_)
    if kind == "list":
        return types.ArrayType(_type(type_["element"]), not type_["element-required"])
    if kind == "map":
        return types.MapType(_type(type_["key"]), _type(type_["value"]), not type_["value-required"])
    raise NeedsSpark(f"there is no type {kind} here")


def simple_type(name: str) -> types.DataType:
    if name in SIMPLE_TYPES:
        return SIMPLE_TYPES[name]()
    found = _DECIMAL.fullmatch(name)
    if found is None:
        raise NeedsSpark(f"there is no type {name} here")
    return types.DecimalType(int(found[1]), int(found[2]))


_OF_METADATA: Final[Mapping[str, types.DataType]] = {
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestamp_ms": types.LongType(),
    "timestamp_type": types.IntegerType(),
    "record_id": types.StringType(),
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "headers": HEADERS.dataType,
    "headers_json": types.StringType(),
}


def _columns_of(mapping: TableMapping) -> types.StructType:
    """Return the columns of the mapping's rows. Raises ConfigError, and NeedsSpark where values decide on them."""
    sides = {side: encoding for side, encoding in (("key", mapping.key), ("value", mapping.value)) if encoding}
    if mapping.fan_out is not None:
        raise NeedsSpark("a fan-out names tables by values")
    columns = [
        (name, _OF_METADATA[source]) for name, source in mapping.metadata_columns.items() if source in _OF_METADATA
    ]
    if len(columns) != len(mapping.metadata_columns):
        raise NeedsSpark("metadata of changes is in values")
    if mapping.deletes == MARK:
        columns.append((mapping.deleted_column, types.BooleanType()))
    of_side = {side: list(_side_columns(side, encoding)) for side, encoding in sides.items()}
    columns += [column for found in of_side.values() for column in found]
    names = [name for name, _ in columns]
    check_names(mapping, names)
    upsert_by(mapping, names, [name for name, _ in of_side.get("key", ())])
    needed = required(sides)
    return types.StructType([types.StructField(name, type_, name not in needed) for name, type_ in columns])


def _side_columns(side: str, encoding: Encoding) -> Iterator[tuple[str, types.DataType]]:
    if encoding.envelope is not None or encoding.by_registry:
        raise NeedsSpark("a schema, or an envelope, says what the columns are")
    if encoding.format != "json":
        yield encoding.column or side, types.BinaryType() if encoding.format == "bytes" else types.StringType()
        return
    for column in encoding.columns:
        name = column.type.lower()
        yield column.name, types.TimestampType() if name == "timestamp" else simple_type(name)


@attrs.frozen
class SparkTables:
    """The tables as a session sees them."""

    spark: SparkSession
    pipeline: Pipeline

    def columns(self, mapping: TableMapping) -> types.StructType:
        return empty_rows(self.spark, mapping, self.pipeline).columns

    def exists(self, table: str) -> bool:
        return format_of(self.spark, self.pipeline).exists(table)

    def schema(self, table: str) -> types.StructType:
        return self.spark.table(self.pipeline.full_name(table)).schema

    def commits(self, table: str) -> Iterator[Commit]:
        return format_of(self.spark, self.pipeline).commits(table)

    def count(self, table: str, column: str, value: str) -> int:
        return int(self.spark.table(self.pipeline.full_name(table)).where(col(column) == value).count())


Tables = DirectoryTables | SparkTables


@attrs.frozen(kw_only=True)
class MappingStatus:
    """The status of a mapping. Fields of the newest batch are None, or empty, without one.

    lag: the number of offsets of the bucket behind it; lag_bytes: their stored size; lag_seconds: the age of the first
    one, by its own time. dead_letters: records in the dead-letter table.
    """

    mapping: str
    table: str
    batch_id: int | None
    offsets: Json
    lag: int
    lag_bytes: int
    lag_seconds: float
    committed_ms: int | None
    snapshot_id: int | None
    dead_letters: int


def status(tables: Tables, pipeline: Pipeline) -> Sequence[MappingStatus]:
    """Return the status of all mappings. Raises ConfigError, StoreError, and errors of the tables."""
    return [_status(tables, pipeline, mapping) for mapping in pipeline.mappings]


def _status(tables: Tables, pipeline: Pipeline, mapping: TableMapping) -> MappingStatus:
    committed = newest(tables.commits(mapping.table), mapping.id) if tables.exists(mapping.table) else None
    end = Position() if committed is None else committed.end
    with closing(planner_of(pipeline, mapping)) as planner:
        lag = Lag.of(behind_of(planner, committed), committed)
    dead_letters = 0
    if mapping.dead_letters is not None and tables.exists(mapping.dead_letters):
        dead_letters = tables.count(mapping.dead_letters, "mapping", mapping.id)
    return MappingStatus(
        mapping=mapping.id,
        table=mapping.table,
        batch_id=None if committed is None else committed.batch_id,
        offsets=Position(offsets=end.offsets).to_json(),
        lag=lag.records,
        lag_bytes=lag.bytes,
        lag_seconds=lag.seconds,
        committed_ms=lag.committed_ms,
        snapshot_id=None if committed is None else committed.snapshot_id,
        dead_letters=dead_letters,
    )


def check(tables: Tables, pipeline: Pipeline) -> Iterator[MappingCheck]:
    """Check topics, columns and tables without writing anything. Raises NeedsSpark if the tables do."""
    for mapping in pipeline.mappings:
        for what, look in (("topics", _topics), ("columns", _columns), ("table", _table)):
            try:
                yield MappingCheck(mapping=mapping.id, what=what, found=look(tables, pipeline, mapping))
            except NeedsSpark:
                raise
            except KafScaleError as exc:
                yield MappingCheck(mapping=mapping.id, what=what, found=str(exc), ok=False)
            except Exception as exc:  # py4j's and pyspark's
                text = str(exc).strip() or type(exc).__name__
                yield MappingCheck(mapping=mapping.id, what=what, found=text.splitlines()[0], ok=False)


def _topics(_: Tables, pipeline: Pipeline, mapping: TableMapping) -> str:
    with closing(planner_of(pipeline, mapping)) as planner:
        logs = planner.logs()
    topics = sorted({topic for topic, _ in logs})
    return f"{_counted(len(topics), 'topic')}, {_counted(len(logs), 'partition')}: {', '.join(topics)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _columns(tables: Tables, _: Pipeline, mapping: TableMapping) -> str:
    columns = tables.columns(mapping)
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns.fields)


def _table(tables: Tables, _: Pipeline, mapping: TableMapping) -> str:
    declared = mapping.fan_out.tables.values() if mapping.fan_out else ()
    names = list(dict.fromkeys([mapping.table, *declared]))
    found = [_table_of(tables, mapping.into(table)) for table in names]
    return (
        found[0] if len(found) == 1 else "; ".join(f"{name} {state}" for name, state in zip(names, found, strict=True))
    )


def _table_of(tables: Tables, mapping: TableMapping) -> str:
    if not tables.exists(mapping.table):
        if not mapping.create:
            raise KafScaleError(f"there is no table {mapping.table}, and create is off")
        return "will be created"
    found = list(changes(tables.schema(mapping.table), tables.columns(mapping)))
    return f"is there, and will get {len(found)} changes" if found else "is there"
