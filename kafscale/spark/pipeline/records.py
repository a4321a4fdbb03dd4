"""Makes rows of records: decodes keys and values, and adds the columns of the mapping and the error of a bad record.

A row has the table's columns, and further ones of its own: the record as it came, whether it is a tombstone, and the
error. Rows that Debezium has unwrapped (`ExtractNewRecordState`) have members that tell of their change, and are not
columns: `__deleted`, "true" for a deleted row, by `delete.tombstone.handling.mode=rewrite`; `__op`, `__ts_ms`, …, by
`add.fields`. A deletion may also be a tombstone, or both. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import attrs
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from kafscale.errors import ConfigError
from kafscale.spark.catalogs import quoted
from kafscale.spark.pipeline.config import (
    DEBEZIUM,
    DELETED,
    FLAGS,
    MARK,
    PAYLOAD,
    SEEN,
    TELLING,
    UNWRAPPED,
    Encoding,
    FanOut,
    Pipeline,
    RegistryConfig,
    TableMapping,
)
from kafscale.spark.pipeline.schema import exact_type, has_decimal, is_inexact, member, relaxed
from kafscale.spark.source.source import HEADERS, SCHEMA
from kafscale.spark.values.registry_column import RegistryReading, from_registry
from kafscale.values.credentials import RegistryCredentials

# Of a change that Debezium tells, as members of its decoded value, and their types.
CHANGES: Mapping[str, tuple[str, str]] = {
    "op": ("op", "string"),
    "change_ms": ("ts_ms", "bigint"),
    "transaction_id": ("transaction.id", "string"),
    "transaction_order": ("transaction.total_order", "bigint"),
    "transaction_collection_order": ("transaction.data_collection_order", "bigint"),
}
OPERATIONS = ("c", "r", "u", "d")  # create, read (of a snapshot), update, delete
DELETE, EMPTY = "d", "t"


def flag_fields() -> list[StructField]:
    types = {"string": StringType(), "bigint": LongType()}
    flags = [StructField(flag, types[CHANGES[name][1]]) for name, flag in FLAGS.items()]
    return [StructField(DELETED, StringType()), *flags]


def is_deleted(value: Column, type_: Any) -> Column:
    """Tell whether a row is marked as deleted; never null."""
    told = functions.lower(member(value, type_, DELETED, "string")) == "true"
    by_op = member(value, type_, FLAGS["op"], "string") == DELETE
    return functions.coalesce(told, functions.lit(False)) | functions.coalesce(by_op, functions.lit(False))


def without_flags(decoded: DataFrame, mapping: TableMapping, side: str) -> DataFrame:
    """Reduce the rows of a side to columns, with `op` besides, and add metadata of changes.

    Raises ConfigError for rows without any mark of a deletion.
    """
    struct: Any = decoded.schema[side].dataType
    type_: Any = struct["value"].dataType
    names = getattr(type_, "names", ())
    if DELETED not in names and FLAGS["op"] not in names:
        raise ConfigError(
            f"the mapping '{mapping.id}' has values with neither {DELETED} nor {FLAGS['op']}, so nothing tells that a "
            "row was deleted: have Debezium rewrite deletes, or leave out the envelope if tombstones tell"
        )
    value = functions.col(f"{side}.value")
    row = functions.struct(
        *(value.getField(name).alias(name) for name in names if name not in (DELETED, *FLAGS.values()))
    )
    op = functions.when(is_deleted(value, type_), functions.lit(DELETE)).otherwise(
        member(value, type_, FLAGS["op"], "string")
    )
    metadata = [
        member(value, type_, FLAGS[source], CHANGES[source][1]).alias(column)
        for column, source in mapping.metadata_columns.items()
        if source in FLAGS
    ]
    made = functions.struct(
        functions.when(value.isNotNull(), row).alias("value"),
        functions.col(f"{side}.error").alias("error"),
        op.alias("op"),
    )
    return decoded.select("*", *metadata).withColumn(side, made)


RECORD = "_kafscale_record"
TOMBSTONE = "_kafscale_tombstone"
ERROR = "_kafscale_error"
TABLE = "_kafscale_table"
TRUNCATE = "_kafscale_truncate"
OWN = (RECORD, TOMBSTONE, ERROR, TABLE, TRUNCATE)
_CORRUPT = "_kafscale_corrupt"
_END = "_kafscale_end"
_VALUE = "value"
_SIDES = {"value": "_kafscale_value", "key": "_kafscale_key"}

TABLE_NAME_MAX = 64  # characters of a value that a table is named by

METADATA: Mapping[str, str] = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestamp_ms": "unix_millis(timestamp)",
    "timestamp_type": "timestampType",
    "record_id": "concat_ws(':', topic, partition, offset)",
    "key": "key",
    "value": "value",
    "headers": "headers",
    "headers_json": "to_json(transform(headers, h -> named_struct('key', h.key, 'value', CAST(h.value AS STRING))))",
}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BatchRows:
    """Rows as a frame: the table's columns, RECORD, TOMBSTONE, ERROR, with a fan-out TABLE, for changes TRUNCATE.

    A tombstone deletes a row: a record without a value, or, of Debezium, a change or a row marked so. `upsert_by` are
    key columns; none for an append. can_fail: a record may be bad.
    """

    frame: DataFrame
    columns: StructType
    upsert_by: Sequence[str]
    can_fail: bool

    def good(self) -> DataFrame:
        return self.frame.where(functions.col(ERROR).isNull()) if self.can_fail else self.frame

    def bad(self) -> DataFrame:
        return self.frame.where(functions.col(ERROR).isNotNull())


def source_schema(mapping: TableMapping, pipeline: Pipeline) -> StructType:
    return StructType([*SCHEMA.fields, HEADERS]) if needs_headers(mapping, pipeline) else SCHEMA


def needs_headers(mapping: TableMapping, pipeline: Pipeline) -> bool:
    if pipeline.traces is not None:
        return True
    return any(name.startswith("headers") for name in mapping.metadata_columns.values())


def rows_of(frame: DataFrame, mapping: TableMapping, pipeline: Pipeline) -> BatchRows:
    """Make the rows of records, and look reader schemas up. Raises ConfigError, RegistryError, UnknownSchema."""
    sides = {side: encoding for side, encoding in (("key", mapping.key), ("value", mapping.value)) if encoding}
    has_changes = mapping.value.envelope == DEBEZIUM
    if has_changes:
        frame = frame.where(functions.col("value").isNotNull())  # Debezium's tombstones are for compaction alone
    decoded = frame.select(
        functions.struct(*frame.columns).alias(RECORD),
        *(
            functions.expr(METADATA[source]).alias(name)
            for name, source in mapping.metadata_columns.items()
            if source in METADATA
        ),
        *(_decoded(side, encoding, mapping, pipeline.registry).alias(_SIDES[side]) for side, encoding in sides.items()),
    )
    if has_changes:
        decoded = _unwrapped(decoded, mapping)
    elif mapping.value.envelope == UNWRAPPED:
        decoded = without_flags(decoded, mapping, _SIDES["value"])
    columns = [(name, functions.col(name)) for name in mapping.metadata_columns]
    if mapping.deletes == MARK:
        columns.append((mapping.deleted_column, functions.lit(False)))
    of_side = {side: _columns(decoded, side, encoding) for side, encoding in sides.items()}
    columns += [column for found in of_side.values() for column in found]
    names = [name for name, _ in columns]
    check_names(mapping, names)
    by = upsert_by(mapping, names, [name for name, _ in of_side.get("key", ())])
    rows = decoded.select(
        *(column.alias(name) for name, column in columns),
        functions.col(RECORD),
        _is_tombstone(mapping).alias(TOMBSTONE),
        _error(sides, is_upsert=bool(by)).alias(ERROR),
        *([_is_op(EMPTY).alias(TRUNCATE)] if has_changes else []),
    )
    if by:
        is_row = functions.lit(True)
        if has_changes:
            is_row = ~functions.col(TRUNCATE)
        absent = reduce(or_, (functions.col(quoted(name)).isNull() for name in by))
        error = functions.lit(f"it has nothing in {' or '.join(by)}, by which its row is found")
        error = functions.when(is_row & absent, error)
        rows = rows.withColumn(ERROR, functions.coalesce(functions.col(ERROR), error))
    if mapping.fan_out is not None:
        rows = rows.withColumn(TABLE, _named_table(mapping.fan_out, mapping, names))
    types = {field.name: field.dataType for field in rows.schema.fields}
    return BatchRows(
        frame=rows,
        columns=StructType([StructField(name, relaxed(types[name]), name not in required(sides)) for name in names]),
        upsert_by=by,
        can_fail=bool(by or mapping.fan_out) or any(side.format != "bytes" for side in sides.values()),
    )


def _named_table(fan_out: FanOut, mapping: TableMapping, names: Sequence[str]) -> Column:
    """Return the name of the table that a value stands for, existing or not. Raises ConfigError."""
    if fan_out.by not in names:
        raise ConfigError(f"the mapping '{mapping.id}' has no column '{fan_out.by}' to fan out by")
    value = functions.col(quoted(fan_out.by)).cast("string")
    named = functions.lit(None).cast("string")
    if fan_out.create is not None:
        before, _, behind = fan_out.create.partition(SEEN)
        word = functions.regexp_replace(functions.lower(value), "[^a-z0-9_]", "_")
        is_word = functions.length(value).between(1, TABLE_NAME_MAX)
        named = functions.when(is_word, functions.concat(functions.lit(before), word, functions.lit(behind)))
    for known, table in fan_out.tables.items():
        named = functions.when(value == known, functions.lit(table)).otherwise(named)
    return named


def _is_op(op: str) -> Column:
    return functions.coalesce(functions.col(f"{_SIDES['value']}.op") == op, functions.lit(False))


def _is_tombstone(mapping: TableMapping) -> Column:
    has_no_value = functions.col(f"{RECORD}.value").isNull()
    if mapping.value.envelope not in TELLING:
        return has_no_value
    return _is_op(DELETE) if mapping.value.envelope == DEBEZIUM else has_no_value | _is_op(DELETE)


def _unwrapped(decoded: DataFrame, mapping: TableMapping) -> DataFrame:
    """Replace changes by their rows, with `op` besides, and add metadata of changes. Raises ConfigError."""
    name = _SIDES["value"]
    struct: Any = decoded.schema[name].dataType
    members: Any = struct["value"].dataType
    lacking = [name for name in ("op", "before", "after") if name not in getattr(members, "names", ())]
    if lacking:
        raise ConfigError(f"the mapping '{mapping.id}' has values without {lacking[0]}: no changes of Debezium")
    change = functions.col(f"{name}.value")
    op = change.getField("op")
    error = functions.when(change.isNotNull() & op.isNull(), functions.lit("it has no op, as a change of a row has"))
    empties = mapping.mode == "upsert" and (mapping.topic is not None or mapping.topic_column is not None)
    error = error.when(
        ~op.isin(*OPERATIONS, *([EMPTY] if empties else [])),
        functions.concat(functions.lit("no rule tells of its op "), op),
    )
    error = error.when(
        ~op.isin(DELETE, EMPTY) & change.getField("after").isNull(),
        functions.lit("it has nothing in after, what its row is"),
    )
    metadata = [
        member(change, members, *CHANGES[source]).alias(column)
        for column, source in mapping.metadata_columns.items()
        if source in CHANGES
    ]
    unwrapped = functions.struct(
        _row_of(change).alias("value"),
        functions.coalesce(functions.col(f"{name}.error"), error).alias("error"),
        op.alias("op"),
    )
    return decoded.select("*", *metadata).withColumn(name, unwrapped)


def _row_of(change: Column) -> Column:
    is_delete = change.getField("op") == DELETE
    return functions.when(is_delete, change.getField("before")).otherwise(change.getField("after"))


def empty_rows(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> BatchRows:
    """Return the rows of no record, for their columns."""
    return rows_of(spark.createDataFrame([], source_schema(mapping, pipeline)), mapping, pipeline)


def _decoded(side: str, encoding: Encoding, mapping: TableMapping, registry: RegistryConfig | None) -> Column:
    """Return struct<value, error> of a side."""
    column = functions.col(side)
    if encoding.by_registry:
        assert registry is not None, "checked when the pipeline was made"
        return _by_registry(column, encoding, mapping.subject(side), registry)
    if encoding.format == "bytes":
        return functions.struct(column.alias("value"), functions.lit(None).cast("string").alias("error"))
    invalid = column.isNotNull() & ~functions.is_valid_utf8(column.cast("string"))
    text = functions.when(~invalid, column.cast("string"))
    if encoding.format == "string":
        return functions.struct(
            text.alias("value"), functions.when(invalid, functions.lit("it is not valid UTF-8")).alias("error")
        )
    return _from_json(text, invalid, encoding)


def _by_registry(column: Column, encoding: Encoding, subject: str, registry: RegistryConfig) -> Column:
    given = attrs.asdict(registry)
    url = given.pop("url")
    reading: RegistryReading = {"subject": subject, "validate": encoding.validate}
    reading["format"] = "json" if encoding.format == "json-schema" else encoding.format
    if encoding.version is not None:
        reading["version"] = encoding.version
    if encoding.message is not None:
        reading["message"] = encoding.message
    return from_registry(column, RegistryCredentials(**given).options(url), **reading)


def _from_json(text: Column, invalid: Column, encoding: Encoding) -> Column:
    """Return the mapping's columns of JSON. Spark's parser stops behind the first value of a text: see `_is_whole`."""
    envelope = encoding.envelope
    fields = [StructField(column.name, _json_type(column.type)) for column in encoding.columns]
    fields += flag_fields() if envelope == UNWRAPPED else []
    framed = functions.concat(functions.lit(f'{{"{_VALUE}":'), text, functions.lit(f',"{_END}":1}}'))

    def parsed_by(schema: StructType) -> Column:
        ends = [StructField(_VALUE, schema), StructField(_END, IntegerType()), StructField(_CORRUPT, StringType())]
        return functions.from_json(
            framed, StructType(ends), {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        )

    parsed = parsed_by(_enveloped(fields, envelope))
    value = _opened(parsed.getField(_VALUE), fields, envelope)
    row = _row_of(value) if envelope == DEBEZIUM else value
    has_row = functions.lit(True)
    if envelope == DEBEZIUM:
        has_row = (value.getField("op") != DELETE) & row.isNotNull()
    elif envelope == UNWRAPPED:
        has_row = ~is_deleted(value, StructType(fields))
    is_corrupt = parsed.getField(_CORRUPT).isNotNull()
    error = functions.when(invalid, functions.lit("it is not valid UTF-8"))
    error = error.when(text.isNotNull() & value.isNull() & ~is_corrupt, functions.lit("it is not a JSON object"))
    error = error.when(is_corrupt, functions.lit("it is not a JSON object of the mapping's columns"))
    error = error.when(
        text.isNotNull() & ~_is_whole(text, parsed), functions.lit("something follows the JSON object in it")
    )
    for name in (column.name for column in encoding.columns if column.required):
        error = error.when(has_row & row.getField(name).isNull(), functions.lit(f"it has no {name}, which is required"))
    decimals = [field for field in fields if has_decimal(field.dataType)]
    if decimals:
        types = [StructField(field.name, exact_type(field.dataType)) for field in decimals]
        exact = _opened(parsed_by(_enveloped(types, envelope)).getField(_VALUE), types, envelope)
        exact = _row_of(exact) if envelope == DEBEZIUM else exact
        for field in decimals:
            is_cut = is_inexact(exact.getField(field.name), field.dataType)
            error = error.when(
                functions.coalesce(is_cut, functions.lit(False)),
                functions.lit(f"{field.name} has more digits behind the point than {field.dataType.simpleString()}"),
            )
    return functions.struct(value.alias("value"), error.alias("error"))


def _enveloped(fields: list[StructField], envelope: str | None) -> StructType:
    """Return the type to parse a value by, whose change, or row, may be in a payload."""
    inner = _change_type(fields) if envelope == DEBEZIUM else StructType(fields)
    return inner if envelope is None else StructType([*inner.fields, StructField(PAYLOAD, inner)])


def _change_type(fields: list[StructField]) -> StructType:
    row = StructType(fields)
    orders = [StructField(name, LongType()) for name in ("total_order", "data_collection_order")]
    transaction = StructType([StructField("id", StringType()), *orders])
    return StructType(
        [
            StructField("before", row),
            StructField("after", row),
            StructField("op", StringType()),
            StructField("ts_ms", LongType()),
            StructField("transaction", transaction),
        ]
    )


def _opened(value: Column, fields: list[StructField], envelope: str | None) -> Column:
    """Return the change, or row, of a parsed value, which may be in its payload."""
    if envelope is None:
        return value
    names = (_change_type(fields) if envelope == DEBEZIUM else StructType(fields)).names
    here = functions.when(value.isNotNull(), functions.struct(*(value.getField(name).alias(name) for name in names)))
    return functions.coalesce(value.getField(PAYLOAD), here)


def _is_whole(text: Column, parsed: Column) -> Column:
    """Tell whether nothing follows the JSON value of a text.

    The value is put into an object with _END behind it, and into an array. A comma after the value adds a member or
    element; any other text breaks one of both.
    """
    array = functions.concat(functions.lit("["), text, functions.lit("]"))
    count = functions.size(functions.from_json(array, "array<struct<>>"))
    return functions.coalesce((parsed.getField(_END) == 1) & (count == 1), functions.lit(False))


def _json_type(text: str) -> DataType:
    return TimestampType() if text.lower() == "timestamp" else DataType.fromDDL(text)


def _columns(decoded: DataFrame, side: str, encoding: Encoding) -> list[tuple[str, Column]]:
    """Return the columns of one side, by name: those of its struct, or its only one."""
    name = _SIDES[side]
    struct: Any = decoded.schema[name].dataType
    type_ = struct["value"].dataType
    value = functions.col(f"{name}.value")
    if isinstance(type_, StructType):
        return [(name, value.getField(name)) for name in type_.names]
    return [(encoding.column or side, value)]


def required(sides: Mapping[str, Encoding]) -> set[str]:
    """Return the columns that are never null. Rows of changes may be: deleted ones may have the key alone."""
    there = [side for side in sides.values() if side.envelope not in TELLING]
    return {column.name for encoding in there for column in encoding.columns if column.required}


def check_names(mapping: TableMapping, names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"the mapping '{mapping.id}' has two columns '{twice[0]}': rename one by column or metadata")
    own = [name for name in names if name in OWN]
    if own:
        raise ConfigError(f"the mapping '{mapping.id}' has a column '{own[0]}', a name that KafScale uses itself")


def upsert_by(mapping: TableMapping, names: Sequence[str], of_key: Sequence[str]) -> Sequence[str]:
    if mapping.mode != "upsert":
        return ()
    by = mapping.upsert_by or of_key
    unknown = [name for name in by if name not in names]
    if unknown:
        raise ConfigError(f"the mapping '{mapping.id}' has no column '{unknown[0]}' to upsert by")
    return by


def _error(sides: Mapping[str, Encoding], *, is_upsert: bool) -> Column:
    """Return the error of a record. A tombstone of an upsert needs no value."""
    errors = {side: functions.col(f"{_SIDES[side]}.error") for side in sides}
    if is_upsert:
        errors["value"] = functions.when(functions.col(f"{RECORD}.value").isNotNull(), errors["value"])
    return functions.coalesce(*(functions.concat(functions.lit(f"{side}: "), error) for side, error in errors.items()))
