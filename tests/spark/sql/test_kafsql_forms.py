"""Each form of the page about KAFSQL, as the page spells it, over a bucket that a broker process has written."""

from datetime import datetime
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "kafsql.md"
NOW_SECONDS = 1_700_000_240


def at(second: int) -> datetime:
    return datetime(2023, 11, 14, 22, 13 + (20 + second) // 60, (20 + second) % 60)


def record(number: int) -> bytes:
    status = "paid" if number % 3 else "open"
    return b'{"number": %d, "status": "%s", "of": {"topic": "orders"}}' % (number, status.encode())


NEWEST = {number: (b"key %d" % (number % 10), record(number), "orders", number % 2, 119) for number in (238, 239)}
PAYMENT = {number: record(number).replace(b"orders", b"payments") for number in (238, 239)}
DESCRIBED = [("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint")]
NAMES = [("order-lines.v1",), ("orders",), ("payments",)]
FOUND = {  # by how a statement begins: the first columns of all rows, or of the first ones
    "SHOW TOPICS": NAMES,
    "SHOW PARTITIONS": [(0, 0, 120, 4), (1, 0, 120, 4)],
    "DESCRIBE orders": DESCRIBED,
    "SELECT * FROM information_schema.tables": NAMES,
    "SELECT * FROM information_schema.columns": DESCRIBED,
    "SELECT * FROM orders TAIL 2": [NEWEST[238], NEWEST[239]],
    "SELECT * FROM orders WHERE _offset": [("orders", 0, 119, at(238)), ("orders", 1, 119, at(239))],
    "SELECT _topic": [("orders", 1, 119, at(239), b"key 9")],
    "SELECT _value AS v": [(record(239), 119)],
    "SELECT _headers": [(None,)],
    "SELECT _offset FROM orders WHERE _partition": [(7,), (8,)],
    "SELECT _offset FROM orders WHERE _ts": [(119,), (119,)],
    "SELECT count(*) FROM orders WHERE _ts BETWEEN": [(10,)],
    "SELECT count(*) FROM orders WHERE _ts >= '2023": [(2,)],
    "SELECT count(*) FROM orders WHERE _key": [(24,)],
    "SELECT _offset FROM orders ORDER BY": [(119,)],
    "SELECT count(*) FROM orders LAST 60s": [(60,)],
    "SELECT count(*), min(_ts)": [(60, at(180), at(239), 2 * sum(range(90, 120)), 0.5)],
    "SELECT min(_key)": [(b"key 0", b"key 9")],
    "SELECT _partition, count(*)": [(0, 30), (1, 30)],
    "SELECT json_value": [("paid", "orders")],
    "SELECT json_query": [('{"topic":"orders"}', '"paid"')],
    "SELECT json_exists": [(True, False)],
    "SELECT sum(json_value": [(237 + 238 + 239, "open")],
    "SELECT o._key, p._value": [(b"key 8", PAYMENT[238]), (b"key 9", PAYMENT[239])],
    "SELECT count(*) FROM orders o JOIN payments p WITHIN": [(2,)],
    "SELECT o._offset, p._offset": [(119, None), (119, None)],
    "SELECT count(*) FROM orders o JOIN payments p ON": [(60,)],
    "SELECT status": [("paid",)],
    "SET": [("application_name", "'psql'")],
    "RESET": [],
}
TEXTS = {"EXPLAIN": "bytes of 2 segments", "SELECT _segment": "default/orders/"}


def forms() -> list[tuple[str, str]]:
    """Of the page: KAFSQL's, and what is to be given here."""
    lines = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [(there.strip().strip("`"), here.strip().strip("`")) for there, here in lines]
    return [(there, there if here == "the same" else here) for there, here in cells]


@pytest.fixture(scope="module")
def engine(spark, store):
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics

    return Engine(topics=Topics(spark=spark, options={"store": store}, clock=lambda: NOW_SECONDS))


@pytest.mark.parametrize(("there", "here"), forms())
def test_all_forms_of_kafsql_are_answered(engine, there, here):
    rows = [tuple(row) for row in engine.frame(here).collect()]
    text = next((found for start, found in TEXTS.items() if there.startswith(start)), None)
    if text is not None:
        assert text in rows[0][0]
        return
    [found] = [found for start, found in FOUND.items() if there.startswith(start)]
    if not here.startswith("DESCRIBE"):  # its rows have an order, and 5 of them will do
        rows.sort(key=str)
        assert len(rows) == len(found)
    assert [row[: len(expected)] for row, expected in zip(rows, found, strict=False)] == found
