"""The tree of DuckDB's parser. It is read strictly: a node that has more in it than a rule knows is left to Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.quick.errors import NotAlike

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# What every node may have. A function has no order of its arguments if the modifier in it is empty.
_ALWAYS = frozenset(("class", "type", "query_location", "query_location_length", "alias"))
_EMPTY: Sequence[Any] = (None, False, [], {}, {"type": "ORDER_MODIFIER"})


@attrs.frozen
class Node:
    """A node by its fields."""

    fields: Mapping[str, Any]

    @property
    def type(self) -> str:
        """Return what it is."""
        return str(self.fields.get("type", ""))

    @property
    def alias(self) -> str | None:
        """Return the name that the statement gives it."""
        return self.fields.get("alias")

    @property
    def position_bytes(self) -> int:
        """Return where it begins in the text."""
        return int(self.fields.get("query_location", 0))

    def only(self, *names: str) -> Node:
        """Return the node itself. Raises NotAlike if it has fields besides these, and those of every node."""
        for name, value in self.fields.items():
            if name not in _ALWAYS and name not in names and value not in _EMPTY:
                raise NotAlike(f"of {name.replace('_', ' ')} no rule tells")
        return self

    def text(self, name: str) -> str:
        """Return a field that is a text; empty if there is none."""
        return str(self.fields.get(name, ""))

    def has(self, name: str) -> bool:
        """Tell whether there is anything in a field."""
        return self.fields.get(name) not in _EMPTY

    def node(self, name: str) -> Node:
        """Return a field that is a node."""
        return Node(self.fields[name])

    def nodes(self, name: str) -> Sequence[Node]:
        """Return a field that is a list of nodes."""
        return [Node(each) for each in self.fields.get(name) or []]

    def raw(self, name: str) -> Any:
        """Return a field as it is."""
        return self.fields.get(name)


def parsed(connection: DuckDBPyConnection, text: str) -> Node:
    """Return the tree of one query. Raises NotAlike."""
    told = connection.execute(
        "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)", [text]
    ).fetchall()
    tree = json.loads(told[0][0])
    if tree.get("error") or len(tree["statements"]) != 1:
        why = tree.get("error_message") if tree.get("error_type") == "parser" else None
        raise NotAlike(f"DuckDB does not read it as a query ({why})" if why else "DuckDB does not read it as a query")
    return Node(tree["statements"][0]).node("node")
