"""Table formats: Iceberg and Delta Lake.

The summary of a batch is that of its snapshot in Iceberg, and the user metadata of its commit in Delta Lake. Delta
deletes old entries of a table's log in time, so the commit of a batch is also a transaction of an application, whose
last version tables keep for ever; it also makes a MERGE without changes a commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.errors import ConfigError
from kafscale.spark.catalogs import CatalogOptions, literal, quoted
from kafscale.spark.pipeline.snapshots import (
    ADDED_BYTES,
    ADDED_ROWS,
    BATCH_ID,
    MAPPING,
    OFFSETS,
    QUERY_ID,
    Commit,
    Committed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kafscale.spark.pipeline.schema import ColumnChange


@attrs.frozen
class TableHead:
    """The newest commit of a table at one moment; the id is None without one."""

    id: int | None


@attrs.frozen
class _Tables:
    """The tables of a catalog. `table` is a name as a mapping has it, `namespace.name`."""

    spark: Any  # a SparkSession, whose inner parts have no types
    catalog: CatalogOptions

    def _create(
        self,
        table: str,
        definition: str,
        *,
        provider: str,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        parts = [f"CREATE TABLE IF NOT EXISTS {self.catalog.full_name(table)} ({definition}) USING {provider}"]
        if partition_by:
            parts.append(f"PARTITIONED BY ({', '.join(partition_by)})")
        if properties:
            given = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
            parts.append(f"TBLPROPERTIES ({given})")
        self.spark.sql(" ".join(parts))


DEFAULT_PROPERTIES = {"format-version": "2", "write.parquet.compression-codec": "zstd"}
UPSERT_PROPERTIES = {"write.merge.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
SESSION_PREFIX = "spark.sql.iceberg.snapshot-property."  # every commit of a session takes these, MERGE too


def ancestry(table: Any) -> Iterator[Commit]:
    """Iterate over the current snapshot of Iceberg's own table object, its parent and so on."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        parent_id = snapshot.parentId()
        yield Commit(
            id=int(snapshot.snapshotId()),
            parent_id=None if parent_id is None else int(parent_id),
            timestamp_ms=int(snapshot.timestampMillis()),
            summary=partial(_summary, snapshot),
        )
        snapshot = None if parent_id is None else table.snapshot(parent_id)


def _summary(snapshot: Any) -> Mapping[str, str]:
    """Return the summary of a batch's snapshot. To copy it takes three calls into the JVM for each entry."""
    summary = snapshot.summary()
    return {} if summary.get(OFFSETS) is None else dict(summary)


def spec_changes(current: Sequence[str], wanted: Sequence[str]) -> Sequence[str]:
    """Return the changes of ALTER TABLE from one list of partition fields to another, in SQL.

    A field replaces one of the same column, in one commit. The order of fields does not matter.
    """
    dropped = [field for field in current if field not in wanted]
    added = [field for field in wanted if field not in current]
    replaced: list[str] = []
    for new in list(added):
        old = next((field for field in dropped if _column_of(field) == _column_of(new)), None)
        if old is not None:
            replaced.append(f"REPLACE PARTITION FIELD {old} WITH {new}")
            dropped.remove(old)
            added.remove(new)
    return [
        *(f"DROP PARTITION FIELD {field}" for field in dropped),
        *replaced,
        *(f"ADD PARTITION FIELD {field}" for field in added),
    ]


def _column_of(field: str) -> str:
    return field.removesuffix(")").rpartition("(")[2].rpartition(", ")[2]


def _partitions(table: Any) -> Sequence[str]:
    """Return the partition fields of Iceberg's own table object, as `partition_transform` writes them."""
    schema = table.schema()
    found = []
    for field in table.spec().fields():
        name, _, argument = str(field.transform()).removesuffix("]").partition("[")
        column = ".".join(quoted(part) for part in schema.findColumnName(field.sourceId()).split("."))
        if name == "identity":
            found.append(column)
        elif name != "void":  # of a table of version 1, where a field was dropped
            found.append(f"{name}({argument}, {column})" if argument else f"{name}s({column})")
    return found


