"""Statements that both engines answer alike, down to the names of columns and the texts of values."""

import re
from pathlib import Path

import pytest

from kafscale.errors import QueryError
from tests.spark.sql_topics import NOW_SECONDS, write_topics

ENGINES = ("duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.timeout(900)]))
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # pyspark leaves sockets open

STATEMENTS = Path(__file__).with_name(
    "statements.txt"
)  # "? " a statement, "= " lines of CSV; sorted if it has no order
RARE = [
    '{"topic":"rare","partition":0,"offset":0,"timestamp":"1969-12-31T23:59:59.999Z","timestampType":0}',
    '{"key":"","value":"","topic":"rare","partition":0,"offset":1,"timestamp":"2023-11-14T22:13:20.001Z","timestampType":0}',
    '{"key_base64":"/wA=","value":"größer","offset":2,"timestamp":"2023-11-14T22:13:20.120Z"}',
    '{"key":"\\"a\\",b","value":"not JSON","offset":3,"timestamp":"2023-11-14T22:13:20.000Z"}',
    '{"key":"years","value":"a\\tb\\u0001","offset":4,"timestamp":"+55840-11-08T22:13:20.000Z"}',
]
JSON = [
    ("select * from rare where offset < 2 order by offset", RARE[:2]),
    ("select key, value, offset, timestamp from rare where offset >= 2 order by offset", RARE[2:]),
    (
        "select _headers from rare where _offset > 0 order by _offset",
        ["{}", '{"_headers":[{"key":"h","value":"MQ=="},{"key":"i"}]}', "{}", "{}"],
    ),
    (
        "select offset, offset, null as nothing, true as yes, cast(offset as double) / 4 as x from orders tail 1",
        ['{"offset":119,"offset_2":119,"yes":true,"x":29.75}'],
    ),
    ("select count(*) from orders where offset > 1000", ['{"count(1)":0}']),
]


def statements() -> list[tuple[str, list[str]]]:
    """Statements, each with its lines."""
    blocks = STATEMENTS.read_text().removeprefix("? ").split("\n? ")
    return [(block.split("\n= ")[0], block.rstrip("\n").split("\n= ")[1:]) for block in blocks]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return write_topics(tmp_path_factory.mktemp("bucket"))


@pytest.fixture(scope="module", params=ENGINES)
def ask(request, store):
    """Gives a statement to an engine."""
    if request.param == "duckdb":
        from kafscale.spark.duckdb.engine import DuckDBEngine
        from kafscale.spark.sql.topics import BucketTopics

        topics = BucketTopics(options={"store": store}, clock=lambda: NOW_SECONDS)
        return DuckDBEngine(topics=topics).answer
    from kafscale.spark.sql.answers import SparkAnswer
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics

    session = request.getfixturevalue("spark")
    engine = Engine(topics=Topics(spark=session, options={"store": store}, clock=lambda: NOW_SECONDS))
    return lambda statement: SparkAnswer(engine.frame(statement))


@pytest.mark.parametrize(("statement", "lines"), statements())
def test_a_statement_is_answered(ask, statement, lines):
    answer = ask(statement)
    names, *found = [line.removesuffix("\n") for line in answer.csv_lines()]
    answer.close()
    assert [names, *(found if "order by" in statement else sorted(found))] == lines


@pytest.mark.parametrize(("statement", "lines"), JSON)
def test_rows_are_written_as_json(ask, statement, lines):
    answer = ask(statement)
    assert list(answer.json_lines()) == [f"{line}\n" for line in lines]
    answer.close()


def test_a_table_ends_at_its_limit_and_reports_more_rows(ask):
    answer = ask("select offset from orders where partition = 0 order by offset")
    cells = answer.first_cells(2)
    answer.close()
    assert [tuple(row) for row in cells.rows] == [("0",), ("1",)]
    assert cells.has_more


def test_a_directory_of_parquet(ask, tmp_path):
    import pyarrow.parquet

    path = tmp_path / "rows"
    statement = "select offset, key, key, timestamp, sum(offset) over_all from orders where offset < 2 group by all"
    answer = ask(statement.replace("group by all", "and partition = 0 group by 1, 2, 4"))
    answer.write_parquet(str(path))
    answer.close()
    table = pyarrow.parquet.read_table(path).sort_by("offset")
    assert table.column_names == ["offset", "key", "key_2", "timestamp", "over_all"]
    assert table["offset"].to_pylist() == table["over_all"].to_pylist() == [0, 1]
    assert [str(type_) for type_ in table.schema.types[:3]] == ["int64", "binary", "binary"]
    assert table["timestamp"].to_pylist()[0].isoformat()[:19] == "2023-11-14T22:13:20"
    answer = ask(statement.replace("group by all", "group by 1, 2, 4"))
    with pytest.raises(QueryError, match="already exists"):
        answer.write_parquet(str(path))
    answer.close()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("select * from tail('orders', 5, 7)", "no partition 7"),
        ("select * from last('orders')", "called in another way"),
        ("select * from last('orders', interval 1 day, 2)", "called in another way"),
        ("select * from orders last 5 parsecs", "give a time, such as LAST 15m"),
        ("show partitions from nowhere", "there is no topic, table or view 'nowhere'"),
    ],
)
def test_wrong_statements_are_refused(ask, statement, told):
    with pytest.raises(QueryError, match=re.escape(told)):
        ask(statement)
