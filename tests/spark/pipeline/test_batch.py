"""One micro-batch into its table, given as a DataFrame: no stream, no bucket. The moments of death are made by hand."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kafscale.spark.bucket.position import Position
from kafscale.spark.pipeline.document import parse_pipeline

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

TABLES = (f"db.table{number}" for number in count())
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BAD = b"\xff"
COMPACT = "map('min-input-files', '2')"
UPSERT_BY_ID = ", mode: upsert, key: {format: string, column: id}"


@attrs.define(kw_only=True)
class Table:
    """A table, and what writes batches into it."""

    spark: Any
    warehouse: Any
    name: str
    query_id: str = "query"
    topic_id: str = "old"
    again: frozenset[str] = frozenset()
    outcomes: list[Any] = attrs.field(factory=list)
    end: int = 0

    def write(self, records: Sequence[tuple[Any, ...]], batch_id: int, mapping: str = "") -> None:
        """Records of key, value and optionally partition and second; their offsets go on from those before."""
        from kafscale.spark.pipeline.records import source_schema

        frame_rows = []
        for key, value, *place in records:
            partition, second = (*place, *(0, 0)[len(place) :])
            frame_rows.append((key, value, "t", partition, self.end, NOON.replace(second=second), 0))
            self.end += 1
        writer = self.writer(mapping)
        writer(self.spark.createDataFrame(frame_rows, source_schema(writer.mapping)), batch_id)

    def writer(self, mapping: str) -> Any:
        from kafscale.spark.pipeline.batch import BatchWriter
        from kafscale.spark.pipeline.records import empty_rows
        from kafscale.spark.pipeline.tables import ensure_dead_letters, ensure_table

        pipeline = parse_pipeline(
            f"""
