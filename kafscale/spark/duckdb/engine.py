"""Chooses the engine of a statement, and answers it by a DuckDB in this process, which needs no JVM.

    spark     Spark answers everything
    duckdb    DuckDB answers statements that it answers as Spark does, and refuses others
    auto      DuckDB answers such statements if they read little, Spark all others; the user is told which and why

DuckDB gets SQL that rules have written, and no access to files or networks; data comes from the scans alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import pyarrow as pa

from kafscale.errors import ConfigError, QueryError
from kafscale.extras import install_command, missing_extra
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.bucket.splits import Period
from kafscale.spark.duckdb.expressions import Subquery
from kafscale.spark.duckdb.functions import interval, timestamp
from kafscale.spark.duckdb.kinds import NoTable, NotAlike, TypedColumn, spark_name
from kafscale.spark.duckdb.parser import ParsedNode, Spelled, parsed, spelled
from kafscale.spark.duckdb.queries import UNNAMED, Queries, Table
from kafscale.spark.duckdb.scans import ScanReading, TopicDataset, TopicRead, TotalsDataset
from kafscale.spark.duckdb.texts import DuckDBAnswer, text_of
from kafscale.spark.source.options import Given
from kafscale.spark.source.planning import QueryBounds
from kafscale.spark.sql.answers import SparkAnswer
from kafscale.spark.sql.engine import Engine
from kafscale.spark.sql.kafsql import (
    ASKED_FOR,
    COLUMNS,
    TABLE_FUNCTIONS,
    Argument,
    Bound,
    Clauses,
    Spoken,
    TopicCall,
    bound_of,
)
from kafscale.spark.sql.tokens import refuse_mistakes, tokenize
from kafscale.spark.sql.topics import BucketTopics, CommandRows, answer_command
from kafscale.spark.values.decoder import DECODED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@attrs.frozen(kw_only=True, eq=False, repr=False)
class References:
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
        if not self.topics.has(name):
            raise NoTable(name) if len(path) == 1 else NotAlike(f"'{name}' is not a topic")
        return self._table(name, self._bound_at(node), name=path[-1])

    def call(self, node: ParsedNode) -> Table:
        function = (
            node.only("function").node("function").only("function_name", "qualified_name", "arguments", "order_bys")
        )
        name = function.text("function_name").lower()
        if name not in TABLE_FUNCTIONS:
            raise NotAlike(f"{name}() is Spark's")
        topic, *others = [
            _argument(node.only("expression").node("expression")) for node in function.nodes("arguments")
        ] or [Argument(None)]
        if not isinstance(topic.value, str):
            raise QueryError(f"{name}() takes a topic first, such as {name}('orders', …)")
        if not self.topics.has(topic.value):
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


BATCH_ROWS = 4096
SETTINGS = {"enable_external_access": False, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
ARROW_TYPES = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64()}
DESCRIBE_COLUMNS = {"col_name": "STRING", "data_type": "STRING", "comment": "STRING"}


def _connect() -> DuckDBPyConnection:
    """Raises StartupError if duckdb is not installed."""
    try:
        import duckdb
    except ImportError as exc:
        raise missing_extra("sql", exc, what="--engine duckdb") from exc
    spilled = Path(tempfile.gettempdir(), f"kafscale-sql-{uuid4().hex}")  # made if there is need of it, by DuckDB
    connection = duckdb.connect(config={**SETTINGS, "temp_directory": str(spilled)})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@attrs.define(kw_only=True, eq=False, repr=False)
class DuckDBEngine:
    """Answers statements that it can answer as Spark does. `max_bytes` bounds the read of one; None does not."""

    topics: BucketTopics
    max_bytes: int | None = None
    _connection: DuckDBPyConnection = attrs.field(factory=_connect, init=False)
    _running: DuckDBPyConnection | None = attrs.field(default=None, init=False)

    def answer(self, statement: str, reading: ScanReading | None = None) -> DuckDBAnswer:
        """Return the rows of a query, of which the first are read; to be closed before the next statement.

        Raises NotAlike for a statement of Spark's; ConfigError, QueryError, StoreError for one that Spark would refuse.
        """
        told = answer_command(statement, self.topics) or self._described(statement)
        if told is not None:
            return _listed(told)
        reading = ScanReading() if reading is None else reading
        reading.max_bytes = self.max_bytes
        running = self._running = self._connection.cursor()
        try:
            return _run(running, self._translated(statement, running, reading), reading, self._finish)
        except BaseException:
            self._finish()
            raise

    def close(self) -> None:
        self._finish()
        self._connection.close()

    def _finish(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def interrupt(self) -> None:
        """Cancel the running statement, from another thread."""
        running = self._running
        if running is not None:
            running.interrupt()

    def _translated(self, statement: str, connection: DuckDBPyConnection, reading: ScanReading) -> Subquery:
        spoken = Spoken.of(statement)
        if spoken.needs_segments:
            raise NotAlike("_segment is found by Spark")
        clauses = Clauses.of(spoken.text)
        words = spelled(clauses.text)
        references = References(
            connection=connection, topics=self.topics, spoken=spoken, clauses=clauses, spelled=words, reading=reading
        )
        now_us = int(self.topics.clock() * 1_000_000)
        queries = Queries(topic=references.topic, call=references.call, now_us=now_us)
        made = queries.query(parsed(connection, words.text.rstrip().removesuffix(";")))
        if any(column.name == UNNAMED for column in made.columns):
            raise NotAlike("only Spark knows the name of a column that has none (give it one by AS)")
        return made

    def _described(self, statement: str) -> CommandRows | None:
        """Answer `DESCRIBE topic`; None for any other statement."""
        tokens = [token for token in tokenize(statement) if token.text != ";"]
        words = [token.word for token in tokens]
        if words[:1] not in (["DESCRIBE"], ["DESC"]):
            return None
        name = "".join(token.name for token in tokens[1 + (words[1:2] == ["TABLE"]) :])
        if not self.topics.has(name):
            return None
        read = TopicRead.of(Given({**self.topics.options, "subscribe": name}))
        rows = [(column, spark_name(type_), None) for column, type_ in read.types.items()]
        return CommandRows(types=DESCRIBE_COLUMNS, rows=rows)


@contextmanager
def duckdb_errors(reading: ScanReading) -> Iterator[None]:
    """Turn errors of DuckDB into NotAlike, or into the error of a scan that caused them."""
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, RuntimeError) as exc:
        if isinstance(reading.failure, ConfigError | DataLoss):
            raise QueryError(str(reading.failure)) from reading.failure
        if reading.failure is not None:
            raise reading.failure from exc
        if isinstance(exc, duckdb.InterruptException):
            raise KeyboardInterrupt from exc
        raise NotAlike(f"DuckDB refuses it ({' '.join(str(exc).split())[:200]})") from exc


def _run(
    connection: DuckDBPyConnection, made: Subquery, reading: ScanReading, close: Callable[[], None]
) -> DuckDBAnswer:
    with duckdb_errors(reading):
        reader = connection.sql(made.sql).to_arrow_reader(BATCH_ROWS)
        first = next(iter(reader), None)
    for type_ in reader.schema.types:
        text_of(type_)
    names = [column.name for column in made.columns]

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            with duckdb_errors(reading):
                yield from chain([] if first is None else [first], reader)
        except NotAlike as exc:  # some rows may have been shown
            raise QueryError(f"this can't be answered by DuckDB, because {exc}; --engine spark can") from exc

    return DuckDBAnswer(columns=names, types=reader.schema.types, batches=batches(), close=close)


def _listed(told: CommandRows) -> DuckDBAnswer:
    schema = pa.schema([pa.field(name, ARROW_TYPES[type_]) for name, type_ in told.types.items()])
    columns = [pa.array([row[index] for row in told.rows], type_) for index, type_ in enumerate(schema.types)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return DuckDBAnswer(columns=list(told.types), types=schema.types, batches=[batch])


SETTING = ("SET", "RESET")
QueryAnswer = SparkAnswer | DuckDBAnswer


class EngineName(StrEnum):
    AUTO = "auto"
    SPARK = "spark"
    DUCKDB = "duckdb"


@attrs.define(kw_only=True, eq=False, repr=False)
class Engines:
    """Answers statements by one of both engines, each started on demand.

    max_bytes: the largest read of a statement for which `auto` takes DuckDB. start_spark: called once at most.
    is_extended: extensions may know more statements than Spark does. spark_alone: the reason why `auto` takes Spark for
    all statements; SET sets it, as it may change others' meaning, for example by a time zone.
    """

    name: EngineName
    topics: BucketTopics
    max_bytes: int
    start_spark: Callable[[], Engine]
    say: Callable[[str], None]
    spark_alone: str | None = None
    is_extended: bool = False
    _duckdb: DuckDBEngine | None = attrs.field(default=None, init=False)
    _spark: Engine | None = attrs.field(default=None, init=False)

    def answer(self, statement: str, reading: ScanReading | None = None) -> QueryAnswer:
        """Return the rows of a query, or run a command.

        Raises ConfigError, QueryError, StartupError, StoreError.
        """
        reading = reading or ScanReading()
        if not self.is_extended:
            refuse_mistakes(statement)
        if self.name is EngineName.DUCKDB:
            return self._by_duckdb(statement, reading)
        if self.name is EngineName.SPARK:
            return self._by_spark(statement, reading)
        return self._by_either(statement, reading)

    def cancel(self) -> None:
        """Cancel the running statement, from another thread."""
        if self._duckdb is not None:
            self._duckdb.interrupt()
        if self._spark is not None:
            self._spark.topics.spark.sparkContext.cancelAllJobs()

    def close(self) -> None:
        if self._duckdb is not None:
            self._duckdb.close()

    def _by_spark(self, statement: str, reading: ScanReading) -> QueryAnswer:
        if self._spark is None:
            self._spark = self.start_spark()
        return SparkAnswer(self._spark.frame(statement), reading.report)

    def _by_duckdb(self, statement: str, reading: ScanReading) -> QueryAnswer:
        try:
            return self._duckdb_engine(None).answer(statement, reading)
        except NoTable as exc:
            raise self.topics.no_such(exc.name) from exc
        except NotAlike as exc:
            raise QueryError(f"--engine duckdb can't answer this, because {exc}; --engine spark can, and auto") from exc

    def _by_either(self, statement: str, reading: ScanReading) -> QueryAnswer:
        if self.spark_alone is None and any(token.word in SETTING for token in tokenize(statement)[:1]):
            self.spark_alone = "SET changes what only Spark has"
        why = self.spark_alone
        if why is None and find_spec("duckdb") is None:
            why = f"duckdb is not installed ({install_command('sql')})"
        if why is None:
            try:
                answer = self._duckdb_engine(self.max_bytes).answer(statement, reading)
            except NoTable as exc:
                if self._spark is None:  # which has views and tables of its own when it has run
                    raise self.topics.no_such(exc.name) from exc
                why = str(exc)
            except NotAlike as exc:
                why = str(exc)
            else:
                if reading.is_planned:
                    self.say(
                        f"DuckDB answers, as this reads {reading.planned_bytes:,} bytes and no more than "
                        f"{self.max_bytes:,} (--duckdb-max-bytes)"
                    )
                return answer
        self.say(f"Spark answers, because {why}")
        return self._by_spark(statement, reading)

    def _duckdb_engine(self, max_bytes: int | None) -> DuckDBEngine:
        if self._duckdb is None:
            self._duckdb = DuckDBEngine(topics=self.topics, max_bytes=max_bytes)
        return self._duckdb
