"""One mapping into several tables: which there are, and which rows go into which. This module imports pyspark.

A value of the column that `fan_out` names stands for a table: one that is declared, or, with `create`, one that is made
when the first record with it comes, and has the mapping's name among its properties. What has none goes into the
mapping's own table, or is a dead letter. A record that deletes a row of an upsert goes to all tables, as it may have no
value to tell which one had the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_

import attrs
from pyspark.sql import Column, SparkSession, functions

from kafscale.spark.bucket.position import Position
from kafscale.spark.pipeline.config import DEAD_LETTER, SEEN, Pipeline, TableMapping
from kafscale.spark.pipeline.records import ERROR, RECORD, TABLE, TOMBSTONE, TRUNCATE, Rows, empty_rows
from kafscale.spark.pipeline.snapshots import MAPPING, newest
from kafscale.spark.pipeline.table_format import TableFormat
from kafscale.spark.pipeline.tables import ensure_table, format_of


def ensure_declared(spark: SparkSession, mapping: TableMapping, pipeline: Pipeline) -> None:
    """Do what `ensure_table` does for the tables of the mapping's fan-out: declared ones, and those made before."""
    if mapping.fan_out is not None:
        columns = empty_rows(spark, mapping, pipeline).columns
        made = tables_there(format_of(spark, pipeline), mapping)
        for table in dict.fromkeys([*mapping.fan_out.tables.values(), *made]):
            ensure_table(spark, mapping.into(table), pipeline, columns)


def tables_there(tables: TableFormat, mapping: TableMapping) -> Sequence[str]:
    """Return the tables of the mapping's fan-out that there are, declared and made, without the mapping's own."""
    if mapping.fan_out is None:
        return ()
    there = [each for each in dict.fromkeys(mapping.fan_out.tables.values()) if tables.exists(each)]
    return [*there, *(name for name, owner in _seen(tables, mapping).items() if owner == mapping.id)]


def begun_tables(tables: TableFormat, mapping: TableMapping) -> Mapping[str, Position]:
    """Return the tables of the mapping's fan-out that have a batch of it, and where the first one began."""
    found = {name: newest(tables.commits(name), mapping.id) for name in tables_there(tables, mapping)}
    return {name: each.began or Position() for name, each in found.items() if each is not None}


def tables_for(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping, rows: Rows) -> Mapping[str, Position]:
    """Return the tables that rows of a batch can go into, all of them; those are made that rows are the first of."""
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


def routed(rows: Rows, mapping: TableMapping, others: Mapping[str, Position]) -> Rows:
    """Have TABLE name only tables that there were when a record was read; others: those, and where they begin."""
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


def share_of(rows: Rows, mapping: TableMapping, table: str | None) -> Rows:
    """Return the rows that go into one table of the mapping's fan-out, or, of None, its own. They are `routed`."""
    if mapping.fan_out is None:
        return rows
    column = functions.col(TABLE)
    mine = column.isNull() if table is None else functions.coalesce(column == table, functions.lit(False))
    if rows.upsert_by:
        mine = mine | _of_all(rows)
    return attrs.evolve(rows, frame=rows.frame.where(mine))


def _of_all(rows: Rows) -> Column:
    """Tell whether a record is for all tables of an upsert: one that deletes, or empties."""
    empties = functions.col(TRUNCATE) if TRUNCATE in rows.frame.columns else functions.lit(False)
    return functions.col(TOMBSTONE) | empties


def not_before(rows: Rows, start: Position, wanted: Position) -> Rows:
    """Leave out records before where a table wants them from; the rows are from `start` on."""
    later = {name: offset for name, offset in wanted.offsets.items() if offset > start.offsets.get(name, 0)}
    if not later:
        return rows
    return attrs.evolve(rows, frame=rows.frame.where(~_before(Position(offsets=later))))


def _before(position: Position) -> Column:
    """Tell whether a record is before where a position has its partition."""
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
    """Return tables whose names are such that the mapping could have made them, and the mapping that has, if one has.

    Those that it declares are not among them, nor its own.
    """
    if mapping.fan_out is None or mapping.fan_out.create is None:
        return {}
    before, _, behind = mapping.fan_out.create.partition(SEEN)
    others = {mapping.table, *mapping.fan_out.tables.values()}
    return {name: owner for name, owner in tables.named(before, behind, MAPPING).items() if name not in others}