source: {{store: "file:/nowhere"}}
catalog: {{type: hadoop, warehouse: "{self.warehouse}"}}
checkpoints: /nowhere
mappings: [{{topic: t, table: {self.name}, metadata: [offset]{mapping}}}]
""",
            "test.yaml",
            {},
        )
        (made,) = pipeline.mappings
        ensure_table(self.spark, made, pipeline, empty_rows(self.spark, made, pipeline).columns)
        ensure_dead_letters(self.spark, made, pipeline)
        checkpoint = SimpleNamespace(
            query_id=self.query_id,
            end=lambda _: Position(offsets={("t", 0): self.end}, topic_ids={"t": self.topic_id}),
            start_of=lambda _: Position(),
            read_again=lambda: self.again,
            directory=SimpleNamespace(path="/nowhere"),
        )
        return BatchWriter(mapping=made, pipeline=pipeline, checkpoint=checkpoint, report=self.outcomes.append)

    def rows(self, columns: str = "*", suffix: str = "") -> Sequence[tuple[Any, ...]]:
        found = self.spark.sql(f"SELECT {columns} FROM lake.{self.name}{suffix}").collect()
        return sorted((tuple(row) for row in found), key=repr)

    def batches(self) -> Sequence[str | None]:
        """By snapshot, oldest first."""
        query = f"SELECT summary FROM lake.{self.name}.snapshots ORDER BY committed_at"
        return [row.summary.get("kafscale.batch-id") for row in self.spark.sql(query).collect()]


@pytest.fixture
def table(spark, warehouse) -> Table:
    return Table(spark=spark, warehouse=warehouse, name=next(TABLES))


def of_json(columns: str, more: str = "") -> str:
    """The part of a mapping whose values are JSON."""
    return f", value: {{format: json, columns: [{columns}]}}{more}"


def as_json(**members: object) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize("mapping", ["", ", mode: upsert, key: {}"])
def test_a_batch_that_is_in_the_table_is_not_written_again(table, mapping):
    table.write([(b"a", b"1"), (b"b", b"2")], 0, mapping)
    before = table.rows()
    table.end = 1
    table.write([(b"c", b"3")], 0, mapping)
    assert table.rows() == before
    assert table.batches() == ["0"]
    assert [outcome.commit_seconds is None for outcome in table.outcomes] == [False, True]


def test_a_batch_is_found_behind_a_compaction(table):
    for batch_id in range(3):
        table.write([(b"a", b"1")], batch_id)
    table.spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table.name}', options => map('min-input-files', '2'))"
    )
    table.end = 2
    table.write([(b"a", b"1")], 2)
    table.write([(b"a", b"1")], 3)
    assert table.batches() == ["0", "1", "2", None, "3"]


def test_maintenance_keeps_the_snapshot_that_the_pipeline_resumes_from(table):
    from kafscale.spark.pipeline.snapshots import newest
    from kafscale.spark.pipeline.tables import format_of, maintain

    for batch_id in range(6):
        table.write([(b"a", b"1")], batch_id)
    pipeline = table.writer("").pipeline
    pipeline = attrs.evolve(pipeline, maintenance=attrs.evolve(pipeline.maintenance, expire_after="1ms"))
    (care,) = maintain(table.spark, pipeline)
    assert (care.problem, care.compacted_files) == (None, 6)
    committed = newest(format_of(table.spark, pipeline).commits(table.name), table.name)
    assert committed is not None
    assert (committed.batch_id, committed.depth) == (5, 1)
    assert table.batches() == ["5", None]
    table.write([(b"a", b"1")], 6)
    assert len(table.rows()) == 7


def test_a_new_query_resumes_at_the_tables_position(table):
    table.write([(b"a", b"1")], 0)
    table.query_id = "after a lost checkpoint"
    table.write([(b"a", b"2")], 0)
    assert len(table.rows()) == 2


@pytest.mark.parametrize(("query_id", "batch_id"), [("query", 2), ("another", 1)])
def test_a_table_without_the_previous_batch_is_an_error(table, query_id, batch_id):
    from kafscale.spark.pipeline.batch import TableWentBack

    table.write([(b"a", b"1")], 0)
    table.query_id = query_id
    with pytest.raises(TableWentBack, match=f"has no batch {batch_id - 1} .* Delete this checkpoint"):
        table.write([(b"a", b"2")], batch_id)


def test_the_last_record_of_a_key_wins_and_a_tombstone_deletes(table):
    mapping = of_json("{name: n, type: int}", f", dead_letters: {table.name}_dead") + UPSERT_BY_ID
    table.write([(b"a", as_json(n=1)), (b"b", as_json(n=1)), (b"a", as_json(n=2)), (None, b"{}")], 0, mapping)
    assert table.rows("id, n, offset") == [("a", 2, 2), ("b", 1, 1)]
    table.write([(b"a", None), (b"c", as_json(n=3)), (b"b", None), (b"b", as_json(n=4))], 1, mapping)
    assert table.rows("id, n, offset") == [("b", 4, 7), ("c", 3, 5)]
    assert table.rows("offset, error", "_dead") == [(3, "it has nothing in id, by which its row is found")]
    table.write([(b"never there", None)], 2, mapping)
    table.write([], 3, mapping)
    assert table.batches() == ["0", "1", "2", "3"]
    assert len(table.rows()) == 2


def test_between_partitions_the_later_record_of_a_key_wins(table):
    table.write([(b"a", b"late", 0, 9), (b"a", b"last", 0, 5), (b"a", b"other", 1, 7)], 0, ", mode: upsert, key: {}")
    assert [bytes(value) for (value,) in table.rows("value")] == [b"other"]


def test_bad_values_become_dead_letters_once_though_the_batch_is_repeated(table, monkeypatch):
    from kafscale.spark.pipeline import batch

    mapping = f", value: {{format: string}}, dead_letters: {table.name}_dead"
    records = [(None, b"good"), (b"k", BAD), (None, b"good")]
    with monkeypatch.context() as patched:
        patched.setattr(batch._Attempt, "_commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            table.write(records, 0, mapping)
    assert table.rows() == []
    table.end = 0
    table.write(records, 0, mapping)
    assert table.rows() == [(0, "good"), (2, "good")]
    assert table.rows("mapping, topic, partition, offset, CAST(key AS STRING), error", "_dead") == [
        (table.name, "t", 0, 1, "k", "value: it is not valid UTF-8")
    ]


def test_dead_letters_of_a_batch_that_was_lost_with_its_checkpoint_came_twice(table, monkeypatch):
    from kafscale.spark.pipeline import batch

    mapping = f", value: {{format: string}}, dead_letters: {table.name}_dead"
    table.write([(None, b"good"), (None, BAD)], 0, mapping)
    with monkeypatch.context() as patched:
        patched.setattr(batch._Attempt, "_commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            table.write([(None, BAD), (None, b"good"), (None, BAD), (None, BAD)], 1, mapping)
    table.query_id, table.end = "after a lost checkpoint", 2
    table.write([(None, BAD), (None, b"good"), (None, BAD)], 0, mapping)  # another limit cuts it otherwise
    table.write([(None, BAD), (None, BAD)], 1, mapping)
    assert table.rows("offset", "_dead") == [(1,), (2,), (4,), (5,), (6,)]
    assert table.rows("offset") == [(0,), (3,)]


def test_a_record_of_a_new_topic_was_taken_for_a_dead_letter_of_the_old_one(table, monkeypatch):
    """The batch that buried offset 0 of the old one is not in the table, and its checkpoint was reset since."""
    from kafscale.spark.pipeline import batch

    mapping = f", value: {{format: string}}, dead_letters: {table.name}_dead"
    with monkeypatch.context() as patched:
        patched.setattr(batch._Attempt, "_commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            table.write([(None, BAD)], 0, mapping)
    table.query_id, table.topic_id, table.end = "query after the reset", "new", 0
    table.write([(None, b"good")], 0, mapping)
    assert table.rows("offset, value") == [(0, "good")]


def test_a_repeated_batch_keeps_its_dead_letters_though_they_decode_now(table, monkeypatch):
    from kafscale.spark.pipeline import batch

    strict = (
        f", value: {{format: json, columns: [{{name: n, type: int, required: true}}]}}, dead_letters: {table.name}_dead"
    )
    lenient = strict.replace(", required: true", "")
    table.write([(None, as_json(n=0)), (None, b"{}")], 0, strict)
    records = [(None, as_json(n=1)), (None, b"{}")]
    with monkeypatch.context() as patched:
        patched.setattr(batch._Attempt, "_commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            table.write(records, 1, strict)
    table.spark.sql(f"ALTER TABLE lake.{table.name} ALTER COLUMN n DROP NOT NULL")
    table.end = 2
    table.write(records, 1, lenient)
    assert table.rows("offset, n") == [(0, 0), (2, 1)]
    assert table.rows("offset", "_dead") == [(1,), (3,)]


def test_a_former_dead_letter_is_written_when_read_again_after_a_reset(table):
    """It decodes now. The driver is another one for each batch, which looks at all dead letters that there are."""
    strict = (
        f", value: {{format: json, columns: [{{name: n, type: int, required: true}}]}}, dead_letters: {table.name}_dead"
    )
    lenient = strict.replace(", required: true", "")
    table.write([(None, as_json(n=0)), (None, as_json(n=1)), (None, b"{}")], 0, strict)
    table.spark.sql(f"ALTER TABLE lake.{table.name} ALTER COLUMN n DROP NOT NULL")
    table.query_id, table.again, table.end = "query after the reset", frozenset({"t"}), 0
    table.write([(None, as_json(n=0))], 0, lenient)
    table.write([(None, as_json(n=1)), (None, b"{}")], 1, lenient)
    assert table.rows("offset") == [(0,), (0,), (1,), (1,), (2,)]


def test_a_bad_value_without_a_dead_letter_table_is_an_error_with_its_offset(table):
    from kafscale.spark.pipeline.batch import BadRecords

    with pytest.raises(BadRecords, match="t 0 at offset 1: value: it is not valid UTF-8"):
        table.write([(None, b"good"), (None, BAD)], 0, ", value: {format: string}")
    assert table.rows() == []


def test_each_bad_json_value_gets_an_error_text(table):
    columns = "columns: [{name: id, type: long, required: true}, {name: name, type: string}]"
    mapping = f", value: {{format: json, {columns}}}, dead_letters: {table.name}_dead"
    bad = [b"{", b"7", BAD, as_json(name="none"), as_json(id="text"), None]
    table.write([(None, value) for value in [*bad, as_json(id=1, more=2)]], 0, mapping)
    assert table.rows() == [(6, 1, None)]
    assert [error for _, error in table.rows("offset, error", "_dead")] == [
        "value: it is not a JSON object of the mapping's columns",
        "value: it is not a JSON object of the mapping's columns",
        "value: it is not valid UTF-8",
        "value: it has no id, which is required",
        "value: it is not a JSON object of the mapping's columns",
        "value: it has no id, which is required",
    ]


def test_text_after_a_json_object_is_an_error(table):
    mapping = of_json("{name: a, type: int}", f", dead_letters: {table.name}_dead")
    behind = [" trailing", "] x", "}} x", ',"x":1', ',{"a":8}', '],"x":[1', '} {"a":8', "\0"]
    bad = [b'{"a":7}' + each.encode() for each in behind]
    table.write([(None, value) for value in [*bad, b' {"a":7} \r\n', b"{'a': 8}", b'{"a":9,"x":NaN}']], 0, mapping)
    assert table.rows("a") == [(7,), (8,), (9,)]
    errors = [error for _, error in table.rows("offset, error", "_dead")]
    assert len(errors) == len(bad)
    assert all("not a JSON object" in each or "follows the JSON object" in each for each in errors)


def test_digits_of_decimals_were_rounded_away(table):
    types = {"a": "decimal(10,2)", "b": "array<decimal(38,2)>", "c": "struct<d: map<string, decimal(5,1)>>"}
    columns = ", ".join(f"{{name: {name}, type: '{type_}'}}" for name, type_ in types.items())
    mapping = of_json(columns, f", dead_letters: {table.name}_dead")
    good = [
        '{"a":12.34}',
        '{"a":12.3400}',
        '{"a":1e2}',
        '{"b":[1.25,null,-3]}',
        '{"c":{"d":{"x":0.5}}}',
        '{"a":null}',
        "{}",
    ]
    bad = ['{"a":12.345}', '{"a":"12.345"}', '{"a":1e-3}', '{"b":[1,1.255]}', '{"c":{"d":{"x":0.5,"y":0.55}}}']
    table.write([(None, value.encode()) for value in [*good, *bad]], 0, mapping)
    assert len(table.rows()) == len(good)
    errors = [error for _, error in table.rows("offset, error", "_dead")]
    names = [re.fullmatch(r"value: (\w) has more digits behind the point than .+", each)[1] for each in errors]
    assert sorted(names) == ["a", "a", "a", "b", "c"]


def test_columns_are_added_and_widened_nested_ones_too(table):
    table.write([(None, as_json(a=1, b=0.5, c="not yet"))], 0, of_json("{name: a, type: int}, {name: b, type: float}"))
    columns = (
        "{name: d, type: 'struct<e: array<int>>'}, {name: c, type: string}, "
        "{name: b, type: double}, {name: a, type: long}"
    )
    table.write([(None, as_json(a=1 << 40, b=0.1, c="new", d={"e": [1]}))], 1, of_json(columns))
    assert table.rows("a, b, c, d.e") == [(1, 0.5, None, None), (1 << 40, 0.1, "new", [1])]
    columns = columns.replace("array<int>", "array<bigint>, f: string")
    table.write([(None, as_json(a=2, d={"e": [1 << 40], "f": "x"}))], 2, of_json(columns))
    assert table.rows("a, d") == [(1, None), (1 << 40, ([1], None)), (2, ([1 << 40], "x"))]


def test_decimals_get_more_digits_before_the_point_and_no_others(table):
    from kafscale.spark.pipeline.schema import SchemaConflict

    def decimal(type_: str) -> str:
        return of_json(f"{{name: a, type: '{type_}'}}, {{name: s, type: 'struct<b: {type_}>'}}")

    table.write([(None, as_json(a=1.25, s={"b": 2.5}))], 0, decimal("decimal(4,2)"))
    table.write([(None, as_json(a=12345.25, s={"b": 99999.5}))], 1, decimal("decimal(9,2)"))
    table.write([(None, as_json(a=7.5))], 2, decimal("decimal(4,2)"))
    found = table.rows("CAST(a AS STRING), CAST(s.b AS STRING)")
    assert found == [("1.25", "2.50"), ("12345.25", "99999.50"), ("7.50", None)]
    with pytest.raises(SchemaConflict, match=r"decimal\(9,2\) in the table and decimal\(12,3\) in the values"):
        table.write([(None, as_json(a=1.5))], 3, decimal("decimal(12,3)"))


def test_rows_can_be_narrower_than_the_table(table):
    table.write([(None, as_json(a=1, b=2))], 0, of_json("{name: a, type: long}, {name: b, type: int}"))
    table.write([(None, as_json(a=7))], 1, of_json("{name: a, type: int}"))
    assert table.rows("a, b") == [(1, 2), (7, None)]


@pytest.mark.parametrize(
    ("columns", "more", "told"),
    [
        ("{name: a, type: string}", "", "column a is int in the table and string in the values"),
        ("{name: a, type: int}, {name: c, type: string}", ", evolve: false", "have c STRING, and evolve is off"),
    ],
)
def test_any_other_change_is_an_error_and_writes_nothing(table, columns, more, told):
    from kafscale.spark.pipeline.schema import SchemaConflict

    table.write([(None, as_json(a=1))], 0, of_json("{name: a, type: int}"))
    with pytest.raises(SchemaConflict, match=told):
        table.write([(None, as_json(a=1))], 1, of_json(columns, more))
    assert table.batches() == ["0"]


def test_a_commit_that_another_one_was_in_the_way_of_is_tried_again(table, monkeypatch):
    from kafscale.spark.pipeline import batch

    commit, failures = batch._Attempt._commit, iter([True, False])

    def conflicting(self, rows, mapping, head):
        commit(self, rows, mapping, head)
        if next(failures):
            raise RuntimeError("org.apache.iceberg.exceptions.CommitStateUnknownException: lost the reply")

    monkeypatch.setattr(batch._Attempt, "_commit", conflicting)
    table.write([(None, b"once")], 0)
    assert len(table.rows()) == 1
    assert table.batches() == ["0"]


UNKNOWN = "org.apache.iceberg.exceptions.CommitStateUnknownException: lost the reply"


@pytest.mark.parametrize("late_of", ["rows", "letters"])
@pytest.mark.parametrize("had", [0, 1])
def test_a_commit_that_comes_late_comes_once(table, monkeypatch, had, late_of):
    """The catalog did not answer, and commits what it was sent between the next look and the next commit."""
    from kafscale.spark.pipeline.table_format import IcebergTables

    append = IcebergTables.append
    sent: list[Any] = []
    late: list[Any] = []

    def lose(self, name, rows, *, behind=None):
        if name.endswith("_dead") != (late_of == "letters"):
            return append(self, name, rows, behind=behind)
        if not sent:
            sent.append(name)
            late.append(rows.localCheckpoint())  # what it was sent is written
            raise RuntimeError(UNKNOWN)
        while late:
            append(self, name, late.pop())
        return append(self, name, rows, behind=behind)

    records = [(None, as_json(a=1)), (None, b"bad")]
    mapping = of_json("{name: a, type: int}", f", dead_letters: {table.name}_dead")
    for batch_id in range(had):
        table.write(records, batch_id, mapping)
    monkeypatch.setattr(IcebergTables, "append", lose)
    table.write(records, had, mapping)
    assert (len(sent), late) == (1, [])
    assert (len(table.rows()), len(table.rows(suffix="_dead"))) == (had + 1, had + 1)
    assert table.batches() == [str(each) for each in range(had + 1)]


def test_columns_that_meet_are_an_error(table):
    from kafscale.errors import ConfigError

    with pytest.raises(ConfigError, match="two columns 'offset'"):
        table.write([(None, b"{}")], 0, of_json("{name: offset, type: int}"))
