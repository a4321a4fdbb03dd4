"""How many columns a reader schema may become: types that are used twice at each level double with each.

A reader passes a `Place` down while it makes columns of its schema, and counts each of them there.
"""

from __future__ import annotations

from typing import Any

import attrs

from kafscale.errors import ConfigError

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
