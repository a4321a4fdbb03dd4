"""Where a reset lets a mapping go on, by a checkpoint without Spark; what a run makes of it is in test_exactly_once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from kafscale.spark.bucket.position import Position, ids_of
from kafscale.spark.pipeline.checkpoint import QueryCheckpoint
from kafscale.spark.pipeline.snapshots import Committed
from kafscale.spark.source.options import Given, ReadOptions
from kafscale.spark.source.planning import Planner
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

pytestmark = pytest.mark.spark  # it needs pyspark, and starts none


@attrs.frozen
class LocalDirectory:
    """What a checkpoint needs of HadoopDirectory."""

    path: Path

    def read(self, name: str) -> str | None:
        file = self.path / name
        return file.read_text() if file.exists() else None

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        return []


@attrs.define(kw_only=True)
class Mapped:
    """A mapping that reads two topics, of three records each. `committed` is the newest batch of its table."""

    bucket: Path
    checkpoint: QueryCheckpoint
    committed: Committed | None = None

    def planner(self) -> Planner:
        return Planner.of(ReadOptions.of(Given({"store": f"file:{self.bucket}", "subscribe": "a,b"})))

    def topic_ids(self) -> Any:
        with closing(self.planner()) as planner:
            return ids_of(planner.logs().values())

    def read(self, query_id: str, topic_ids: Any, **offsets: int) -> None:
        """A query has written its batch 0, and Spark has not yet noted that."""
        end = Position(offsets={(topic, 0): offset for topic, offset in offsets.items()}, topic_ids=topic_ids)
        self.checkpoint.directory.write("metadata", f'{{"id": "{query_id}"}}')
        self.committed = Committed(
            mapping="m",
            query_id=query_id,
            batch_id=0,
            end=end,
            snapshot_id=1,
            parent_id=None,
            timestamp_ms=0,
            depth=0,
            summary={},
            start=Position(),
            began=Position(),
        )

    def reset(self, *topics: str, from_beginning: bool) -> bool:
        """Tell whether that changed anything."""
        from kafscale.spark.pipeline.reset import carry_out, plan

        pipeline: Any = SimpleNamespace(mappings=[SimpleNamespace(id="m", table="t")])
        spark: Any = None
        resets = plan(spark, pipeline, topics, from_beginning=from_beginning)
        carry_out(spark, pipeline, resets)
        return any(each.changes for each in resets)


@pytest.fixture
def mapped(tmp_path, monkeypatch) -> Mapped:
    from kafscale.spark.pipeline import reset

    for number, topic in enumerate("ab", start=1):
        key = SegmentKey(topic=topic, topic_id=bytes([*bytes(15), number]), partition=0, base_offset=0)
        version_2_objects(key, make_batches(0, 1)).write_to(tmp_path / "bucket")
    (tmp_path / "checkpoint").mkdir()
    directory: Any = LocalDirectory(tmp_path / "checkpoint")
    made = Mapped(bucket=tmp_path / "bucket", checkpoint=QueryCheckpoint(directory))
    tables = SimpleNamespace(exists=lambda _: made.committed is not None, commits=lambda _: [])
    monkeypatch.setattr(reset, "format_of", lambda *_: tables)
    monkeypatch.setattr(reset, "newest", lambda *_: made.committed)
    monkeypatch.setattr(reset, "checkpoint_of", lambda *_: made.checkpoint)
    monkeypatch.setattr(reset, "planner_of", lambda *_: made.planner())
    return made


def test_a_reset_was_undone_by_the_next_one_of_another_topic_before_a_run(mapped):
    mapped.read("first", mapped.topic_ids(), a=3, b=3)
    assert mapped.reset("a", from_beginning=True)
    assert mapped.reset("b", from_beginning=True)
    assert mapped.checkpoint.begun() == Position(offsets={("a", 0): 0, ("b", 0): 0}, topic_ids=mapped.topic_ids())
    assert mapped.checkpoint.read_again() == {"a", "b"}
    assert not mapped.reset("a", "b", from_beginning=False), "they are reset"


def test_resets_of_two_topics_that_were_created_again_undid_each_other(mapped):
    mapped.read("first", {"a": "of before", "b": "of before"}, a=9, b=9)
    assert mapped.reset("a", from_beginning=False)
    assert mapped.reset("b", from_beginning=False)
    assert mapped.checkpoint.begun() == Position(offsets={("a", 0): 0, ("b", 0): 0}, topic_ids=mapped.topic_ids())
    assert mapped.checkpoint.read_again() == frozenset()


def test_a_second_reset_keeps_the_other_topics_positions_since_the_first(mapped):
    mapped.read("first", mapped.topic_ids(), a=3, b=3)
    mapped.reset("a", from_beginning=True)
    mapped.read("second", mapped.topic_ids(), a=2, b=3)
    assert mapped.reset("b", from_beginning=True)
    assert mapped.checkpoint.begun() == Position(offsets={("a", 0): 2, ("b", 0): 0}, topic_ids=mapped.topic_ids())
    assert mapped.checkpoint.read_again() == {"b"}
