"""The interface of table formats, and the SQL that they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import attrs

from kafscale.spark.pipeline.snapshots import Commit, Committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kafscale.spark.pipeline.schema import ColumnChange


@attrs.frozen
class TableHead:
    """The newest commit of a table at one moment; the id is None without one."""

    id: int | None

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> TableHead:
        """Take the first of `TableFormat.commits`."""
        return cls(next((commit.id for commit in commits), None))


class TableFormat(Protocol):
    """The tables of a catalog. `table` is a name as a mapping has it, `namespace.name`."""

    @property
    def conflicts(self) -> Sequence[str]:
        """Return texts in errors of a commit that conflicts with another writer's."""
        ...

    def exists(self, table: str) -> bool:
        """Tell whether there is such a table."""
        ...

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

        Raises ConfigError for a missing feature of the format.
        """
        ...

    def sort(self, table: str, order: Sequence[str]) -> None:
        """Sort new files by these keys, in SQL, unless others are set. Raises ConfigError."""
        ...

    def partition(self, table: str, wanted: Sequence[str]) -> Sequence[str]:
        """Partition files so that are written from now on. Returns the changes."""
        ...

    def change(self, table: str, change: ColumnChange) -> None:
        """Add a column, or make one wider."""
        ...

    def commits(self, table: str) -> Iterator[Commit]:
        """Iterate over the commits of the table, newest first."""
        ...

    def append(self, table: str, rows: DataFrame, *, behind: TableHead | None = None) -> None:
        """Append rows in one commit. `behind`: fail with one of `conflicts` if another commit came since."""
        ...

    def named(self, before: str, behind: str, key: str) -> Mapping[str, str | None]:
        """Return tables whose names begin and end so, and a property of each. Raises ConfigError."""
        ...

    def has_forgotten(self, table: str, mapping: str) -> bool:
        """Tell whether the table has batches of a mapping that none of its commits tells of."""
        ...

    def appended(self, table: str, commit: Committed) -> DataFrame:
        """Return the rows that a commit has appended."""
        ...

    def tell(self, summary: Mapping[str, str], *, once: bool = False) -> None:
        """Set the summary of the session's next commits. `once`: a table takes this batch once."""
        ...

    def compact(self, table: str, target_bytes: int) -> int:
        """Compact small files, and return their number."""
        ...

    def expire(self, table: str, older_than: datetime, keep_count: int) -> int:
        """Forget snapshots before a moment, except the newest ones. Returns the number of deleted files."""
        ...

    def remove_orphans(self, table: str, older_than: datetime) -> int:
        """Delete files from before a moment that no snapshot has, and return their number."""
        ...


def create_table(
    name: str, definition: str, provider: str, partition_by: Sequence[str], properties: Mapping[str, str]
) -> str:
    """Return the statement that makes a table if it is missing."""
    parts = [f"CREATE TABLE IF NOT EXISTS {name} ({definition}) USING {provider}"]
    if partition_by:
        parts.append(f"PARTITIONED BY ({', '.join(partition_by)})")
    if properties:
        given = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())
        parts.append(f"TBLPROPERTIES ({given})")
    return " ".join(parts)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
