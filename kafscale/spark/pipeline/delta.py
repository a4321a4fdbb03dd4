"""Delta Lake: tables are directories; the summary of a batch is the user metadata of its commit.

Delta deletes old entries of a table's log in time. So the commit of a batch is also a transaction of an application,
whose last version tables keep for ever; it also makes a MERGE without changes a commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.errors import ConfigError
from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.pipeline.snapshots import ADDED_BYTES, ADDED_ROWS, BATCH_ID, MAPPING, QUERY_ID, Commit, Committed
from kafscale.spark.pipeline.table_format import TableHead, create_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafscale.spark.pipeline.schema import ColumnChange

SETTINGS = "spark.databricks.delta."
USER_METADATA = f"{SETTINGS}commitInfo.userMetadata"  # every commit of a session takes it, of changes of the schema too
TRANSACTION = (f"{SETTINGS}write.txnAppId", f"{SETTINGS}write.txnVersion")
OF_ROWS = ("WRITE", "MERGE")  # the operations that write rows
RESTORE = "RESTORE"
METRICS = ("numOutputBytes", "numTargetBytesAdded")
FIRST_PAGE_COUNT = 8  # of the log: what is looked for is mostly the newest
PAGE_FACTOR = 8
RETAIN_HOURS = 24  # at least, for a file may be one that is being written


@attrs.frozen(kw_only=True)
class DeltaEntry:
    """An entry of a table's log."""

    id: int
    timestamp_ms: int
    operation: str
    told: str | None = None
    added_bytes: int = 0
    added_rows: int = 0
    restored_id: int | None = None
    restored_ms: int | None = None

    def commit(self) -> Commit:
        """Return the entry as a commit."""
        parent_id = self.id - 1 if self.id else None
        return Commit(id=self.id, parent_id=parent_id, timestamp_ms=self.timestamp_ms, summary=self.summary)

    def summary(self) -> Mapping[str, str]:
        """Return the summary, if the entry has written a batch's rows."""
        if self.told is None or self.operation not in OF_ROWS:
            return {}
        try:
            told = json.loads(self.told)
        except ValueError:
            return {}  # somebody else's
        is_ours = isinstance(told, dict) and MAPPING in told
        return {**told, ADDED_BYTES: str(self.added_bytes), ADDED_ROWS: str(self.added_rows)} if is_ours else {}

    def is_undone_by(self, restore: DeltaEntry) -> bool:
        """Tell whether a later entry has restored a state of before this one."""
        if restore.restored_id is not None:
            return self.id > restore.restored_id
        return restore.restored_ms is not None and self.timestamp_ms > restore.restored_ms


def in_effect(entries: Iterator[DeltaEntry]) -> Iterator[DeltaEntry]:
    """Leave out undone entries. Entries are newest first."""
    restore: DeltaEntry | None = None
    for entry in entries:
        if restore is not None and entry.is_undone_by(restore):
            continue
        restore = entry if entry.operation == RESTORE else restore
        yield entry


