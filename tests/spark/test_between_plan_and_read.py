"""What the broker's own merger, compactor and retention do between the plan of a query and its reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from kafscale.log.rewrite.compaction import Compactor
from kafscale.spark.bucket.reading import DataLoss
from kafscale.spark.bucket.splits import Split
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import NOW_MS, TOPIC, MemoryLog, memory_log, topic_spec
from tests.log.keyed_log import append_segments, fetched

SEGMENTS = [["a=1", "b=1"], ["a=2", "c=1"], ["b=2"], ["d=1", "a=3"], ["e=1"]]
ALL = [text for segment in SEGMENTS for text in segment]


class Job:
    """A query over a copy of the log's bucket: planned, and read later."""

    def __init__(self, directory: Path, log: MemoryLog, *, fails: bool = True) -> None:
        self.directory, self.log = directory, log
        loss = "true" if fails else "false"
        self.given = Given({"store": f"file:{directory}", "subscribe": TOPIC, "failOnDataLoss": loss})

    async def copy(self) -> None:
        """The objects that the log refers to now; those that it had before are deleted, as after their delay."""
        segments = self.log.partition().manifest.segments
        wanted = {each.key.of_kind(half).key for each in segments for half in ("kfs", "index")}
        for path in self.directory.rglob("segment-*"):
            path.unlink()
        async for page in self.log.store.list(""):
            for info in page:
                if info.key in wanted:
                    path = self.directory / info.key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes((await self.log.store.get(info.key)).data)

    def planner(self) -> Planner:
        return Planner.of(ReadOptions.of(self.given))

    async def plan(self, **options: str) -> Sequence[Split]:
        self.directory.mkdir(exist_ok=True)
        await self.copy()
        self.given.values |= {name.lower(): value for name, value in options.items()}
        return self.planner().batch(BatchOptions.of(self.given), QueryBounds())

    def read(self, splits: Sequence[Split]) -> dict[int, str]:
        found: dict[int, str] = {}
        for split in splits:
            for records in self.planner().reader(["offset", "key", "value"]).read(split):
                for row in records.to_pylist():
                    assert row["offset"] not in found, "a record came twice"
                    found[row["offset"]] = f"{row['key'].decode()}={row['value'].decode()}"
        return found


async def compact(log: MemoryLog) -> None:
    compactor = Compactor(
        rewriter=log.log.merger.rewriter,
        footers=log.log.reader.footers,
        interval_seconds=15.0,
        now_ms=lambda: NOW_MS,
        map_bytes=1 << 20,
        target_bytes=1 << 20,
    )
    await compactor.compact_all(lambda: list(log.log.partitions.values()))
    assert len(log.partition().manifest.segments) < len(SEGMENTS)


async def merge(log: MemoryLog) -> None:
    with trio.move_on_after(600):
        await log.log.merger.run(list(log.log.partitions.values()))
    assert log.log.merger.merges_count.value > 0


@pytest.mark.parametrize("first", [0, 3])
async def test_a_merge_changes_nothing(autojump_clock, tmp_path, first):
    async with memory_log(MemoryStore(), MemoryDisk(), segment_merge_bytes=1 << 20) as log:
        await append_segments(log, *SEGMENTS * 4)
        job = Job(tmp_path / "bucket", log)
        splits = await job.plan(startingOffsets=f'{{"{TOPIC}":{{"0":{first}}}}}', maxRecordsPerPartition="2")
        await merge(log)
        await job.copy()
        assert job.read(splits) == dict(list(enumerate(ALL * 4))[first:])


@pytest.mark.parametrize("first", [0, 2])
async def test_compaction_leaves_each_keys_latest_record_without_a_loss(autojump_clock, tmp_path, first):
    topics = [topic_spec(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)]
    async with memory_log(MemoryStore(), MemoryDisk(), topics=topics) as log:
        await append_segments(log, *SEGMENTS)
        job = Job(tmp_path / "bucket", log)
        splits = await job.plan(startingOffsets=f'{{"{TOPIC}":{{"0":{first}}}}}', maxRecordsPerPartition="2")
        before = job.read(splits)
        assert before == dict(list(enumerate(ALL))[first:])
        await compact(log)
        await job.copy()
        kept = {offset: text for offset, text in (await fetched(log)).items() if offset >= first}
        assert kept != before
        assert job.read(splits) == kept
        assert job.read(await job.plan(maxRecordsPerPartition="2")) == kept


async def test_retention_between_plan_and_read_is_reported_as_a_loss(autojump_clock, tmp_path, caplog):
    async with memory_log(MemoryStore(), MemoryDisk()) as log:
        await append_segments(log, *SEGMENTS)
        job = Job(tmp_path / "bucket", log)
        splits = await job.plan()
        log.partition().delete_records(4)
        log.partition().drop_deleted()
        await job.copy()
        with pytest.raises(DataLoss, match="offsets 0 to 1 of partition 0"):
            job.read(splits)
        tolerant = Job(tmp_path / "bucket", log, fails=False)
        assert tolerant.read(splits) == dict(list(enumerate(ALL))[4:])
        assert "offsets 2 to 3 of partition 0" in caplog.text
