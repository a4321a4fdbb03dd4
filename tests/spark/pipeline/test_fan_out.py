"""One topic into several tables by the value of a column, and several topics into one table."""

from __future__ import annotations

import json
import shutil
from typing import Any

import attrs
import pytest

from kafscale.spark.bucket.position import Position
from kafscale.spark.pipeline.snapshots import Committed, MicroBatch

spark_alone = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]


def with_spark(function: Any) -> Any:
    for mark in spark_alone:
        function = mark(function)
    return function


def position(topic_id: str = "i", **offsets: int) -> Position:
    return Position(offsets={(name, 0): offset for name, offset in offsets.items()}, topic_ids={"t": topic_id})


def committed(end: Position) -> Committed:
    return Committed(
        mapping="m",
        query_id="of-before",
        batch_id=7,
        end=end,
        snapshot_id=1,
        parent_id=None,
        timestamp_ms=0,
        depth=0,
        summary={},
        start=Position(),
        began=position(t=1),
    )


def test_a_batch_skips_offsets_that_the_table_has_from_another_query():
    batch = MicroBatch(mapping="m", query_id="q", batch_id=0, start=position(t=10), end=position(t=20, u=5))
    assert batch.behind(None).began == batch.start
    same = batch.behind(committed(position(t=10)))
    assert (same.start, same.end, same.began) == (batch.start, batch.end, position(t=1))
    partly = batch.behind(committed(position(t=15)))
    assert (partly.start, partly.end) == (position(t=15), batch.end)
    beyond = batch.behind(committed(position(t=50)))
    assert (beyond.start.offsets, beyond.end.offsets) == ({("t", 0): 50}, {("t", 0): 50, ("u", 0): 5})


def test_a_batch_has_all_of_a_topic_that_was_created_again():
    batch = MicroBatch(mapping="m", query_id="q", batch_id=0, start=position("new", t=0), end=position("new", t=20))
    after = batch.behind(committed(position("old", t=50)))
    assert (after.start, after.end) == (batch.start, batch.end)


def test_a_batch_has_all_of_a_topic_that_its_query_reads_again():
    batch = MicroBatch(
        mapping="m", query_id="q", batch_id=0, start=position(t=0, u=5), end=position(t=20, u=9), again={"t"}
    )
    after = batch.behind(committed(position(t=50, u=7)))
    assert (after.start, after.end) == (position(t=0, u=7), batch.end)
    same = attrs.evolve(batch, batch_id=1, start=position(t=20, u=9), end=position(t=40, u=9))
    of_same = attrs.evolve(committed(position(t=20, u=9)), query_id="q", batch_id=0)
    assert same.behind(of_same).start == same.start


def test_commits_before_a_reset_do_not_count_for_a_topic_being_reread():
    batch = MicroBatch(
        mapping="m", query_id="q", batch_id=1, start=position(t=20), end=position(t=40, u=9), again={"t"}
    )
    buried = committed(position(t=500, u=9))
    assert batch.anew(buried) == {"t"}
    assert batch.anew(attrs.evolve(buried, query_id="q")) == set()
    assert attrs.evolve(batch, again=frozenset()).anew(buried) == set()
    assert attrs.evolve(batch, again=frozenset()).anew(attrs.evolve(buried, end=position("old", t=500))) == {"t"}


def event(kind: str | None, number: int) -> bytes:
    return json.dumps({"kind": kind, "n": number}).encode()


VALUE = "value: {format: json, columns: [{name: kind, type: string}, {name: n, type: int}]}"


def mapping(topic: str, fan_out: str, more: str = "") -> str:
    return (
        f"- {{topic: {topic}, table: db.{topic}, name: {topic}, {VALUE}, metadata: [partition, offset], "
        f"dead_letters: db.{topic}_dead, fan_out: {{by: kind, {fan_out}}}{more}}}"
    )


def proofs(lake: Any, made: str) -> dict[str, tuple[str, int]]:
    from kafscale.spark.pipeline.proof import prove

    return {each.table: (each.found, each.rows) for each in prove(lake.spark, lake.pipeline(made))}