@attrs.frozen
class IcebergTables(_Tables):
    """Tables of one of Iceberg's catalogs."""

    # Texts in errors of a commit that conflicts with another writer's.
    conflicts = ("CommitFailedException", "ValidationException", "CommitStateUnknownException")

    def exists(self, table: str) -> bool:
        return bool(self.spark.catalog.tableExists(self.catalog.full_name(table)))

    def create(
        self,
        table: str,
        definition: str,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str],
        is_upserted: bool = False,
    ) -> None:
        """Make a table of columns, in SQL, if it is missing; properties go before the format's own.

        Upserts write files of deletes, which readers apply.
        """
        properties = {**DEFAULT_PROPERTIES, **(UPSERT_PROPERTIES if is_upserted else {}), **properties}
        namespace = self.catalog.full_name(table).rpartition(".")[0]
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        self._create(table, definition, provider="iceberg", partition_by=partition_by, properties=properties)

    def sort(self, table: str, order: Sequence[str]) -> None:
        """Sort new files by these keys, in SQL, unless others are set."""
        if self._load(table).sortOrder().isUnsorted():
            self.spark.sql(f"ALTER TABLE {self.catalog.full_name(table)} WRITE ORDERED BY {', '.join(order)}")

    def partition(self, table: str, wanted: Sequence[str]) -> Sequence[str]:
        """Partition files that are written from now on. Returns the changes."""
        found = spec_changes(_partitions(self._load(table)), wanted)
        for change in found:
            self.spark.sql(f"ALTER TABLE {self.catalog.full_name(table)} {change}")
        return found

    def change(self, table: str, change: ColumnChange) -> None:
        """Add a column, or make one wider."""
        self.spark.sql(change.sql(self.catalog.full_name(table)))

    def commits(self, table: str) -> Iterator[Commit]:
        """Iterate over the commits of the table, newest first."""
        return ancestry(self._load(table))

    def append(self, table: str, rows: DataFrame, *, behind: TableHead | None = None) -> None:
        """Append rows in one commit. `behind`: fail with one of `conflicts` if another commit came since.

        Iceberg's append goes on top of any other commit, and retries by itself. An overwrite of no row is an append,
        too, checked at each try against commits since a snapshot. It is used if there are rows: without any it would be
        a real overwrite, which disturbs readers that follow the table.
        """
        from pyspark.sql import functions

        writer = rows.writeTo(self.catalog.full_name(table))
        if behind is None or rows.isEmpty():
            writer.append()
            return
        writer = writer.option("isolation-level", "serializable")
        if behind.id is not None:
            writer = writer.option("validate-from-snapshot-id", str(behind.id))
        writer.overwrite(functions.lit(False))

    def named(self, before: str, behind: str, key: str) -> Mapping[str, str | None]:
        """Return tables whose names begin and end so, and a property of each."""
        namespace = before.rpartition(".")[0]
        full_name = self.catalog.full_name(namespace)
        if not self.spark.catalog.databaseExists(full_name):
            return {}
        names = [f"{namespace}.{row.tableName}" for row in self.spark.sql(f"SHOW TABLES IN {full_name}").collect()]
        wanted = [name for name in names if name.startswith(before) and name.endswith(behind)]
        return {name: self._load(name).properties().get(key) for name in wanted}

    def has_forgotten(self, table: str, mapping: str) -> bool:
        """Tell whether no commit tells of a mapping's batches any more.

        If another tool has expired a mapping's newest snapshot, nothing tells.
        """
        return False

    def appended(self, table: str, commit: Committed) -> DataFrame:
        """Return the rows that a commit has appended."""
        name, reader = self.catalog.full_name(table), self.spark.read
        rows: DataFrame
        if commit.parent_id is None:
            rows = reader.option("versionAsOf", commit.snapshot_id).table(name)
        else:
            reader = reader.format("iceberg").option("start-snapshot-id", commit.parent_id)
            rows = reader.option("end-snapshot-id", commit.snapshot_id).load(name)
        return rows

    def tell(self, summary: Mapping[str, str], *, once: bool = False) -> None:
        """Set the summary of the session's next commits. `once`: a table takes this batch once."""
        for name, value in summary.items():
            self.spark.conf.set(SESSION_PREFIX + name, value)

    def compact(self, table: str, target_bytes: int) -> int:
        """Compact small files, and return their number."""
        # A file with deletes is written anew, so that readers need not apply them for ever.
        wanted = f"map('target-file-size-bytes', '{target_bytes}', 'delete-file-threshold', '1')"
        return int(self._call("rewrite_data_files", table, f"options => {wanted}")["rewritten_data_files_count"])

    def expire(self, table: str, older_than: datetime, keep_count: int) -> int:
        """Forget snapshots before a moment, except the newest ones. Returns the number of deleted files."""
        arguments = f"older_than => {_moment(older_than)}, retain_last => {keep_count}"
        deleted = self._call("expire_snapshots", table, arguments)
        return sum(count for name, count in deleted.items() if name.startswith("deleted_"))

    def remove_orphans(self, table: str, older_than: datetime) -> int:
        """Delete files from before a moment that no snapshot has, and return their number."""
        # Otherwise Iceberg lists by Hadoop's file systems, which lack s3://.
        listing = ", prefix_listing => true" if self.catalog.on_s3 else ""
        arguments = f"table => '{table}', older_than => {_moment(older_than)}{listing}"
        return int(self.spark.sql(f"CALL {self.catalog.name}.system.remove_orphan_files({arguments})").count())

    def _call(self, procedure: str, table: str, arguments: str) -> dict[str, Any]:
        name = f"{self.catalog.name}.system.{procedure}"
        found: dict[str, Any] = self.spark.sql(f"CALL {name}(table => '{table}', {arguments})").collect()[0].asDict()
        return found

    def _load(self, table: str) -> Any:
        """Return Iceberg's own object of a table, refreshed."""
        util = self.spark._jvm.org.apache.iceberg.spark.Spark3Util
        found = util.loadIcebergTable(self.spark._jsparkSession, self.catalog.full_name(table))
        found.refresh()
        return found


