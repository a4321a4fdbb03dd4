"""Spark itself over a bucket with transactions that were committed, aborted, interleaved and are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec, write_files
from tests.devtools.fakes.transactions import abort, commit, fetch_all, send

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

SETTINGS = {"flush_interval_seconds": 1e9, "segment_merge_bytes": 0}
Rows = list[tuple[int, bytes | None]]


class Bucket:
    """A directory that a log was flushed to; each `write` starts the log again, and ends it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.store, self.disk, self.epoch = directory, MemoryStore(), MemoryDisk(), 0

    def write(self, write: Callable[[MemoryLog], Awaitable[None]]) -> tuple[Rows, Rows]:
        """Returns what a consumer gets of the broker then, at read_committed and at read_uncommitted."""

        async def run() -> tuple[Rows, Rows]:
            self.epoch += 1
            topics = [topic_spec(retention_ms=-1)]
            async with memory_log(self.store, self.disk, topics=topics, leader_epoch=self.epoch, **SETTINGS) as log:
                await write(log)
                await log.log.flusher.flush_all()
                await write_files(self.store, self.directory)
                found = [await fetch_all(log, log.partition(), committed=level) for level in (True, False)]
                self.disk = self.disk.crash()
            committed, everything = ([(each.offset, each.value) for each in records] for records in found)
            return committed, everything

        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def several(log: MemoryLog) -> None:
    """Interleaved ones over two segments, and one that stays open with a committed one behind its begin."""
    partition = log.partition()
    for number in range(20):
        for producer_id in (1, 2, 3):
            await send(partition, b"%d of %d" % (number, producer_id), producer_id=producer_id, sequence=number)
    await abort(partition, producer_id=1)
    await log.log.flusher.flush_all()
    await commit(partition, producer_id=2)
    await log.append(partition, b"plain")
    await abort(partition, producer_id=3)
    await send(partition, b"open", producer_id=4)
    await send(partition, b"committed, and behind an open one", producer_id=5)
    await commit(partition, producer_id=5)


async def the_end(log: MemoryLog) -> None:
    await abort(log.partition(), producer_id=4)


def rows(frame) -> Rows:
    return sorted((row.offset, None if row.value is None else bytes(row.value)) for row in frame.collect())


@pytest.fixture
def bucket(tmp_path):
    return Bucket(tmp_path / "bucket")


def test_a_frame_has_the_records_of_a_fetch_at_each_isolation_level(spark, bucket):
    committed, everything = bucket.write(several)
    assert 21 == len(committed) < len(everything)
    reader = spark.read.format("kafscale").options(store=f"file:{bucket.directory}", subscribe="t")
    assert rows(reader.load()) == committed
    assert rows(reader.load().repartition(3).where("offset >= 0")) == committed
    assert rows(spark.read.format("kafscale").options(
        store=f"file:{bucket.directory}", subscribe="t", isolationLevel="read_uncommitted"
    ).load()) == everything  # fmt: skip
    with pytest.raises(Exception, match="a transaction is open from 64 on"):
        reader.option("endingOffsets", '{"t":{"0":66}}').load().count()


def test_a_stream_goes_over_gaps_and_waits_at_an_open_transaction(spark, bucket, tmp_path):
    committed, _ = bucket.write(several)
    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"

    def run(**options: str) -> Rows:
        source = spark.readStream.format("kafscale").options(
            store=f"file:{bucket.directory}", subscribe="t", startingOffsets="earliest", **options
        )
        query = source.load().select("offset", "value").writeStream.format("parquet")
        started = query.options(path=str(output), checkpointLocation=str(checkpoint)).start()
        started.processAllAvailable()
        started.stop()
        return rows(spark.read.parquet(str(output)))

    assert run(maxOffsetsPerTrigger="17") == committed
    assert run() == committed
    committed, _ = bucket.write(the_end)
    assert committed[-1][1] == b"committed, and behind an open one"
    assert run() == committed
