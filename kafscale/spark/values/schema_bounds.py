"""How many columns a reader schema may become, and how deep: types that are used twice at each level double with each.

A reader passes a `Place` down while it makes columns of its schema, and counts each of them there.
"""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa

from kafscale.errors import ConfigError

DEPTH_MAX = 200  # of types within types: what reads them calls itself, and Pythons differ in how often that may be
COLUMNS_MAX = 10_000  # nested ones among them; BigQuery's limit; Spark's own plans become slow before


@attrs.define(eq=False, repr=False)
class Count:
    """How many there may still be of something that a schema makes."""

    left: int
    excess: str  # what is told when there are too many

    def take(self, count: int = 1) -> None:
        """Raises ConfigError when there are too many."""
        self.left -= count
        if self.left < 0:
            raise ConfigError(self.excess)


def is_too_deep(type_: pa.DataType) -> bool:
    """Tell whether a column's type has more levels than may be."""
    level = [type_]
    for _ in range(DEPTH_MAX):
        level = [each.field(index).type for each in level for index in range(each.num_fields)]
        if not level:
            return False
    return True


def _columns() -> Count:
    return Count(
        COLUMNS_MAX,
        f"the schema would become more than {COLUMNS_MAX} columns, nested ones among them: "
        "give a reader schema that leaves out what is not needed",
    )


@attrs.frozen
class Place:
    """Where in a reader schema its columns are being made.

    around: what tells the types that this place is within. columns: how many there may still be in the whole schema.
    """

    around: tuple[Any, ...] = ()
    columns: Count = attrs.field(factory=_columns)

    def within(self, type_: Any) -> Place:
        """The place of what is in this type here."""
        return Place((*self.around, type_), self.columns)
