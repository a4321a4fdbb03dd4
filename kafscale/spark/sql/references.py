"""Finds the tables that a statement reads, and its calls of `last()` and `tail()`, with their places in the text.

Spark's own parser makes the plan that is searched, so its whole grammar is covered: common table expressions, which
hide tables of their name, subqueries, pipes, quoted names. The plan's nodes know their place in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import attrs

from kafscale.errors import QueryError
from kafscale.spark.sql.clauses import FUNCTIONS, Argument, TopicCall
from kafscale.spark.sql.tokens import SqlToken, closing, tokenize

DESCRIBING = ("DescribeRelation", "ShowColumns", "DescribeColumn")
CHANGING = ("MergeIntoTable", "UpdateTable", "DeleteFromTable")  # what they change is their first child
KEEPING = ("CreateView", "CreateViewCommand", "AlterViewAs", "CacheTableAsSelect")  # a query, for others to use


@attrs.frozen(kw_only=True)
class TableReference:
    """A name in the text, from `start` to `end`.

    is_relation: a query in parentheses could stand there; otherwise a name replaces it.
    options: of its WITH clause, which is within `end`.
    """

    start: int
    end: int
    parts: Sequence[str]
    is_relation: bool = True
    options: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """Return the parts joined by points, as a topic is named."""
        return ".".join(self.parts)


@attrs.frozen(kw_only=True)
class StatementReads:
    """All reads of a statement. `keeps_query`: it makes a view, or caches. `is_explained`: it is an EXPLAIN."""

    references: Sequence[TableReference]
    calls: Sequence[TopicCall]
    keeps_query: bool
    is_explained: bool


def find(plan: Any, text: str) -> StatementReads:
    """Search a plan that Spark has parsed from `text`. Raises QueryError."""
    if _class(plan) == "CompoundBody":
        raise QueryError("scripts (BEGIN … END) are not for topics: give their statements one by one")
    is_explained = _class(plan) == "ExplainCommand"
    if is_explained:
        plan = plan.logicalPlan()
    search = _Search(tokenize(text))
    found = list(search.find(plan, frozenset()))
    return StatementReads(
        references=[read for read in found if isinstance(read, TableReference)],
        calls=[read for read in found if isinstance(read, TopicCall)],
        keeps_query=_class(plan) in KEEPING,
        is_explained=is_explained,
    )


@attrs.frozen
class _Search:
    tokens: Sequence[SqlToken]

    def find(self, node: Any, hidden: Set[str]) -> Iterator[TableReference | TopicCall]:
        """Search a node. hidden: names of common table expressions, in lower case."""
        kind = _class(node)
        if kind == "UnresolvedWith":
            yield from self._find_with(node, hidden)
            return
        if kind == "UnresolvedRelation":
            yield from self._reference(node, hidden)
        elif kind == "PlanWithUnresolvedIdentifier" and _class(node.identifierExpr()) == "Literal":
            start, end = _span(node)  # of Spark 4.1; later ones make a relation of IDENTIFIER('orders')
            yield TableReference(start=start, end=end, parts=[node.identifierExpr().value().toString()])
        elif kind == "UnresolvedTableValuedFunction" and node.name().mkString(".").lower() in FUNCTIONS:
            yield self._call(node)
        children = _items(node.children())
        if kind in DESCRIBING and _class(children[0]) == "UnresolvedTableOrView":
            yield self._place(children[0], is_relation=False)
        for child in children[kind in CHANGING :]:
            yield from self.find(child, hidden)
        for subquery in _items(node.subqueries()):
            yield from self.find(subquery, hidden)

    def _find_with(self, node: Any, hidden: Set[str]) -> Iterator[TableReference | TopicCall]:
        """Search a WITH. Each expression sees those before it, and itself if it is recursive."""
        for relation in _items(node.cteRelations()):
            name = relation._1().lower()
            yield from self.find(relation._2(), hidden | {name} if node.allowRecursion() else hidden)
            hidden = hidden | {name}
        for child in _items(node.children()):
            yield from self.find(child, hidden)

    def _reference(self, node: Any, hidden: Set[str]) -> Iterator[TableReference]:
        parts = _items(node.multipartIdentifier())
        if len(parts) == 1 and parts[0].lower() in hidden:
            return
        if node.isStreaming():
            raise QueryError(f"STREAM {'.'.join(parts)}: a statement ends; streams are for spark.readStream")
        yield self._place(node, options=_map(node.options().asCaseSensitiveMap()))

    def _place(
        self, node: Any, *, is_relation: bool = True, options: Mapping[str, str] | None = None
    ) -> TableReference:
        start, end = _span(node)
        behind = [index for index, token in enumerate(self.tokens) if token.start >= end]
        if options and behind and self.tokens[behind[0]].word == "WITH":
            end = self.tokens[closing(self.tokens, behind[0] + 1)].end
        before = [token.word for token in self.tokens if token.end <= start]
        return TableReference(
            start=start,
            end=end,
            parts=_items(node.multipartIdentifier()),
            is_relation=is_relation and before[-1:] != ["TABLE"],
            options=options or {},
        )

    def _call(self, node: Any) -> TopicCall:
        start, _ = _span(node)  # its end is behind the alias
        function = node.name().mkString(".").lower()
        opening = next(i for i, token in enumerate(self.tokens) if token.start >= start and token.text == "(")
        arguments = [_argument(argument, function) for argument in _items(node.functionArgs())]
        if not arguments or not isinstance(arguments[0].value, str):
            raise QueryError(f"{function}() takes a topic first, such as {function}('orders', …)")
        return TopicCall(
            start=start,
            end=self.tokens[closing(self.tokens, opening)].end,
            function=function,
            topic=arguments[0].value,
            arguments=arguments[1:],
        )


def _argument(node: Any, function: str) -> Argument:
    """Read a literal; or a name, as topics may be given without quotes."""
    if _class(node) == "UnresolvedAttribute":
        return Argument(node.nameParts().mkString("."))
    if _class(node) != "Literal":
        raise QueryError(f"{function}() takes literals, not {node.sql()}")
    type_, value = node.dataType().simpleString(), node.value()
    if type_.startswith("interval") and isinstance(value, int) and "month" not in type_ and "year" not in type_:
        return Argument(value // 1000, is_time=True)
    return Argument(value.toString() if type_ == "string" else value)


def _span(node: Any) -> tuple[int, int]:
    origin = node.origin()
    return origin.startIndex().get(), origin.stopIndex().get() + 1


def _class(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name.removesuffix("$")


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _map(java_map: Any) -> dict[str, str]:
    return {str(entry.getKey()): str(entry.getValue()) for entry in java_map.entrySet()}
