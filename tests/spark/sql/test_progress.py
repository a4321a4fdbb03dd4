"""How much of a statement's bytes Spark has read, by what its stages and its plan tell."""

import time

import pytest

from kafscale.spark.sql import answers
from kafscale.spark.sql.answers import Reads, told


def test_bytes_read_are_estimated_by_stages_with_a_scans_task_count():
    reads = Reads([[100, 300], [10, 20, 30]])
    assert reads.total_bytes == 460
    assert reads.note({}) == 0
    assert reads.note({1: (2, 0), 2: (7, 5)}) == 0
    assert reads.note({1: (2, 1), 3: (3, 1)}) == 220
    assert reads.note({3: (3, 2)}) == 440
    assert reads.note({4: (16, 3)}) == 460
    assert reads.note({5: (2, 2)}) == 460, "a stage of as many tasks behind a scan is not more than all"


def test_progress_is_not_watched_without_a_listener():
    with told(None, None):
        pass


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyspark leaves sockets open
def test_a_long_statement_reports_its_progress(spark, store, monkeypatch):
    from kafscale.spark.sql.answers import SparkAnswer
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics
    from tests.spark.sql.spark_plans import splits_of

    monkeypatch.setattr(answers, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(answers, "LOOK_SECONDS", 0.01)
    spark.udf.register("slowly", lambda value: time.sleep(0.01) or len(value), "int")
    engine = Engine(topics=Topics(spark=spark, options={"store": store}))
    frame = engine.frame("SELECT sum(slowly(value)) AS total FROM orders WITH (minPartitions = '8')")
    reports: list[tuple[int, int]] = []
    answer = SparkAnswer(frame, lambda done, total: reports.append((done, total)))
    assert answer.first_cells(1).has_more is False
    planned = sum(split.size_bytes for split in splits_of(frame))
    assert {total for _, total in reports} == {planned}
    done = [each for each, _ in reports]
    assert done == sorted(done)
    assert any(0 < each < planned for each in done)
