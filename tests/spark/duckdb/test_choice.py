"""Which engine answers, what is said of it, and that Spark starts only where it is needed."""

import sys

import pytest

from kafscale.errors import QueryError, StartupError
from kafscale.extras import install_command
from kafscale.spark.duckdb import engine
from kafscale.spark.duckdb.engine import EngineName, Engines
from kafscale.spark.sql.topics import BucketTopics
from tests.spark.sql_topics import write_topics


class SparkStarts(Exception):
    """Raised in the place of a start."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return write_topics(tmp_path_factory.mktemp("bucket"))


@pytest.fixture
def said():
    return []


@pytest.fixture
def engines(store, said):
    def start():
        raise SparkStarts

    def make(name, **details):
        details = {"max_bytes": 1 << 20, **details}
        topics = BucketTopics(options={"store": store})
        return Engines(name=EngineName(name), topics=topics, start_spark=start, say=said.append, **details)

    return make


def test_a_small_statement_is_answered_without_spark(engines, said):
    answer = engines("auto").answer("select count(*) as n from orders where offset < 5")
    assert list(answer.csv_lines()) == ["n\n", "10\n"]
    [line] = said
    assert line.startswith("DuckDB answers, as this reads 5,490 bytes and no more than 1,048,576")


def test_statements_that_read_nothing_announce_no_engine(engines, said):
    assert engines("auto").answer("show topics").columns == ["topic"]
    assert engines("auto").answer("describe orders").columns == ["col_name", "data_type", "comment"]
    assert said == []


@pytest.mark.parametrize(
    ("statement", "details", "why"),
    [
        ("select upper(key) from orders", {}, "upper() is Spark's"),
        ("insert into orders values (1)", {}, "DuckDB does not read it as a query"),
        ("select * from lake.shop.customers", {}, "'lake.shop.customers' is not a topic"),
        ("select count(key) from orders", {"max_bytes": 1000}, "bytes or more, and --duckdb-max-bytes is 1,000"),
        ("select 1", {"spark_alone": "--conf sets what only Spark has"}, "--conf sets what only Spark has"),
    ],
)
def test_unsupported_statements_go_to_spark_and_are_refused_with_duckdb_alone(engines, said, statement, details, why):
    with pytest.raises(SparkStarts):
        engines("auto", **details).answer(statement)
    [line] = said
    assert line.startswith("Spark answers, because ")
    assert why in line
    if not details:
        with pytest.raises(QueryError, match=r"--engine duckdb can't answer this, because .*--engine spark can"):
            engines("duckdb").answer(statement)


@pytest.mark.parametrize("engine", EngineName)
@pytest.mark.parametrize("statement", ["selec 1", "select count(* from orders", "select 'a from orders"])
def test_spark_was_started_to_report_a_typo(engines, said, engine, statement):
    """Starting Spark for it took 15 s."""
    with pytest.raises(QueryError):
        engines(engine).answer(statement)
    assert said == []


def test_extended_spark_gets_statements_that_duckdb_cannot_parse(engines):
    with pytest.raises(SparkStarts):
        engines("auto", is_extended=True, spark_alone="--conf sets what only Spark has").answer("optimize orders")


def test_the_line_naming_spark_includes_duckdbs_syntax_error(engines, said):
    with pytest.raises(SparkStarts):
        engines("auto").answer("select * form orders")
    assert said == [
        'Spark answers, because DuckDB does not read it as a query (syntax error at or near "orders")',
    ]


def test_duckdb_alone_has_no_bound_of_bytes(engines, said):
    answer = engines("duckdb", max_bytes=1).answer("select count(*) as n from orders")
    assert list(answer.csv_lines()) == ["n\n", "240\n"]
    assert said == []


def test_spark_alone_answers_everything(engines, said):
    with pytest.raises(SparkStarts):
        engines("spark").answer("select 1")
    assert said == []


@pytest.mark.parametrize("name", ["auto", "duckdb"])
def test_an_unknown_topic_is_reported_without_starting_spark(engines, name):
    with pytest.raises(QueryError, match=r"there is no topic, table or view 'ordrs' \(topics: orders\)"):
        engines(name).answer("select * from ordrs")


def test_an_unknown_name_can_be_a_spark_view_once_spark_has_run(engines):
    asked = engines("auto")
    asked._spark = _Spark()
    with pytest.raises(SparkStarts):
        asked.answer("select * from ordrs")


@pytest.mark.parametrize("setting", ["set spark.sql.session.timeZone = Asia/Tokyo", "-- back\nRESET"])
def test_from_a_setting_of_spark_on_spark_answers(engines, said, setting):
    asked = engines("auto")
    asked.answer("select 1 as set")
    for statement in (setting, "select max(timestamp) from orders"):
        with pytest.raises(SparkStarts):
            asked.answer(statement)
    assert said == ["Spark answers, because SET changes what only Spark has"] * 2


class _Spark:
    def frame(self, statement):
        raise SparkStarts


def test_without_duckdb_spark_answers_and_prints_the_install_command(engines, said, monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(SparkStarts):
        engines("auto").answer("select count(*) from orders")
    assert said == [f"Spark answers, because duckdb is not installed ({install_command('sql')})"]


def test_a_missing_duckdb_error_names_the_install_command(engines, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(StartupError, match="needs duckdb, which the extra `sql` has: "):
        engines("duckdb").answer("select count(*) from orders")
