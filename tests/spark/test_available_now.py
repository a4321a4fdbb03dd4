"""Trigger.AvailableNow, which a source in Python can't tell from others: what it gives out, and what the log says."""

import json
from pathlib import Path

import pytest

from kafscale.spark.source.options import Given, ReadOptions, StreamOptions
from kafscale.store.paths import SegmentKey
from tests.devtools.external.spark import asks_again, run_stream
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("warns", [True, False])
def test_available_now_warns_of_lost_results_of_stateful_queries(
    tmp_path: Path, monkeypatch, caplog, is_known: bool, warns: bool
) -> None:
    from kafscale.spark.source import source

    monkeypatch.setattr(source, "_AvailableNow", type("SupportsTriggerAvailableNow", (), {}) if is_known else object)
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 1)).write_to(tmp_path)
    given = Given({"store": f"file:{tmp_path}", "subscribe": "t", "warnOfAvailableNow": str(warns).lower()})
    reader = source.StreamReader(options=ReadOptions.of(given), limits=StreamOptions.of(given), columns=["value"])
    for _ in range(3):
        reader.latestOffset()
    reader.stop()
    told = [each.getMessage() for each in caplog.records if "watermark" in each.getMessage()]
    assert len(told) == (warns and not is_known)
    assert all("windows in append mode" in each and "outer joins" in each for each in told)


def _put(directory: Path, base_offset: int, batch_count: int) -> None:
    """Three records a batch, a millisecond apart."""
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=base_offset)
    version_2_objects(key, make_batches(base_offset, batch_count)).write_to(directory)


def _run(spark, directory: Path, **options: str) -> list[int]:
    """Windows of 10 ms that a run closes, each as the number of its records."""
    from pyspark.sql.functions import window

    given = {"store": f"file:{directory / 'bucket'}", "subscribe": "t", "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("kafscale").options(**given).load()
    counts = frame.withWatermark("timestamp", "0 seconds").groupBy(window("timestamp", "10 milliseconds")).count()
    rows: list[int] = []
    run_stream(
        counts.writeStream.foreachBatch(lambda batch, _: rows.extend(row["count"] for row in batch.collect()))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
    )
    return rows


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyspark leaves sockets open
@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": "7"}, {"minOffsetsPerTrigger": "1000"}])
def test_windows_close_under_available_now_where_spark_asks_again(spark, tmp_path, options):
    """All but the last, which the watermark is in; on Spark 4.1 none, and a limit ends the run."""
    _put(tmp_path / "bucket", 0, 14)
    if not asks_again():
        assert _run(spark, tmp_path, **options) == []
        return
    assert _run(spark, tmp_path, **options) == [10, 10, 10, 10]
    assert _run(spark, tmp_path, **options) == []
    _put(tmp_path / "bucket", 42, 6)
    assert _run(spark, tmp_path, **options) == [10]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_progress_of_a_query_has_metrics_of_the_source_from_spark_4_2_on(spark, tmp_path):
    _put(tmp_path, 0, 20)
    options = {"store": f"file:{tmp_path}", "subscribe": "t", "startingOffsets": "earliest"}
    frame = spark.readStream.format("kafscale").options(**options, maxOffsetsPerTrigger="30").load()
    query = frame.writeStream.format("noop").start()
    try:
        query.processAllAvailable()
        (source,) = query.recentProgress[0].sources
        if not asks_again():
            assert "@metrics" not in str(source.latestOffset)
            return
        told = json.loads(source.latestOffset)
        metrics = told.pop("@metrics")
        assert told == {"t": {"0": 60}}
        assert metrics["description"] == "KafScale[t]"
        assert (metrics["recordsBehind"], metrics["bytesBehind"]) == (30, sum(map(len, make_batches(30, 10))))
        assert metrics["secondsBehind"] > 0
        assert metrics["planningGets"] > 0
    finally:
        query.stop()
