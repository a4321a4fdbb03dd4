"""Maintenance of the tables: compacts small files, deletes old snapshots and orphan files.

The newest snapshot of each mapping is kept, and all newer ones, so that a pipeline finds it among the ancestors of the
current one after any number of compactions. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import attrs
from pyspark.sql import SparkSession

from kafscale.config import parse_duration, parse_size
from kafscale.spark.pipeline.config import Pipeline
from kafscale.spark.pipeline.fan_out import tables_there
from kafscale.spark.pipeline.snapshots import newest
from kafscale.spark.pipeline.table_format import TableFormat
from kafscale.spark.pipeline.tables import format_of
from kafscale.spark.session import first_line


@attrs.frozen(kw_only=True)
class Care:
    """The maintenance of a table; `problem` is the error that stopped it."""

    table: str
    compacted_files: int = 0
    expired_files: int = 0
    orphan_files: int = 0
    problem: str | None = None


def maintain(spark: SparkSession, pipeline: Pipeline) -> Iterator[Care]:
    """Maintain each existing table of the pipeline. A conflict with another commit is returned as a problem."""
    tables = format_of(spark, pipeline)
    for table in tables_of(tables, pipeline):
        if tables.exists(table):
            yield _TableCare(tables, pipeline, table, datetime.now(UTC)).run()


def tables_of(tables: TableFormat, pipeline: Pipeline) -> Sequence[str]:
    """Return the tables of the mappings and of their dead letters, each once."""
    names = [
        name
        for mapping in pipeline.mappings
        for name in (mapping.table, *tables_there(tables, mapping), mapping.dead_letters)
        if name is not None
    ]
    return list(dict.fromkeys(names))


@attrs.frozen
class _TableCare:
    tables: TableFormat
    pipeline: Pipeline
    table: str
    now: datetime

    def run(self) -> Care:
        care = Care(table=self.table)
        try:
            care = attrs.evolve(care, compacted_files=self._compact())
            care = attrs.evolve(care, expired_files=self._expire())
            care = attrs.evolve(care, orphan_files=self._remove_orphans())
        except Exception as exc:  # py4j's, most of all when another commit was first
            care = attrs.evolve(care, problem=first_line(exc))
        return care

    def _compact(self) -> int:
        options = self.pipeline.maintenance
        return self.tables.compact(self.table, parse_size(options.target_file_size)) if options.compact else 0

    def _expire(self) -> int:
        options = self.pipeline.maintenance
        found = [newest(self.tables.commits(self.table), mapping.id) for mapping in self.pipeline.mappings]
        keep_count = max(
            [options.keep_snapshots, *(committed.depth + 1 for committed in found if committed is not None)]
        )
        return self.tables.expire(self.table, self._before(options.expire_after), keep_count)

    def _remove_orphans(self) -> int:
        return self.tables.remove_orphans(self.table, self._before(self.pipeline.maintenance.orphans_after))

    def _before(self, duration: str) -> datetime:
        return self.now - timedelta(microseconds=parse_duration(duration))
