"""Chooses the engine that answers a statement: Spark, or the embedded DuckDB, which needs no JVM.

spark     Spark answers everything duckdb    DuckDB answers statements that it answers as Spark does, and refuses others
auto      DuckDB answers such statements if they read little, Spark all others; the user is told which one and why
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib.util import find_spec

import attrs

from kafscale.errors import QueryError
from kafscale.spark.duckdb.engine import DuckDBEngine
from kafscale.spark.duckdb.kinds import NoTable, NotAlike
from kafscale.spark.duckdb.scans import ScanReading
from kafscale.spark.session import INSTALL
from kafscale.spark.sql.answers import QueryAnswer, SparkAnswer
from kafscale.spark.sql.bucket_topics import BucketTopics
from kafscale.spark.sql.engine import Engine
from kafscale.spark.sql.tokens import refuse_mistakes, tokenize

SETTING = ("SET", "RESET")


class EngineName(StrEnum):
    """A choice of engines; see the module."""

    AUTO = "auto"
    SPARK = "spark"
    DUCKDB = "duckdb"


@attrs.define(kw_only=True, eq=False, repr=False)
class Engines:
    """Answers statements by one of both engines, each started on demand.

    max_bytes: the largest read of a statement for which `auto` takes DuckDB. start_spark: called once at most. say:
    tells the user a line. is_extended: extensions may know more statements than Spark does. spark_alone: the reason why
    `auto` takes Spark for all statements, as the end of a sentence; SET sets it, as it may change others' meaning, for
    example by a time zone.
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
        """Return the rows of a query, or run a command. `reading` reports progress.

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
        """Close DuckDB. The caller stops Spark."""
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
            why = f"duckdb is not installed ({INSTALL})"
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
