"""Care of the tables by Iceberg's procedures: small files put together, old snapshots and lost files deleted.

The newest snapshot of each mapping is kept, and all that are newer than it, so that a pipeline finds it among the
ancestors of the current one however often the table was compacted since. This module imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from pyspark.sql import SparkSession

from kafscale.config import parse_duration, parse_size
from kafscale.spark.pipeline.config import Pipeline
from kafscale.spark.pipeline.snapshots import load_table, newest


@attrs.frozen(kw_only=True)
class Care:
    """What was done for a table; `problem` is what kept a part of it from being done."""

    table: str
    compacted_files: int = 0
    expired_files: int = 0
    orphan_files: int = 0
    problem: str | None = None


def maintain(spark: SparkSession, pipeline: Pipeline) -> Iterator[Care]:
    """Take care of each table of the pipeline that there is.

    A commit that another one was in the way of is told as a problem.
    """
    for table in tables_of(pipeline):
        if spark.catalog.tableExists(pipeline.full_name(table)):
            yield _TableCare(spark, pipeline, table, datetime.now(UTC)).run()


def tables_of(pipeline: Pipeline) -> Sequence[str]:
    """Return the tables of the mappings and of their dead letters, each once."""
    names = [name for each in pipeline.mappings for name in (each.table, each.dead_letters) if name is not None]
    return list(dict.fromkeys(names))


@attrs.frozen
class _TableCare:
    spark: SparkSession
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
            care = attrs.evolve(care, problem=_first_line(exc))
        return care

    def _compact(self) -> int:
        options = self.pipeline.maintenance
        if not options.compact:
            return 0
        size = parse_size(options.target_file_size)
        # A file with deletes is written anew, so that readers need not apply them for ever.
        wanted = f"map('target-file-size-bytes', '{size}', 'delete-file-threshold', '1')"
        return int(self._call("rewrite_data_files", f"options => {wanted}")["rewritten_data_files_count"])

    def _expire(self) -> int:
        options = self.pipeline.maintenance
        table = load_table(self.spark, self.pipeline.full_name(self.table))
        found = [newest(table, each.id) for each in self.pipeline.mappings]
        keep_count = max([options.keep_snapshots, *(each.depth + 1 for each in found if each is not None)])
        older_than = self._before(options.expire_after)
        deleted = self._call("expire_snapshots", f"older_than => {older_than}, retain_last => {keep_count}")
        return sum(count for name, count in deleted.items() if name.startswith("deleted_"))

    def _remove_orphans(self) -> int:
        name = f"{self.pipeline.catalog.name}.system.remove_orphan_files"
        older_than = self._before(self.pipeline.maintenance.orphans_after)
        # Iceberg lists by Hadoop's file systems otherwise, of which there is none for s3://.
        listing = ", prefix_listing => true" if self.pipeline.catalog.on_s3 else ""
        return int(self.spark.sql(f"CALL {name}(table => '{self.table}', older_than => {older_than}{listing})").count())

    def _call(self, procedure: str, arguments: str) -> dict[str, Any]:
        name = f"{self.pipeline.catalog.name}.system.{procedure}"
        rows = self.spark.sql(f"CALL {name}(table => '{self.table}', {arguments})").collect()
        found: dict[str, Any] = rows[0].asDict()
        return found

    def _before(self, duration: str) -> str:
        moment = self.now - timedelta(microseconds=parse_duration(duration))
        return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"


def _first_line(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return next((line for line in lines if "Exception:" in line), lines[0] if lines else type(exc).__name__)
