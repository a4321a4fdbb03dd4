"""Pipelines in one Spark: what comes into the tables, in how many snapshots, and what stops what."""

import json
import shutil

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]


def as_json(**members: object) -> bytes:
    return json.dumps(members).encode()


def test_every_record_is_in_the_table_once_and_each_batch_is_one_snapshot(lake, topic, produce):
    produce(topic, [(number % 2, None, b"%d" % number) for number in range(50)])
    mapping = f"- {{topic: {topic}, table: db.{topic}, max_records: 20, metadata: [partition, offset]}}"
    seen = lake.run(mapping)
    assert lake.rows(f"db.{topic}", "partition, offset, CAST(value AS STRING)") == sorted(
        ((number % 2, number // 2, str(number)) for number in range(50)), key=repr
    )
    summaries = lake.summaries(f"db.{topic}")
    assert [int(each["kafscale.batch-id"]) for each in summaries] == [0, 1, 2]
    assert json.loads(summaries[-1]["kafscale.offsets"]) == {topic: {"0": 25, "1": 25}}
    assert sum(row_count for _, _, row_count, _ in seen.outcomes) == 50
    assert seen.outcomes[-1][-1] == 0
    assert lake.run(mapping).outcomes == []


def test_a_lost_checkpoint_resumes_from_the_table(lake, topic, produce):
    mapping = f"- {{topic: {topic}, table: db.{topic}, metadata: [partition, offset]}}"
    produce(topic, [(0, None, b"before")] * 5)
    lake.run(mapping)
    shutil.rmtree(lake.checkpoints)
    produce(topic, [(0, None, b"after"), (1, None, b"after")])
    lake.run(mapping)
    assert [row[:2] for row in lake.rows(f"db.{topic}", "partition, offset")] == [
        *((0, each) for each in range(6)),
        (1, 0),
    ]


def test_bad_values_become_dead_letters_and_are_counted(lake, topic, produce):
    good, bad = as_json(id=1, name="a"), [b"{", b"7", b"\xff", as_json(name="no id"), as_json(id="text")]
    produce(topic, [(0, None, good), *((0, b"k", each) for each in bad), (0, None, good)])
    seen = lake.run(
        f"""
- topic: {topic}
  table: db.{topic}
  dead_letters: db.{topic}_dead
  metadata: [offset]
  value:
    format: json
    columns: [{{name: id, type: long, required: true}}, {{name: name, type: string}}]
"""
    )
    assert lake.rows(f"db.{topic}") == [(0, 1, "a"), (6, 1, "a")]
    letters = lake.rows(f"db.{topic}_dead", "offset, CAST(key AS STRING), value, error")
    assert [(offset, key, bytes(value)) for offset, key, value, _ in letters] == [
        (offset, "k", value) for offset, value in enumerate(bad, 1)
    ]
    assert letters[3][3] == "value: it has no id, which is required"
    assert [outcome.dead_letter_count for _, outcome, _, _ in seen.outcomes] == [5]


def test_a_bad_value_without_a_dead_letter_table_stops_only_its_mapping(lake, topic, produce):
    produce(topic, [(0, None, b"\xff")])
    seen = lake.run(
        f"""
- {{topic: {topic}, table: db.{topic}_text, value: {{format: string}}}}
- {{topic: {topic}, table: db.{topic}_bytes}}
""",
        may_fail=True,
    )
    assert "no table for dead_letters" in str(seen.failures[f"db.{topic}_text"])
    assert f"{topic} 0 at offset 0" in str(seen.failures[f"db.{topic}_text"])
    assert lake.rows(f"db.{topic}_text") == []
    assert len(lake.rows(f"db.{topic}_bytes")) == 1


def test_the_last_record_of_a_key_wins_and_a_tombstone_deletes(lake, topic, produce):
    mapping = f"""
- topic: {topic}
  table: db.{topic}
  mode: upsert
  key: {{format: string, column: id}}
  value: {{format: json, columns: [{{name: n, type: int}}]}}
  metadata: [offset]
  dead_letters: db.{topic}_dead
"""
    produce(topic, [(0, b"a", as_json(n=1)), (0, b"b", as_json(n=1)), (0, b"a", as_json(n=2)), (0, None, b"{}")])
    lake.run(mapping)
    assert lake.rows(f"db.{topic}", "id, n, offset") == [("a", 2, 2), ("b", 1, 1)]
    produce(topic, [(0, b"a", None), (0, b"c", as_json(n=3)), (0, b"b", None), (0, b"b", as_json(n=4))])
    lake.run(mapping)
    assert lake.rows(f"db.{topic}", "id, n, offset") == [("b", 4, 7), ("c", 3, 5)]
    assert [row[0] for row in lake.rows(f"db.{topic}_dead", "error")] == [
        "it has nothing in id, by which its row is found"
    ]
    produce(topic, [(0, b"never there", None)])
    lake.run(mapping)
    assert [int(each["kafscale.batch-id"]) for each in lake.summaries(f"db.{topic}")] == [0, 1, 2]