@attrs.frozen
class DeltaTables:
    """Tables below a directory. See `TableFormat`."""

    spark: SparkSession
    catalog: CatalogOptions
    conflicts: Sequence[str] = attrs.field(
        default=("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED"), init=False
    )

    def exists(self, table: str) -> bool:
        """See `TableFormat`."""
        session: Any = self.spark
        tables = session._jvm.io.delta.tables.DeltaTable
        return bool(tables.isDeltaTable(session._jsparkSession, self.catalog.path(table)))

    def create(
        self,
        table: str,
        definition: str,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str],
        is_upserted: bool = False,
    ) -> None:
        """See `TableFormat`. Sets no property, as every feature keeps some readers out. Raises ConfigError."""
        if any(transform.endswith(")") for transform in partition_by):
            raise ConfigError(f"the table {table} can't be partitioned by {partition_by[0]}: Delta Lake takes columns")
        self.spark.sql(create_table(self.catalog.full_name(table), definition, "delta", partition_by, properties))

    def sort(self, table: str, order: Sequence[str]) -> None:
        """Raise ConfigError."""
        raise ConfigError(f"the table {table} can't be sorted by {order[0]}: Delta Lake has no sort order of tables")

    def partition(self, table: str, wanted: Sequence[str]) -> Sequence[str]:
        """Change nothing: a table of Delta Lake keeps the partitions that it was made with."""
        return ()

    def change(self, table: str, change: ColumnChange) -> None:
        """See `TableFormat`. The first wider column makes the table one for readers that support it."""
        name = self.catalog.full_name(table)
        if not change.adds:
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        self.spark.sql(change.sql(name))

    def commits(self, table: str) -> Iterator[Commit]:
        """See `TableFormat`."""
        return (entry.commit() for entry in in_effect(self._log(table)))

    def _log(self, table: str) -> Iterator[DeltaEntry]:
        """Iterate over the entries, newest first, by growing pages."""
        seen_id, limit = None, FIRST_PAGE_COUNT
        while True:
            page = self._page(table, limit)
            for entry in page:
                if seen_id is None or entry.id < seen_id:
                    seen_id = entry.id
                    yield entry
            if len(page) < limit:
                return
            limit *= PAGE_FACTOR

    def _page(self, table: str, limit: int) -> Sequence[DeltaEntry]:
        parameters, metrics = "operationParameters", "operationMetrics"
        sizes = ", ".join(f"CAST({metrics}['{name}'] AS BIGINT)" for name in METRICS)
        rows = self.spark.sql(f"DESCRIBE HISTORY {self.catalog.full_name(table)} LIMIT {limit}").selectExpr(
            "version AS id",
            "unix_millis(timestamp) AS timestamp_ms",
            "operation",
            "userMetadata AS told",
            f"coalesce({sizes}, 0) AS added_bytes",
            f"coalesce(CAST({metrics}['numOutputRows'] AS BIGINT), 0) AS added_rows",
            f"CAST({parameters}['version'] AS BIGINT) AS restored_id",
            f"unix_millis(CAST({parameters}['timestamp'] AS TIMESTAMP)) AS restored_ms",
        )
        return [DeltaEntry(**row.asDict()) for row in rows.collect()]

    def append(self, table: str, rows: DataFrame, *, behind: TableHead | None = None) -> None:
        """See `TableFormat`. Delta leaves out a second commit of the same batch (`tell`)."""
        rows.writeTo(self.catalog.full_name(table)).append()

    def named(self, before: str, behind: str, key: str) -> Mapping[str, str | None]:
        """Raise ConfigError."""
        raise ConfigError(
            f"tables {before}… can't be made on first sight: Delta Lake has no catalog that tells of them"
        )

    def has_forgotten(self, table: str, mapping: str) -> bool:
        """See `TableFormat`."""
        session: Any = self.spark
        logs = session._jvm.org.apache.spark.sql.delta.DeltaLog
        log = logs.forTable(session._jsparkSession, self.catalog.path(table))
        known = log.unsafeVolatileSnapshot().setTransactions()
        return any(known.apply(index).appId().startswith(_application(mapping)) for index in range(known.size()))

    def appended(self, table: str, commit: Committed) -> DataFrame:
        """See `TableFormat`. Used after a driver has died; no cheaper way works for every table."""
        name = self.catalog.full_name(table)
        before, after = (
            self.spark.read.option("versionAsOf", version).table(name)
            for version in (commit.snapshot_id - 1, commit.snapshot_id)
        )
        return after.exceptAll(before)

    def tell(self, summary: Mapping[str, str], *, once: bool = False) -> None:
        """See `TableFormat`."""
        self.spark.conf.set(USER_METADATA, json.dumps(dict(summary)))
        values = (_application(summary[MAPPING]) + summary[QUERY_ID], summary[BATCH_ID])
        for name, value in zip(TRANSACTION, values, strict=True):
            if once:
                self.spark.conf.set(name, value)
            else:
                self.spark.conf.unset(name)

    def compact(self, table: str, target_bytes: int) -> int:
        """See `TableFormat`."""
        for name in ("minFileSize", "maxFileSize"):
            self.spark.conf.set(f"{SETTINGS}optimize.{name}", str(target_bytes))
        (done,) = self.spark.sql(f"OPTIMIZE {self.catalog.full_name(table)}").collect()
        return int(done.metrics.numFilesRemoved)

    def expire(self, table: str, older_than: datetime, keep_count: int) -> int:
        """See `TableFormat`. Orphan files go, too; Delta deletes entries of the log by itself."""
        hours = max(RETAIN_HOURS, math.ceil((datetime.now(UTC) - older_than).total_seconds() / 3600))
        self.spark.conf.set(f"{SETTINGS}retentionDurationCheck.enabled", "false")  # which wants a week
        self._keep_quiet()
        self.spark.sql(f"VACUUM {self.catalog.full_name(table)} RETAIN {hours} HOURS")
        history = self.spark.sql(f"DESCRIBE HISTORY {self.catalog.full_name(table)} LIMIT 1")
        (deleted,) = history.selectExpr("operationMetrics['numDeletedFiles']").first() or (None,)
        return int(deleted or 0)

    def _keep_quiet(self) -> None:
        """Send the output of VACUUM to the standard error: the standard output is the command's."""
        session: Any = self.spark
        system = session._jvm.java.lang.System
        system.setOut(system.err)

    def remove_orphans(self, table: str, older_than: datetime) -> int:
        """See `TableFormat`. `expire` has done it."""
        return 0


def _application(mapping: str) -> str:
    """Return the prefix of the applications of a mapping's queries in Delta's log."""
    return f"kafscale:{mapping}:"
