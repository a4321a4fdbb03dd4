"""Answers a statement by a DuckDB in this process.

DuckDB gets SQL that rules have written, and no access to files or networks; data comes from the scans alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import pyarrow as pa

from kafscale.errors import ConfigError, QueryError, StartupError
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.duckdb.expressions import Subquery
from kafscale.spark.duckdb.kinds import NotAlike, spark_name
from kafscale.spark.duckdb.parser import parsed, spelled
from kafscale.spark.duckdb.queries import UNNAMED, Queries
from kafscale.spark.duckdb.references import References
from kafscale.spark.duckdb.scans import ScanReading, TopicRead
from kafscale.spark.duckdb.texts import DuckDBAnswer, text_of
from kafscale.spark.session import INSTALL
from kafscale.spark.source.options import Given
from kafscale.spark.sql.bucket_topics import TOPIC_NAME, BucketTopics, CommandRows, answer_command
from kafscale.spark.sql.clauses import Clauses
from kafscale.spark.sql.kafsql import Spoken
from kafscale.spark.sql.tokens import tokenize

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH_ROWS = 4096
SETTINGS = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
ARROW_TYPES = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64()}
DESCRIBE_COLUMNS = {"col_name": "STRING", "data_type": "STRING", "comment": "STRING"}


def _connect() -> DuckDBPyConnection:
    """Open a DuckDB. Raises StartupError if it is not installed."""
    try:
        import duckdb
    except ImportError as exc:
        raise StartupError(f"--engine duckdb needs duckdb: {INSTALL}") from exc
    spilled = Path(tempfile.gettempdir(), f"kafscale-sql-{uuid4().hex}")  # made if there is need of it, by DuckDB
    connection = duckdb.connect(config={**SETTINGS, "temp_directory": str(spilled)})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@attrs.define(kw_only=True, eq=False, repr=False)
class DuckDBEngine:
    """Answers statements that it can answer as Spark does.

    max_bytes: the largest read of a statement, by the plans of its scans; None for no bound.
    """

    topics: BucketTopics
    max_bytes: int | None = None
    _connection: DuckDBPyConnection = attrs.field(factory=_connect, init=False)
    _running: DuckDBPyConnection | None = attrs.field(default=None, init=False)

    def answer(self, statement: str, reading: ScanReading | None = None) -> DuckDBAnswer:
        """Return the rows of a query, of which the first are read; to be closed before the next statement.

        `reading` reports progress. Raises NotAlike for a statement of Spark's; ConfigError, QueryError, StoreError for
        one that Spark would refuse, too.
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
        """Close DuckDB and delete its files."""
        self._finish()
        self._connection.close()

    def _finish(self) -> None:
        """End the last statement, if it has not ended."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def interrupt(self) -> None:
        """Cancel the running statement, from another thread."""
        running = self._running
        if running is not None:
            running.interrupt()

    def _translated(self, statement: str, connection: DuckDBPyConnection, reading: ScanReading) -> Subquery:
        """Return SQL for DuckDB, whose scans the connection knows."""
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
        if not (TOPIC_NAME.fullmatch(name) and self.topics.has(name)):
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
