"""Iceberg: the summary of a batch is that of its snapshot; maintenance is by Iceberg's procedures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.catalogs import CatalogOptions, quoted
from kafscale.spark.pipeline.snapshots import OFFSETS, Commit, Committed
from kafscale.spark.pipeline.table_format import TableHead, create_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafscale.spark.pipeline.schema import ColumnChange

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
class IcebergTables:
    """Tables of one of Iceberg's catalogs. See `TableFormat`. `spark` is a session, whose inner parts have no types."""

    spark: SparkSession
    catalog: CatalogOptions
    conflicts: Sequence[str] = attrs.field(
        default=("CommitFailedException", "ValidationException", "CommitStateUnknownException"), init=False
    )

    def exists(self, table: str) -> bool:
        """See `TableFormat`."""
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
        """See `TableFormat`. Upserts write files of deletes, which readers apply."""
        name = self.catalog.full_name(table)
        all_properties = {**DEFAULT_PROPERTIES, **(UPSERT_PROPERTIES if is_upserted else {}), **properties}
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
        self.spark.sql(create_table(name, definition, "iceberg", partition_by, all_properties))

    def sort(self, table: str, order: Sequence[str]) -> None:
        """See `TableFormat`."""
        if self._load(table).sortOrder().isUnsorted():
            self.spark.sql(f"ALTER TABLE {self.catalog.full_name(table)} WRITE ORDERED BY {', '.join(order)}")

    def partition(self, table: str, wanted: Sequence[str]) -> Sequence[str]:
        """See `TableFormat`. Existing files keep the specification that they were written by."""
        found = spec_changes(_partitions(self._load(table)), wanted)
        for change in found:
            self.spark.sql(f"ALTER TABLE {self.catalog.full_name(table)} {change}")
        return found

    def change(self, table: str, change: ColumnChange) -> None:
        """See `TableFormat`."""
        self.spark.sql(change.sql(self.catalog.full_name(table)))

    def commits(self, table: str) -> Iterator[Commit]:
        """See `TableFormat`."""
        return ancestry(self._load(table))

    def append(self, table: str, rows: DataFrame, *, behind: TableHead | None = None) -> None:
        """See `TableFormat`.

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
        """See `TableFormat`."""
        namespace = before.rpartition(".")[0]
        full_name = self.catalog.full_name(namespace)
        if not self.spark.catalog.databaseExists(full_name):
            return {}
        names = [f"{namespace}.{row.tableName}" for row in self.spark.sql(f"SHOW TABLES IN {full_name}").collect()]
        wanted = [name for name in names if name.startswith(before) and name.endswith(behind)]
        return {name: self._load(name).properties().get(key) for name in wanted}

    def has_forgotten(self, table: str, mapping: str) -> bool:
        """See `TableFormat`. If another tool has expired a mapping's newest snapshot, nothing tells."""
        return False

    def appended(self, table: str, commit: Committed) -> DataFrame:
        """See `TableFormat`."""
        name = self.catalog.full_name(table)
        if commit.parent_id is None:
            return self.spark.read.option("versionAsOf", commit.snapshot_id).table(name)
        reader = self.spark.read.format("iceberg").option("start-snapshot-id", commit.parent_id)
        return reader.option("end-snapshot-id", commit.snapshot_id).load(name)

    def tell(self, summary: Mapping[str, str], *, once: bool = False) -> None:
        """See `TableFormat`."""
        for name, value in summary.items():
            self.spark.conf.set(SESSION_PREFIX + name, value)

    def compact(self, table: str, target_bytes: int) -> int:
        """See `TableFormat`."""
        # A file with deletes is written anew, so that readers need not apply them for ever.
        wanted = f"map('target-file-size-bytes', '{target_bytes}', 'delete-file-threshold', '1')"
        return int(self._call("rewrite_data_files", table, f"options => {wanted}")["rewritten_data_files_count"])

    def expire(self, table: str, older_than: datetime, keep_count: int) -> int:
        """See `TableFormat`."""
        arguments = f"older_than => {_moment(older_than)}, retain_last => {keep_count}"
        deleted = self._call("expire_snapshots", table, arguments)
        return sum(count for name, count in deleted.items() if name.startswith("deleted_"))

    def remove_orphans(self, table: str, older_than: datetime) -> int:
        """See `TableFormat`."""
        # Otherwise Iceberg lists by Hadoop's file systems, which lack s3://.
        listing = ", prefix_listing => true" if self.catalog.on_s3 else ""
        arguments = f"table => '{table}', older_than => {_moment(older_than)}{listing}"
        return int(self.spark.sql(f"CALL {self.catalog.name}.system.remove_orphan_files({arguments})").count())

    def _call(self, procedure: str, table: str, arguments: str) -> dict[str, Any]:
        name = f"{self.catalog.name}.system.{procedure}"
        rows = self.spark.sql(f"CALL {name}(table => '{table}', {arguments})").collect()
        found: dict[str, Any] = rows[0].asDict()
        return found

    def _load(self, table: str) -> Any:
        """Return Iceberg's own object of a table, refreshed."""
        session: Any = self.spark
        util = session._jvm.org.apache.iceberg.spark.Spark3Util
        found = util.loadIcebergTable(session._jsparkSession, self.catalog.full_name(table))
        found.refresh()
        return found


def _moment(moment: datetime) -> str:
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"
