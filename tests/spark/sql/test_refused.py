"""A statement is put to Spark with the columns that it names, and once more only if that may have been too few."""

from types import SimpleNamespace

import pytest

from kafscale.errors import QueryError
from kafscale.spark.sql.engine import Engine
from kafscale.spark.sql.failures import spark_errors

spark_sql_errors = pytest.importorskip("pyspark.errors")

STATEMENT = "SELECT offset FROM orders"


def tried(monkeypatch, refuse) -> list[bool]:
    """Return of each try whether it had all columns."""
    tries = []

    def query(engine, spoken, columns=None):
        tries.append(columns is None)
        refuse()

    monkeypatch.setattr(Engine, "_query", query)
    with pytest.raises(QueryError):
        Engine(topics=SimpleNamespace())._fitting_query(STATEMENT)
    return tries


def no_such_topic() -> None:
    try:
        in_spark()
    except QueryError as exc:
        raise QueryError("no topic 'orders'") from exc


def in_spark() -> None:
    with spark_errors():
        raise spark_sql_errors.AnalysisException("a column `b` cannot be resolved")


def test_what_is_no_affair_of_columns_is_refused_at_once(monkeypatch):
    assert tried(monkeypatch, no_such_topic) == [False]


def test_what_spark_refuses_is_tried_with_all_columns(monkeypatch):
    assert tried(monkeypatch, in_spark) == [False, True]
