"""Makes, changes and maintains the tables of mappings, and routes the rows of a fan-out. Imports pyspark.

A value of the column that `fan_out` names stands for a table: a declared one, or, with `create`, one that is made when
the first record comes, with the mapping's name among its properties. Other rows go into the mapping's own table, or are
dead letters. A record that deletes a row of an upsert goes to all tables, as it may lack the value that names the
table. Maintenance keeps the newest snapshot of each mapping, and all newer ones, so that a pipeline finds it among the
ancestors of the current one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_, or_

import attrs
from pyspark.sql import Column, SparkSession, functions
from pyspark.sql.types import StructType

from kafscale.config import parse_duration, parse_size
from kafscale.errors import ConfigError
from kafscale.spark.bucket.position import Position
from kafscale.spark.catalogs import DELTA, ICEBERG, CatalogOptions, quoted
from kafscale.spark.pipeline.config import DEAD_LETTER, SEEN, Pipeline, TableMapping, partition_transform, sort_order
from kafscale.spark.pipeline.records import ERROR, RECORD, TABLE, TOMBSTONE, TRUNCATE, BatchRows, empty_rows
from kafscale.spark.pipeline.schema import SchemaConflict, changes, sql_of
from kafscale.spark.pipeline.snapshots import MAPPING, newest
from kafscale.spark.pipeline.table_format import DeltaTables, IcebergTables, TableFormat
from kafscale.spark.session import first_line

FORMATS: Mapping[str, Callable[[SparkSession, CatalogOptions], TableFormat]] = {
    ICEBERG: IcebergTables,
    DELTA: DeltaTables,
}


def format_of(spark: SparkSession, pipeline: Pipeline) -> TableFormat:
    return FORMATS[pipeline.catalog.format](spark, pipeline.catalog)


logger = logging.getLogger(__name__)

DEAD_LETTER_COLUMNS = (
    "mapping STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "key BINARY, value BINARY, error STRING"
)


def ensure_table(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> None:
    """Make the mapping's table if it is missing, or change its partitions to those of the mapping.

    Raises ConfigError for a missing table with `create` off, SchemaConflict.
    """
    tables = format_of(spark, pipeline)
    partition_by = [partition_transform(transform) for transform in mapping.partition_by]
    if tables.exists(mapping.table):
        list(changes(spark.table(pipeline.full_name(mapping.table)).schema, columns))
        if partition_by and mapping.evolve:
            for change in tables.partition(mapping.table, partition_by):
                logger.warning("the table %s is partitioned otherwise from now on: %s", mapping.table, change)
    elif not mapping.create:
        raise ConfigError(f"there is no table {mapping.table}, and the mapping '{mapping.id}' does not create it")
    else:
        tables.create(
            mapping.table,
            ", ".join(
                f"{quoted(field.name)} {sql_of(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
                for field in columns.fields
            ),
            partition_by=partition_by,
            properties=mapping.properties,
            is_upserted=mapping.mode == "upsert",
        )
    if mapping.sort_by:
        tables.sort(mapping.table, [sort_order(order) for order in mapping.sort_by])


def ensure_dead_letters(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> None:
    tables = format_of(spark, pipeline)
    if mapping.dead_letters is not None and not tables.exists(mapping.dead_letters):
        tables.create(mapping.dead_letters, DEAD_LETTER_COLUMNS, properties={})


def evolve(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline, columns: StructType) -> StructType:
    """Change the table for rows of these columns, and return its schema. Raises SchemaConflict."""
    name = pipeline.full_name(mapping.table)
    for change in changes(spark.table(name).schema, columns):
        if not mapping.evolve:
            raise SchemaConflict(f"the values have {'.'.join(change.path)} {change.type}, and evolve is off")
        format_of(spark, pipeline).change(mapping.table, change)
    return spark.table(name).schema


def ensure_declared(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> None:
    """Do `ensure_table` for the tables of the mapping's fan-out, declared and made."""
    if mapping.fan_out is not None:
        columns = empty_rows(spark, mapping, pipeline).columns
        made = tables_there(format_of(spark, pipeline), mapping)
        for table in dict.fromkeys([*mapping.fan_out.tables.values(), *made]):
            ensure_table(spark, mapping.into(table), pipeline, columns)


def tables_there(tables: TableFormat, mapping: TableMapping) -> Sequence[str]:
    """Return the existing tables of the mapping's fan-out, without the mapping's own."""
    if mapping.fan_out is None:
        return ()
    there = [table for table in dict.fromkeys(mapping.fan_out.tables.values()) if tables.exists(table)]
    return [*there, *(name for name, owner in _seen(tables, mapping).items() if owner == mapping.id)]


def begun_tables(tables: TableFormat, mapping: TableMapping) -> Mapping[str, Position]:
    """Return the tables of the mapping's fan-out that have a batch of it, and the beginning of the first one."""
    found = {name: newest(tables.commits(name), mapping.id) for name in tables_there(tables, mapping)}
    return {name: committed.began for name, committed in found.items() if committed is not None}


