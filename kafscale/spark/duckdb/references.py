"""Topics, `last()` and `tail()` of a statement as data sets for DuckDB, within the bounds of its clauses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import attrs

from kafscale.errors import QueryError
from kafscale.spark.bucket.splits import Period
from kafscale.spark.duckdb.kinds import NoTable, NotAlike, TypedColumn
from kafscale.spark.duckdb.literals import interval, timestamp
from kafscale.spark.duckdb.parser import ParsedNode, Spelled
from kafscale.spark.duckdb.queries import Table
from kafscale.spark.duckdb.scans import ScanReading, TopicDataset, TopicRead
from kafscale.spark.duckdb.totals import TotalsDataset
from kafscale.spark.source.bounds import QueryBounds
from kafscale.spark.source.options import Given
from kafscale.spark.sql.bucket_topics import TOPIC_NAME, BucketTopics
from kafscale.spark.sql.clauses import FUNCTIONS, Argument, Bound, Clauses, TopicCall, bound_of
from kafscale.spark.sql.kafsql import ASKED_FOR, COLUMNS, Spoken
from kafscale.spark.values.decoding import DECODED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@attrs.frozen(kw_only=True, eq=False, repr=False)
class References:
    """Makes the tables of one statement, and registers their data sets with the connection."""

    connection: DuckDBPyConnection
    topics: BucketTopics
    spoken: Spoken
    clauses: Clauses
    spelled: Spelled
    reading: ScanReading
    _numbers: Iterator[int] = attrs.field(factory=count, init=False)

    def topic(self, node: ParsedNode) -> Table:
        """Make the table of a name behind FROM. Raises ConfigError, NoTable, QueryError, StoreError."""
        path = node.node("qualified_name").raw("path")
        name = ".".join(path)
        if not (TOPIC_NAME.fullmatch(name) and self.topics.has(name)):
            raise NoTable(name) if len(path) == 1 else NotAlike(f"'{name}' is not a topic")
        return self._table(name, self._bound_at(node), name=path[-1])

    def call(self, node: ParsedNode) -> Table:
        """Make the table of a function behind FROM. Raises as `topic` does."""
        function = (
            node.only("function").node("function").only("function_name", "qualified_name", "arguments", "order_bys")
        )
        name = function.text("function_name").lower()
        if name not in FUNCTIONS:
            raise NotAlike(f"{name}() is Spark's")
        topic, *others = [
            _argument(node.only("expression").node("expression")) for node in function.nodes("arguments")
        ] or [Argument(None)]
        if not isinstance(topic.value, str):
            raise QueryError(f"{name}() takes a topic first, such as {name}('orders', …)")
        if not (TOPIC_NAME.fullmatch(topic.value) and self.topics.has(topic.value)):
            raise NoTable(topic.value)
        bound, partition = bound_of(TopicCall(start=0, end=0, function=name, topic=topic.value, arguments=others))
        bound = attrs.evolve(bound, is_full=self._bound_at(node).is_full)
        return self._table(topic.value, bound, partition=partition, name=topic.value)

    def _bound_at(self, node: ParsedNode) -> Bound:
        return self.clauses.bound_at(self.spelled.original(node.position_bytes))

    def _table(self, topic: str, bound: Bound, *, name: str, partition: int | None = None) -> Table:
        options = self.topics.reading(topic, bound, partition=partition, options=self.spoken.options())
        read = TopicRead.of(Given(options))
        registered = f"topic{next(self._numbers)}"
        self.connection.register(registered, TopicDataset(read, self.reading))
        totals = None if bound.tail_count is not None else partial(self._totals, read, self._since_us(bound))
        return Table(sql=self._bounded(registered, bound), columns=self._columns(read), name=name, totals=totals)

    def _totals(self, read: TopicRead, since_us: int | None, bounds: QueryBounds) -> str:
        if since_us is not None:
            since = Period(first_ms=since_us // 1000)
            bounds = bounds.within(QueryBounds(period=since))
        registered = f"totals{next(self._numbers)}"
        self.connection.register(registered, TotalsDataset(read, bounds, self.reading))
        return registered

    def _since_us(self, bound: Bound) -> int | None:
        """Return the beginning of a bound's time, a whole millisecond."""
        return None if bound.last_ms is None else int(self.topics.clock() * 1000) * 1000 - bound.last_ms * 1000

    def _bounded(self, registered: str, bound: Bound) -> str:
        """Return SQL of the rows within a bound."""
        sql = f"FROM {registered}"
        since_us = self._since_us(bound)
        if since_us is not None:
            sql += f' WHERE "timestamp" >= {timestamp(since_us).sql}'
        if bound.tail_count is None:
            return registered if since_us is None else f"(SELECT * {sql})"
        newest = (
            f'SELECT * {sql} ORDER BY "timestamp" DESC NULLS LAST, "partition", "offset" DESC LIMIT {bound.tail_count}'
        )
        return f'(SELECT * FROM ({newest}) ORDER BY "timestamp", "partition", "offset")'

    def _columns(self, read: TopicRead) -> list[TypedColumn]:
        """Return the columns of a topic in the statement, as `Spoken.select` has them."""
        columns = {name: TypedColumn.of(name, type_) for name, type_ in read.types.items()}
        names = self.spoken.names
        if not self.spoken.has_kafsql_columns:
            return list(columns.values())
        own = [
            attrs.evolve(columns[COLUMNS[column]], name=column)
            for column in COLUMNS
            if column not in ASKED_FOR or column in names
        ]
        return [*own, *(column for name, column in columns.items() if name.lower() in names or name == DECODED)]


def _argument(node: ParsedNode) -> Argument:
    """Read a literal; or a name, as topics may be given without quotes. Raises NotAlike."""
    if node.type == "COLUMN_REF":
        return Argument(".".join(node.raw("column_names")))
    found = interval(node) if node.type == "FUNCTION" else None
    if found is not None:
        assert isinstance(found.literal, int)
        return Argument(found.literal // 1000, is_time=True)
    literal = node.raw("literal") or {}
    if literal.get("kind") == "STRING":
        return Argument(str(literal.get("text", "")))
    if literal.get("kind") == "INTEGER":
        return Argument(int(literal["text"]))
    raise NotAlike("what last() and tail() take is a constant")
