"""Schemas that change in a way that stops the mapping, and that no other mapping minds, and partitions that change.

`test_batch` has the other changes of schemas.
"""

import json

import pytest

from kafscale.spark.pipeline.table_format import spec_changes

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


@pytest.mark.parametrize(
    ("current", "wanted", "changes"),
    [
        (["`a`"], ["`a`"], []),
        ([], ["days(`t`)"], ["ADD PARTITION FIELD days(`t`)"]),
        (["days(`t`)"], ["hours(`t`)"], ["REPLACE PARTITION FIELD days(`t`) WITH hours(`t`)"]),
        (["bucket(4, `a`)"], ["bucket(8, `a`)"], ["REPLACE PARTITION FIELD bucket(4, `a`) WITH bucket(8, `a`)"]),
        (["`a`", "`b`"], ["`b`", "`c`"], ["DROP PARTITION FIELD `a`", "ADD PARTITION FIELD `c`"]),
        (["`a`.`c`"], ["`c`"], ["DROP PARTITION FIELD `a`.`c`", "ADD PARTITION FIELD `c`"]),
    ],
)
def test_partitions_change_by_as_few_fields_as_can_be(current, wanted, changes):
    assert list(spec_changes(current, wanted)) == changes


def test_partitioning_follows_the_file_and_existing_data_stays(lake, topic, produce, caplog):
    def made(by: str, more: str = "") -> str:
        columns = "{name: a, type: int}, {name: s, type: string}"
        return mapping(topic, columns, f", metadata: [partition, offset, timestamp], partition_by: {by}{more}")

    def spec_ids() -> list[int]:
        return [row.spec_id for row in lake.spark.sql(f"SELECT spec_id FROM lake.db.{topic}.files").collect()]

    def told() -> list[str]:
        return [each.getMessage().partition(": ")[2] for each in caplog.records if "partitioned" in each.getMessage()]

    produce(topic, [(n % 2, None, json.dumps({"a": n, "s": "xy"}).encode()) for n in range(6)])
    first = made('[days(timestamp), "bucket(4, a)", partition]')
    lake.run(first)
    lake.run(first)
    assert not told()
    produce(topic, [(n % 2, None, json.dumps({"a": n, "s": "xz"}).encode()) for n in range(6)])
    second = made('[hours(timestamp), "truncate(1, s)", partition]')
    lake.run(second.replace("partition_by", "evolve: false, partition_by"))
    assert not told()
    assert set(spec_ids()) == {0}
    produce(topic, [(0, None, b'{"a": 7, "s": "z"}')])
    lake.run(second)
    assert told() == [
        "DROP PARTITION FIELD bucket(4, `a`)",
        "REPLACE PARTITION FIELD days(`timestamp`) WITH hours(`timestamp`)",
        "ADD PARTITION FIELD truncate(1, `s`)",
    ]
    assert len(set(spec_ids())) == 2
    caplog.clear()
    lake.run(second)
    assert not told()
    assert len(lake.rows(f"db.{topic}")) == 13
    from kafscale.spark.pipeline.proof import prove

    (proof,) = prove(lake.spark, lake.pipeline(second))
    assert (proof.found, proof.rows) == ("proven", 13)
