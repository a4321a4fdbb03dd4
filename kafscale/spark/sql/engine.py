"""Makes a DataFrame of a statement: each reference to a topic gets a `load()` of its own.

Spark's own parser makes a plan, which is searched for tables and calls of `last()` and `tail()`: its nodes know their
place in the text. Names of topics are replaced by names of temporary views, which are dropped once the statement has
been analysed. So conditions on one reference leave out nothing of another one, and a statement reads the bucket as it
was when it was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.errors import QueryError
from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.catalogs import quoted
from kafscale.spark.sql.answers import explained
from kafscale.spark.sql.failures import may_be_of_columns, spark_errors
from kafscale.spark.sql.kafsql import (
    COLUMNS,
    TABLE_FUNCTIONS,
    Argument,
    Bound,
    Clauses,
    Spoken,
    TopicCall,
    bound_of,
    columns_needed,
    define_functions,
    with_segments,
)
from kafscale.spark.sql.tokens import Edit, SqlToken, closing, edited, tokenize
from kafscale.spark.sql.topics import Topics, answer_command
from kafscale.spark.values.decoder import DECODED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DESCRIBING = ("DescribeRelation", "ShowColumns", "DescribeColumn")
CHANGING = ("MergeIntoTable", "UpdateTable", "DeleteFromTable")  # what they change is their first child
KEEPING = ("CreateView", "CreateViewCommand", "AlterViewAs", "CacheTableAsSelect")  # a query, for others to use


@attrs.frozen(kw_only=True)
class TableReference:
    """A name in the text, from `start` to `end`, which includes a WITH clause of `options`.

    is_relation: a query in parentheses could stand there; otherwise a name replaces it.
    """

    start: int
    end: int
    parts: Sequence[str]
    is_relation: bool = True
    options: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        return ".".join(self.parts)


@attrs.frozen(kw_only=True)
class StatementReads:
    """All reads of a statement. `keeps_query`: it makes a view, or caches."""

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
        elif kind == "UnresolvedTableValuedFunction" and node.name().mkString(".").lower() in TABLE_FUNCTIONS:
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
        yield self._place(
            node,
            options={
                str(entry.getKey()): str(entry.getValue()) for entry in node.options().asCaseSensitiveMap().entrySet()
            },
        )

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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Engine:
    """Answers statements. `catalogs`: names of Spark's catalogs, which don't begin the name of a topic."""

    topics: Topics
    catalogs: Sequence[str] = ()
    _numbers: Iterator[int] = attrs.field(factory=count, init=False)

    def frame(self, statement: str) -> DataFrame:
        """Return the rows of a query, or run a command. Raises ConfigError, QueryError, StoreError."""
        answered = answer_command(statement, self.topics)
        if answered is None:
            return self._fitting_query(statement)
        types = ", ".join(f"{name} {type_}" for name, type_ in answered.types.items())
        return self.topics.spark.createDataFrame(answered.rows, types)

    def _fitting_query(self, statement: str) -> DataFrame:
        """Read the columns that the statement names; all of them if that fails, as for `orders AS o(a, b)`."""
        spoken = Spoken.of(statement)
        columns = None
        if not spoken.needs_segments and DECODED not in spoken.names:
            columns = columns_needed(spoken.text, COLUMN_TYPES, COLUMNS)
        if columns is None:
            return self._query(spoken)
        try:
            return self._query(spoken, columns)
        except QueryError as exc:
            if not may_be_of_columns(exc):
                raise
            return self._query(spoken)

    def _query(self, spoken: Spoken, columns: Set[str] | None = None) -> DataFrame:
        clauses = Clauses.of(spoken.text)
        spark = self.topics.spark
        if spoken.needs_functions:
            define_functions(spark)
        session: Any = spark._jsparkSession  # which Spark's parser is reached by alone
        with spark_errors():
            plan = session.sessionState().sqlParser().parsePlan(clauses.text)
            found = find(plan, clauses.text)
        with self._views() as views, self._naming_topics(clauses.text), spark_errors():
            read = partial(self._read, spoken, views, is_full=found.is_explained, columns=columns)
            edits = [*self._references(found, clauses, read), *self._calls(found, clauses, read)]
            if edits and found.keeps_query:
                raise QueryError(
                    "a view or a cached table would keep what its topics have now: name the query by WITH instead"
                )
            text = edited(clauses.text, edits)
            return explained(spark, text) if found.is_explained else spark.sql(text)

    @contextmanager
    def _views(self) -> Iterator[list[str]]:
        names: list[str] = []
        try:
            yield names
        finally:
            for name in names:
                self.topics.spark.catalog.dropTempView(name)

    @contextmanager
    def _naming_topics(self, statement: str) -> Iterator[None]:
        """Name existing topics in errors about unknown names, or say that a topic can't stand there."""
        try:
            yield
        except QueryError as exc:
            unknown = re.search(r"The table or view `(.+?)` cannot be found", str(exc))
            if unknown is None:
                raise
            name = unknown[1].replace("`.`", ".")
            if self.topics.has(name):
                raise QueryError(_only_read(name, statement)) from exc
            raise self.topics.no_such(name) from exc

    def _references(self, found: StatementReads, clauses: Clauses, read: Callable[..., str]) -> Iterator[Edit]:
        for reference in found.references:
            is_of_a_catalog = len(reference.parts) > 1 and reference.parts[0] in self.catalogs
            if not is_of_a_catalog and self.topics.has(reference.name):
                view = read(reference.name, clauses.bound_at(reference.start), options=reference.options)
                text = f"({view} AS {quoted(reference.parts[-1])})" if reference.is_relation else view
                yield Edit(start=reference.start, end=reference.end, text=text)

    def _calls(self, found: StatementReads, clauses: Clauses, read: Callable[..., str]) -> Iterator[Edit]:
        for call in found.calls:
            bound, partition = bound_of(call)
            if not self.topics.has(call.topic):
                raise self.topics.no_such(call.topic)
            bound = attrs.evolve(bound, is_full=clauses.bound_at(call.start).is_full)
            view = read(call.topic, bound, partition=partition)
            yield Edit(start=call.start, end=call.end, text=f"({view} AS {quoted(call.topic)})")

    def _read(self, spoken: Spoken, views: list[str], topic: str, bound: Bound, **details: Any) -> str:
        options = {**spoken.options(), **(details.pop("options", None) or {})}
        bound = bound.joined(Bound(is_full=details.pop("is_full")))
        frame = self.topics.frame(topic, bound, options=options, **details)
        if spoken.needs_segments:
            frame = with_segments(frame, self.topics.logs(topic))
        name = f"kafscale_reference_{next(self._numbers)}"
        spoken.select(frame).createOrReplaceTempView(name)
        views.append(name)
        return name


def _only_read(topic: str, statement: str) -> str:
    """Return the message for a topic where Spark needs a table of its own."""
    words = [token.word for token in tokenize(statement)]
    if any(words[index + 1 : index + 3] == ["AS", "OF"] for index in range(len(words))):
        return (
            f"'{topic}' is a topic, which has no versions: TIMESTAMP AS OF and VERSION AS OF are for Iceberg tables. "
            f"For its records of a time, {topic} LAST 15m, or WHERE timestamp …"
        )
    return (
        f"'{topic}' is a topic, and SQL only reads topics: no {' '.join(words[:1])} … is for them. To write, "
        '`kafscale produce`, or df.write.format("kafscale") in a program'
    )
