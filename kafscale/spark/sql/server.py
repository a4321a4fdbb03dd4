"""Topics as tables of Spark's Thrift server, for programs that speak JDBC or ODBC.

Spark plans these statements alone, so a topic is a view. Spark keeps the text of a view, `SELECT * FROM … WITH
(options)`, and resolves it for each statement, so it is never stale. The view is over a table made for it: Spark passes
the options of the view to a source in Python, not those of the table. All references of one statement share one
`load()`, so a row is left out only if no reference's conditions want it (`kafscale.spark.source.planning`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from kafscale.config import Address
from kafscale.errors import QueryError
from kafscale.spark.catalogs import literal
from kafscale.spark.source.options import FORMAT
from kafscale.spark.source.planning import forget
from kafscale.spark.sql.failures import spark_errors
from kafscale.spark.sql.kafsql import define_functions
from kafscale.spark.sql.topics import ALWAYS, PUSHDOWN, Topics

DATABASE = "topics"  # of the tables that the views are over
NOTES_SECONDS = 3600.0  # within which a statement has been planned

logger = logging.getLogger(__name__)


def table_names(topics: Sequence[str]) -> Mapping[str, str]:
    """Return topics by the names of their tables, with _ for points and dashes, as Spark's catalog requires.

    Of topics with the same table name, only the first is served.
    """
    found: dict[str, str] = {}
    for topic in topics:
        first = found.setdefault(re.sub(r"\W", "_", topic).lower(), topic)
        if first != topic:
            logger.warning("topic '%s' is not served: its table would have the name of that of '%s'", topic, first)
    return found


def settings(listen: Address, warehouse: str) -> Mapping[str, str]:
    """Return Spark's settings for a server that keeps nothing."""
    return {
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": warehouse,
        PUSHDOWN: "true",
        "spark.hadoop.hive.server2.thrift.bind.host": listen.host,
        "spark.hadoop.hive.server2.thrift.port": str(listen.port),
        "spark.hadoop.hive.server2.enable.doAs": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={warehouse}-derby",  # it writes a log
    }


@contextmanager
def warehouse() -> Iterator[Path]:
    """Give a path for Spark's warehouse; call `close_warehouse` once Spark has started."""
    with TemporaryDirectory(prefix="kafscale-sql-") as directory:
        path = Path(directory, "warehouse")
        path.mkdir()
        yield path


def close_warehouse(path: Path) -> None:
    """Replace the directory, which Spark needs at its start, by a file, so that no table can be written."""
    path.rmdir()
    path.touch()


@attrs.define(kw_only=True, eq=False, repr=False)
class ServedTopics:
    topics: Topics
    warehouse: Path
    _served: dict[str, str] = attrs.field(factory=dict, init=False)
    _refused: dict[str, str] = attrs.field(factory=dict, init=False)  # of which that was told

    def start(self) -> None:
        """Raises ConfigError, QueryError, StoreError."""
        spark = self.topics.spark
        where = literal(f"file:{self.warehouse}")
        spark.sql(f"CREATE DATABASE {DATABASE} LOCATION {where}")  # also makes the default one, in the warehouse
        close_warehouse(self.warehouse)
        self.refresh()
        define_functions(spark, temporary=False)
        session: Any = spark._jsparkSession
        gateway: Any = spark._jvm
        with spark_errors():
            gateway.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2.startWithContext(session.sqlContext())

    def refresh(self) -> None:
        """Make tables of new topics, and drop those of deleted ones.

        A topic that Spark refuses, such as one whose values have no schema yet, is tried again the next time. Raises
        ConfigError, StoreError, and QueryError if all are refused.
        """
        forget(self.topics.notes, NOTES_SECONDS)
        wanted = table_names(self.topics.names())
        kept = {table for table, topic in wanted.items() if self._served.get(table) == topic}
        with spark_errors():
            for table in self._served.keys() - kept:
                self.topics.spark.sql(f"DROP VIEW `{table}`")
                self.topics.spark.sql(f"DROP TABLE {DATABASE}.`{table}`")
                del self._served[table]
        refusals = [why for table in wanted.keys() - kept if (why := self._serve(table, wanted[table])) is not None]
        if refusals and not self._served:
            raise refusals[0]

    def _serve(self, table: str, topic: str) -> QueryError | None:
        """Make one table, or return the error."""
        try:
            with spark_errors():
                self._create(table, topic)
        except QueryError as exc:
            if self._refused.get(table) != topic:
                logger.warning("topic '%s' is not served yet: %s", topic, exc)
            self._refused[table] = topic
            with spark_errors():  # which has been made, if it was the view that was refused
                self.topics.spark.sql(f"DROP TABLE IF EXISTS {DATABASE}.`{table}`")
            return exc
        self._served[table] = topic
        self._refused.pop(table, None)
        return None

    def _create(self, table: str, topic: str) -> None:
        limit = self.topics.max_scan_bytes
        options = {**self.topics.filtering, **self.topics.options, "subscribe": topic}
        options |= {"maxScanBytes": str(limit)} if limit else {}
        given = ", ".join(f"{name} = {literal(value)}" for name, value in options.items())
        where = literal(f"file:{self.warehouse}/{table}")  # a table with a location has no directory made for it
        self.topics.spark.sql(f"CREATE TABLE {DATABASE}.`{table}` USING {FORMAT} OPTIONS ({given}) LOCATION {where}")
        query = f"SELECT * FROM {DATABASE}.`{table}` WITH ({given}) WHERE {ALWAYS}"
        self.topics.spark.sql(f"CREATE VIEW `{table}` AS {query}")
