"""What a format of tables does for the pipeline, and the SQL that formats have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import attrs

from kafscale.spark.pipeline.snapshots import Commit, Committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kafscale.spark.pipeline.schema import Change


@attrs.frozen
class Head:
    """The newest commit of a table at one moment. Its id is None if there was none."""

    id: int | None

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> Head:
        """Take the first of what `TableFormat.commits` tells."""
        return cls(next((each.id for each in commits), None))


class TableFormat(Protocol):
    """The tables of a catalog. `table` is a name as a mapping has it, `namespace.name`."""

    @property
    def conflicts(self) -> Sequence[str]:
        """Return what is in the text of errors that say that another writer's commit was first."""
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
        """Make a table of columns, as SQL has them, if it is missing; properties go before the format's own.

        Raises ConfigError for what the format does not have.
        """
        ...

    def sort(self, table: str, order: Sequence[str]) -> None:
        """Have files sorted by these keys, as SQL has them, if they are not sorted by others. Raises ConfigError."""
        ...

    def partition(self, table: str, wanted: Sequence[str]) -> Sequence[str]:
        """Have files that are written from now on partitioned so. Returns what was changed, nothing if they were."""
        ...

    def change(self, table: str, change: Change) -> None:
        """Add a column, or make one wider."""
        ...

    def commits(self, table: str) -> Iterator[Commit]:
        """Iterate over what the table consists of now, newest first."""
        ...

    def append(self, table: str, rows: DataFrame, *, behind: Head | None = None) -> None:
        """Append rows in one commit. `behind`: only if nothing else came into the table since; one of `conflicts`
        otherwise.
        """
        ...

    def named(self, before: str, behind: str, key: str) -> Mapping[str, str | None]:
        """Return tables whose names begin and end so, and what each has as a property. Raises ConfigError."""
        ...

    def has_forgotten(self, table: str, mapping: str) -> bool:
        """Tell whether batches of a mapping are in the table though none of its commits tells of one."""
        ...

    def appended(self, table: str, commit: Committed) -> DataFrame:
        """Return the rows that a commit has appended."""
        ...

    def tell(self, summary: Mapping[str, str], *, once: bool = False) -> None:
        """Give the next commits of the session a summary. `once`: no table gets a second one of this batch."""
        ...

    def compact(self, table: str, target_bytes: int) -> int:
        """Put small files together. Returns how many."""
        ...

    def expire(self, table: str, older_than: datetime, keep_count: int) -> int:
        """Forget snapshots before a moment, but the newest so many. Returns how many files were deleted."""
        ...

    def remove_orphans(self, table: str, older_than: datetime) -> int:
        """Delete files of before a moment that no snapshot has. Returns how many."""
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
