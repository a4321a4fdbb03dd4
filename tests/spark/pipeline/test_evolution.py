"""Schemas that change in a way that stops the mapping, and that no other mapping minds. `test_batch` has the others."""

import json

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]


def mapping(topic: str, columns: str, more: str = "") -> str:
    return f"""
- {{topic: {topic}, table: db.{topic}, value: {{format: json, columns: [{columns}]}}{more}}}
"""


@pytest.fixture
def int_table(lake, topic, produce) -> str:
    """A table with the columns a INT and b FLOAT, and a row."""
    produce(topic, [(0, None, json.dumps({"a": 1, "b": 0.5, "c": "new"}).encode())])
    lake.run(mapping(topic, "{name: a, type: int}, {name: b, type: float}"))
    return topic


@pytest.mark.parametrize(
    ("columns", "more", "told"),
    [
        ("{name: a, type: string}", "", "column a is int in the table and string in the values"),
        ("{name: a, type: int}, {name: c, type: string}", ", evolve: false", "have c STRING, and evolve is off"),
    ],
)
def test_any_other_change_stops_its_mapping_and_no_other(lake, int_table, produce, columns, more, told):
    produce(int_table, [(0, None, b'{"a": 1}')])
    other = f"\n- {{topic: {int_table}, table: db.{int_table}_other}}\n"
    seen = lake.run(mapping(int_table, columns, more) + other, may_fail=True)
    assert list(seen.failures) == [f"db.{int_table}"]
    assert told in str(seen.failures[f"db.{int_table}"])
    assert len(lake.rows(f"db.{int_table}")) == 1
    assert len(lake.rows(f"db.{int_table}_other")) == 2