def tables_for(
    spark: SparkSession, pipeline: Pipeline, mapping: TableMapping, rows: BatchRows
) -> Mapping[str, Position]:
    """Return all tables that rows of a batch can go into, and make those that rows are the first of."""
    fan_out = mapping.fan_out
    if fan_out is None:
        return {}
    seen = _seen(format_of(spark, pipeline), mapping)  # some may be another's
    made = [name for name, owner in seen.items() if owner == mapping.id]
    declared = dict.fromkeys(fan_out.tables.values())
    if fan_out.create is not None and len(made) < fan_out.max_tables:
        known = [*seen, *declared, mapping.table]
        new = rows.good().where(functions.col(TABLE).isNotNull() & ~functions.col(TABLE).isin(known)).select(TABLE)
        left = new.distinct().orderBy(TABLE).limit(fan_out.max_tables - len(made)).collect()
        properties = {**mapping.properties, MAPPING: mapping.id}
        for row in left:
            owned = attrs.evolve(mapping.into(row[TABLE]), properties=properties)
            ensure_table(spark, owned, pipeline, rows.columns)
            made.append(row[TABLE])
    return {name: Position() for name in (*declared, *made)}


def routed(rows: BatchRows, mapping: TableMapping, others: Mapping[str, Position]) -> BatchRows:
    """Keep in TABLE only tables that existed when a record was read. others: those tables, and their beginnings."""
    fan_out = mapping.fan_out
    if fan_out is None:
        return rows
    table = functions.col(TABLE)
    is_there = [(table == name) & ~_before(began) for name, began in others.items()]
    frame = rows.frame.withColumn(TABLE, functions.when(reduce(or_, is_there, functions.lit(False)), table))
    if fan_out.others == DEAD_LETTER:
        lost = functions.col(TABLE).isNull() & ~(_of_all(rows) & functions.lit(bool(rows.upsert_by)))
        error = functions.when(lost, functions.lit(f"there is no table for its {fan_out.by}"))
        frame = frame.withColumn(ERROR, functions.coalesce(functions.col(ERROR), error))
    return attrs.evolve(rows, frame=frame)


def share_of(rows: BatchRows, mapping: TableMapping, table: str | None) -> BatchRows:
    """Return the rows of one table of the mapping's fan-out, or, for None, of its own. They are `routed`."""
    if mapping.fan_out is None:
        return rows
    column = functions.col(TABLE)
    mine = column.isNull() if table is None else functions.coalesce(column == table, functions.lit(False))
    if rows.upsert_by:
        mine = mine | _of_all(rows)
    return attrs.evolve(rows, frame=rows.frame.where(mine))


def _of_all(rows: BatchRows) -> Column:
    """Tell whether a record is for all tables of an upsert: a deletion or a truncate."""
    empties = functions.col(TRUNCATE) if TRUNCATE in rows.frame.columns else functions.lit(False)
    return functions.col(TOMBSTONE) | empties


def not_before(rows: BatchRows, start: Position, wanted: Position) -> BatchRows:
    """Leave out records before the beginning of a table; the rows begin at `start`."""
    later = {name: offset for name, offset in wanted.offsets.items() if offset > start.offsets.get(name, 0)}
    if not later:
        return rows
    return attrs.evolve(rows, frame=rows.frame.where(~_before(Position(offsets=later))))


def _before(position: Position) -> Column:
    """Tell whether a record is before a position."""
    places = [
        reduce(
            and_,
            (
                functions.col(f"{RECORD}.topic") == topic,
                functions.col(f"{RECORD}.partition") == index,
                functions.col(f"{RECORD}.offset") < offset,
            ),
        )
        for (topic, index), offset in position.offsets.items()
    ]
    return reduce(or_, places, functions.lit(False))


def _seen(tables: TableFormat, mapping: TableMapping) -> Mapping[str, str | None]:
    """Return tables whose names the mapping could have made, and the mapping that did, if any.

    Its own table and declared ones are not among them.
    """
    if mapping.fan_out is None or mapping.fan_out.create is None:
        return {}
    before, _, behind = mapping.fan_out.create.partition(SEEN)
    others = {mapping.table, *mapping.fan_out.tables.values()}
    return {name: owner for name, owner in tables.named(before, behind, MAPPING).items() if name not in others}


@attrs.frozen(kw_only=True)
class Care:
    """The maintenance of a table; `problem` is the error that stopped it."""

    table: str
    compacted_files: int = 0
    expired_files: int = 0
    orphan_files: int = 0
    problem: str | None = None


def maintain(spark: SparkSession, pipeline: Pipeline) -> Iterator[Care]:
    tables = format_of(spark, pipeline)
    for table in tables_of(tables, pipeline):
        if tables.exists(table):
            yield _cared(tables, pipeline, table)


def tables_of(tables: TableFormat, pipeline: Pipeline) -> Sequence[str]:
    names = [
        name
        for mapping in pipeline.mappings
        for name in (mapping.table, *tables_there(tables, mapping), mapping.dead_letters)
        if name is not None
    ]
    return list(dict.fromkeys(names))


def _cared(tables: TableFormat, pipeline: Pipeline, table: str) -> Care:
    options, now, care = pipeline.maintenance, datetime.now(UTC), Care(table=table)
    try:
        if options.compact:
            care = attrs.evolve(care, compacted_files=tables.compact(table, parse_size(options.target_file_size)))
        found = [newest(tables.commits(table), mapping.id) for mapping in pipeline.mappings]
        keep_count = max(
            [options.keep_snapshots, *(committed.depth + 1 for committed in found if committed is not None)]
        )
        expired, orphaned = (
            now - timedelta(microseconds=parse_duration(age)) for age in (options.expire_after, options.orphans_after)
        )
        care = attrs.evolve(care, expired_files=tables.expire(table, expired, keep_count))
        care = attrs.evolve(care, orphan_files=tables.remove_orphans(table, orphaned))
    except Exception as exc:  # py4j's, most of all when another commit was first
        care = attrs.evolve(care, problem=first_line(exc))
    return care
