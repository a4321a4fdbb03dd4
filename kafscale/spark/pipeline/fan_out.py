"""Routes the rows of one mapping into several tables. This module imports pyspark.

A value of the column that `fan_out` names stands for a table: a declared one, or, with `create`, one that is made when
the first record comes, with the mapping's name among its properties. Other rows go into the mapping's own table, or are
dead letters. A record that deletes a row of an upsert goes to all tables, as it may lack the value that names the
table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_

import attrs
from pyspark.sql import Column, SparkSession, functions

from kafscale.spark.bucket.position import Position
from kafscale.spark.pipeline.config import DEAD_LETTER, SEEN, Pipeline, TableMapping
from kafscale.spark.pipeline.records import ERROR, RECORD, TABLE, TOMBSTONE, TRUNCATE, BatchRows, empty_rows
from kafscale.spark.pipeline.snapshots import MAPPING, newest
from kafscale.spark.pipeline.table_format import TableFormat
from kafscale.spark.pipeline.tables import ensure_table, format_of


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