@with_spark
def test_tables_are_made_on_first_sight_within_the_bound_and_each_row_is_in_one_once(lake, topic, produce, monkeypatch):
    """Also where the driver ends between two of the tables, and the checkpoint is lost then."""
    from kafscale.spark.pipeline import batch
    from kafscale.spark.pipeline.inspection import SparkTables, status
    from kafscale.spark.pipeline.tables import format_of, tables_of

    seen = f'tables: {{old: db.{topic}_declared}}, create: "db.{topic}_of_{{value}}", max_tables: 2'
    made = mapping(topic, seen)
    produce(topic, [(n % 2, None, event(["old", "B-b", None][n % 3], n)) for n in range(12)])
    lake.run(made)
    produce(topic, [(n % 2, None, event(["c", "old", "d", "B-b"][n % 4], n)) for n in range(12, 24)])
    commit = batch._Attempt._commit

    def ends(attempt: Any, rows: Any, of: Any, head: Any) -> None:
        if of.table == f"db.{topic}":
            raise batch.KafScaleError("the driver ended")
        commit(attempt, rows, of, head)

    monkeypatch.setattr(batch._Attempt, "_commit", ends)
    assert lake.run(made, may_fail=True).failures
    assert lake.rows(f"db.{topic}_of_c", "n") == [(12,), (16,), (20,)]
    monkeypatch.setattr(batch._Attempt, "_commit", commit)
    shutil.rmtree(lake.checkpoints)
    made = mapping(topic, seen, ", max_records: 4")
    lake.run(made)
    assert lake.rows(f"db.{topic}_declared", "n") == [(n,) for n in [0, 13, 17, 21, 3, 6, 9]]
    assert lake.rows(f"db.{topic}_of_b_b", "n") == [(n,) for n in [1, 10, 15, 19, 23, 4, 7]]
    assert lake.rows(f"db.{topic}_of_c", "n") == [(12,), (16,), (20,)]
    assert sorted(lake.rows(f"db.{topic}", "n")) == [(n,) for n in [2, 5, 8, 11, 14, 18, 22]]
    wanted = {f"db.{topic}": 7, f"db.{topic}_declared": 7, f"db.{topic}_of_b_b": 7, f"db.{topic}_of_c": 3}
    assert proofs(lake, made) == {name: ("proven", count) for name, count in wanted.items()}
    assert set(tables_of(format_of(lake.spark, lake.pipeline(made)), lake.pipeline(made))) == {
        *wanted,
        f"db.{topic}_dead",
    }
    (found,) = status(SparkTables(lake.spark, lake.pipeline(made)), lake.pipeline(made))
    assert (found.lag, found.dead_letters) == (0, 0)
    more = mapping(topic, seen.replace("max_tables: 2", "max_tables: 3"))
    produce(topic, [(0, None, event("d", 24))])
    lake.run(more)
    assert lake.rows(f"db.{topic}_of_d", "n") == [(24,)]
    wanted |= {f"db.{topic}_of_d": 1}
    assert proofs(lake, more) == {name: ("proven", count) for name, count in wanted.items()}


@with_spark
def test_a_reset_reads_a_topic_again_into_all_tables_once(lake, topic, produce, monkeypatch):
    """Also where the driver ends between two of the tables, or the checkpoint is lost when it was read."""
    from kafscale.spark.pipeline import batch
    from kafscale.spark.pipeline.reset import carry_out, plan

    made = mapping(topic, f"tables: {{a: db.{topic}_a, b: db.{topic}_b}}", ", max_records: 4")
    produce(topic, [(n % 2, None, event("abc"[n % 3], n)) for n in range(9)])
    lake.run(made)
    resets = plan(lake.spark, lake.pipeline(made), [topic], from_beginning=True)
    carry_out(lake.spark, lake.pipeline(made), resets)
    commit = batch._Attempt._commit

    def ends(attempt: Any, rows: Any, of: Any, head: Any) -> None:
        if of.table == f"db.{topic}_b":
            raise batch.KafScaleError("the driver ended")
        commit(attempt, rows, of, head)

    monkeypatch.setattr(batch._Attempt, "_commit", ends)
    assert lake.run(made, may_fail=True).failures
    monkeypatch.setattr(batch._Attempt, "_commit", commit)
    for _ in range(2):
        lake.run(made)
        for number, table in enumerate((f"db.{topic}_a", f"db.{topic}_b", f"db.{topic}")):
            assert lake.rows(table, "n") == [(n,) for n in range(number, 9, 3) for _ in range(2)]
        shutil.rmtree(lake.checkpoints, ignore_errors=True)


@with_spark
def test_values_without_a_table_are_dead_letters_and_tombstones_delete_from_all(lake, topic, produce):
    key = ", mode: upsert, key: {format: string, column: id}"
    made = mapping(topic, f"tables: {{a: db.{topic}_a, b: db.{topic}_b}}, others: dead_letter", key)
    produce(topic, [(0, b"k%d" % n, event("ab"[n % 2], n)) for n in range(6)])
    lake.run(made)
    produce(topic, [(0, b"k0", None), (0, b"k1", None), (0, b"k2", event("zz", 9)), (0, b"k4", event("a", 44))])
    lake.run(made)
    assert lake.rows(f"db.{topic}_a", "id, n") == [("k2", 2), ("k4", 44)]
    assert lake.rows(f"db.{topic}_b", "id, n") == [("k3", 3), ("k5", 5)]
    assert lake.rows(f"db.{topic}") == []
    assert lake.rows(f"db.{topic}_dead", "offset, error") == [(8, "there is no table for its kind")]
    assert {found for found, _ in proofs(lake, made).values()} == {"proven"}


@with_spark
def test_rows_of_several_topics_are_distinguished_by_topic(lake, broker, topic, produce):
    """A key is another row in each topic, also where they come in one batch and a tombstone is among them."""
    from confluent_kafka.admin import AdminClient, NewTopic

    other = f"{topic}b"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(other, 1, 1)])[other].result()
    made = (
        f'- {{pattern: "{topic}b?", table: db.{topic}, mode: upsert, upsert_by: [topic, id], metadata: [topic], '
        "key: {format: string, column: id}, value: {format: string}, max_records: 3}"
    )
    produce(topic, [(0, b"k", b"1"), (0, b"l", b"1")])
    produce(other, [(0, b"k", b"2"), (0, b"l", b"2")])
    lake.run(made)
    produce(other, [(0, b"k", None), (0, b"l", b"3")])
    lake.run(made)
    assert lake.rows(f"db.{topic}", "topic, id, value") == [(topic, "k", "1"), (topic, "l", "1"), (other, "l", "3")]
    assert proofs(lake, made) == {f"db.{topic}": ("proven", 3)}