def _moment(moment: datetime) -> str:
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"


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


def in_effect(entries: Iterator[DeltaEntry]) -> Iterator[DeltaEntry]:
    """Leave out entries, newest first, that a later one has undone by restoring the state before them."""
    restored_id, restored_ms = None, None
    for entry in entries:
        if restored_id is not None and entry.id > restored_id:
            continue
        if restored_id is None and restored_ms is not None and entry.timestamp_ms > restored_ms:
            continue
        if entry.operation == RESTORE:
            restored_id, restored_ms = entry.restored_id, entry.restored_ms
        yield entry


@attrs.frozen
class DeltaTables(_Tables):
    """Tables below a directory. Methods do as those of `IcebergTables`, or raise ConfigError."""

    conflicts = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")

    def exists(self, table: str) -> bool:
        tables = self.spark._jvm.io.delta.tables.DeltaTable
        return bool(tables.isDeltaTable(self.spark._jsparkSession, self.catalog.path(table)))

    def create(
        self,
        table: str,
        definition: str,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str],
        is_upserted: bool = False,
    ) -> None:
        """Make a table. It gets no property of its own, as every feature keeps some readers out."""
        if any(transform.endswith(")") for transform in partition_by):
            raise ConfigError(f"the table {table} can't be partitioned by {partition_by[0]}: Delta Lake takes columns")
        self._create(table, definition, provider="delta", partition_by=partition_by, properties=properties)

    def sort(self, table: str, order: Sequence[str]) -> None:
        raise ConfigError(f"the table {table} can't be sorted by {order[0]}: Delta Lake has no sort order of tables")

    def partition(self, table: str, wanted: Sequence[str]) -> Sequence[str]:
        """Change nothing: a table of Delta Lake keeps the partitions that it was made with."""
        return ()

    def change(self, table: str, change: ColumnChange) -> None:
        """Change a column. The first wider column makes the table one for readers that support it."""
        name = self.catalog.full_name(table)
        if not change.adds:
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        self.spark.sql(change.sql(name))

    def commits(self, table: str) -> Iterator[Commit]:
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
        """Append rows. Delta leaves out a second commit of the same batch (`tell`)."""
        rows.writeTo(self.catalog.full_name(table)).append()

    def named(self, before: str, behind: str, key: str) -> Mapping[str, str | None]:
        raise ConfigError(
            f"tables {before}… can't be made on first sight: Delta Lake has no catalog that tells of them"
        )

    def has_forgotten(self, table: str, mapping: str) -> bool:
        logs = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog
        log = logs.forTable(self.spark._jsparkSession, self.catalog.path(table))
        known = log.unsafeVolatileSnapshot().setTransactions()
        return any(known.apply(index).appId().startswith(_application(mapping)) for index in range(known.size()))

    def appended(self, table: str, commit: Committed) -> DataFrame:
        """Return the appended rows. Used after a driver has died; no cheaper way works for every table."""
        before, after = (
            self.spark.read.option("versionAsOf", version).table(self.catalog.full_name(table))
            for version in (commit.snapshot_id - 1, commit.snapshot_id)
        )
        rows: DataFrame = after.exceptAll(before)
        return rows

    def tell(self, summary: Mapping[str, str], *, once: bool = False) -> None:
        self.spark.conf.set(USER_METADATA, json.dumps(dict(summary)))
        values = (_application(summary[MAPPING]) + summary[QUERY_ID], summary[BATCH_ID])
        for name, value in zip(TRANSACTION, values, strict=True):
            if once:
                self.spark.conf.set(name, value)
            else:
                self.spark.conf.unset(name)

    def compact(self, table: str, target_bytes: int) -> int:
        for name in ("minFileSize", "maxFileSize"):
            self.spark.conf.set(f"{SETTINGS}optimize.{name}", str(target_bytes))
        (done,) = self.spark.sql(f"OPTIMIZE {self.catalog.full_name(table)}").collect()
        return int(done.metrics.numFilesRemoved)

    def expire(self, table: str, older_than: datetime, keep_count: int) -> int:
        """Delete old files, orphans too; Delta deletes entries of the log by itself."""
        name = self.catalog.full_name(table)
        hours = max(RETAIN_HOURS, math.ceil((datetime.now(UTC) - older_than).total_seconds() / 3600))
        self.spark.conf.set(f"{SETTINGS}retentionDurationCheck.enabled", "false")  # which wants a week
        system = self.spark._jvm.java.lang.System
        system.setOut(system.err)  # VACUUM prints, and the standard output is the command's
        self.spark.sql(f"VACUUM {name} RETAIN {hours} HOURS")
        history = self.spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1")
        (deleted,) = history.selectExpr("operationMetrics['numDeletedFiles']").first() or (None,)
        return int(deleted or 0)

    def remove_orphans(self, table: str, older_than: datetime) -> int:
        """Do nothing: `expire` has done it."""
        return 0


def _application(mapping: str) -> str:
    """Return the prefix of the applications of a mapping's queries in Delta's log."""
    return f"kafscale:{mapping}:"


TableFormat = IcebergTables | DeltaTables
