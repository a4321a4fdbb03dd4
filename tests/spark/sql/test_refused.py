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


def test_an_error_unrelated_to_columns_is_raised_at_once(monkeypatch):
    assert tried(monkeypatch, no_such_topic) == [False]


def with_condition(condition: str):
    """Return what refuses a statement with one of Spark's conditions, as the JVM tells it."""

    class Refusal(spark_sql_errors.AnalysisException):
        def getCondition(self) -> str:
            return condition

    def refuse() -> None:
        with spark_errors():
            raise Refusal("refused")

    return refuse


def test_a_statement_that_spark_can_not_parse_is_refused_at_once(monkeypatch):
    assert tried(monkeypatch, with_condition("PARSE_SYNTAX_ERROR")) == [False]
    assert tried(monkeypatch, with_condition("DATATYPE_MISMATCH.BINARY_OP_WRONG_TYPE")) == [False]
    assert tried(monkeypatch, with_condition("UNRESOLVED_COLUMN.WITH_SUGGESTION")) == [False, True]


def test_a_statement_that_spark_refuses_is_tried_with_all_columns(monkeypatch):
    assert tried(monkeypatch, in_spark) == [False, True]
