"""What a run makes of what a query tells: which failures are tried again, and which batches are done."""

import threading
import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from kafscale.errors import StoreUnavailable
from kafscale.spark.bucket.position import Position
from kafscale.spark.bucket.reading import DataLoss, report_loss
from kafscale.spark.source.offsets import PartitionNotNamed
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

pytestmark = pytest.mark.spark  # it needs pyspark, and starts none

JAVA = "org.apache.spark.SparkException: Job aborted.\n\tat org.apache.spark.Some.method(Some.scala:1)\n"
NOT_NAMED = PartitionNotNamed("startingOffsets says nothing of partition 1 of topic 't'")


def unanswered(text: str) -> Exception:
    """What Spark's bridge to Java raises."""
    from py4j.protocol import Py4JError

    return Py4JError(text)


@pytest.mark.parametrize(
    ("text", "may_pass", "told"),
    [
        (f"{JAVA}Caused by: java.net.SocketTimeoutException: no worker", True, "org.apache.spark.SparkException"),
        (f"{JAVA}kafscale.errors.StoreUnavailable: LIST: refused", True, "kafscale.errors.StoreUnavailable: LIST"),
        (f"{JAVA}kafscale.errors.RegistryError: no answer", True, "kafscale.errors.RegistryError: no answer"),
        (
            f"{JAVA}{''.join(traceback.format_exception_only(NOT_NAMED))}",
            True,
            "kafscale.spark.source.offsets.PartitionNotNamed: startingOffsets",
        ),
        (f"{JAVA}kafscale.errors.ConfigError: {NOT_NAMED}", False, "kafscale.errors.ConfigError: startingOffsets"),
        (
            f"{JAVA}kafscale.spark.bucket.reading.DataLoss: offsets 1 to 5",
            False,
            "kafscale.spark.bucket.reading.DataLoss: offsets",
        ),
        (f"{JAVA}kafscale.errors.AccessDenied: expired", False, "kafscale.errors.AccessDenied: expired"),
    ],
)
def test_only_transient_query_failures_are_retried(text, may_pass, told):
    from kafscale.spark.pipeline.runner import QueryFailed

    failure = QueryFailed(text)
    assert failure.passing is may_pass
    assert str(failure).startswith(told)


def test_a_batch_after_a_pause_reports_its_records(monkeypatch):
    from kafscale.spark.pipeline import runner
    from kafscale.spark.pipeline.batch import Outcome
    from kafscale.spark.pipeline.snapshots import MicroBatch

    waits, writes = {"latestOffset": 1, "triggerExecution": 2}, {"latestOffset": 1, "addBatch": 9}
    reports = [(0, 5, writes), (1, 0, waits), (1, 0, waits), (1, 3, writes), (2, 0, waits)]
    progress = [{"batchId": number, "numInputRows": rows, "durationMs": parts} for number, rows, parts in reports]
    monkeypatch.setattr(runner.MappingRun, "_newest_bounds", lambda _: runner.BucketBounds())
    told: list[tuple[int, int]] = []
    run: Any = object.__new__(runner.MappingRun)
    run.mapping, run.pipeline, run._query = SimpleNamespace(id="m"), None, SimpleNamespace(recentProgress=progress)
    batches = [MicroBatch(mapping="m", query_id="q", batch_id=number, end=Position()) for number in range(2)]
    run._outcomes = {batch.batch_id: Outcome(batch=batch) for batch in batches}
    observer = SimpleNamespace(batch_done=lambda _, outcome, rows, __: told.append((outcome.batch.batch_id, rows)))
    run._tell([observer])
    assert told == [(0, 5), (1, 3)]


def looking(options: dict[str, str]) -> Any:
    """A run of a mapping that looks into a bucket, without a query."""
    from kafscale.spark.pipeline import runner
    from kafscale.spark.source.options import Given, ReadOptions
    from kafscale.spark.source.planning import Planner

    run: Any = object.__new__(runner.MappingRun)
    run.mapping, run.pipeline, run._bounds = (
        SimpleNamespace(id="m"),
        None,
        runner.BucketBounds(ends=Position(offsets={("t", 0): 7})),
    )
    run._looking, run._planner = threading.Lock(), Planner.of(ReadOptions.of(Given(options)), counts=True)
    run._query = None
    return run


def test_a_bucket_that_did_not_answer_had_a_good_query_started_again(monkeypatch, tmp_path):
    run = looking({"store": f"file:{tmp_path}", "subscribe": "t"})

    def refuse(prefix: str, start_after: str = "") -> Any:
        raise StoreUnavailable("LIST: refused")

    monkeypatch.setattr(run._planner.catalog, "bucket", SimpleNamespace(list=refuse, get=refuse))
    monkeypatch.setattr(run._planner.catalog._reader._metadata, "bucket", SimpleNamespace(list=refuse))
    assert run._newest_bounds().ends == Position(offsets={("t", 0): 7}), "as of the time before"


def test_a_batch_does_not_reread_the_footers_of_merged_segments(tmp_path):
    for base_offset in range(0, 60, 6):
        key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=base_offset, generation=1)
        version_2_objects(key, make_batches(base_offset, 2)).write_to(tmp_path)
    run = looking({"store": f"file:{tmp_path}", "subscribe": "t"})
    ends = [Position(offsets={("t", 0): offset}, topic_ids={}) for offset in (54, 60)]
    assert run._digests(Position(), ends[0])
    gets = run._planner.catalog.bucket.get_count
    assert gets >= 10
    assert run._digests(*ends)
    assert run._planner.catalog.bucket.get_count - gets <= 1
    run.close()
    assert run._planner is None


def test_offsets_of_a_user_that_leave_out_a_partition_are_not_tried_again():
    from kafscale.spark.pipeline.runner import _may_pass

    assert not _may_pass(NOT_NAMED)


def test_offsets_that_are_not_in_the_table_are_the_lag():
    from kafscale.spark.pipeline.runner import BucketBounds, lag_of

    ends = Position(offsets={("t", 0): 7, ("t", 1): 3, ("u", 0): 1}, topic_ids={"t": "old"})
    there = BucketBounds(ends=ends)
    assert lag_of(Position(offsets={("t", 0): 5}), there) == 6
    assert lag_of(Position(offsets={("t", 0): 5}, topic_ids={"t": "old"}), there) == 6
    assert lag_of(Position(offsets={("t", 0): 5}, topic_ids={"t": "other"}), there) == 11
    assert lag_of(Position(offsets={("t", 0): 9}), BucketBounds(ends=Position(offsets={("t", 0): 7}))) == 0


def test_offsets_that_retention_has_deleted_were_counted_as_lag_for_ever():
    from kafscale.spark.pipeline.runner import BucketBounds, lag_of

    ends = Position(offsets={("t", 0): 7, ("t", 1): 3})
    trimmed = BucketBounds(starts={("t", 0): 6, ("t", 1): 3}, ends=ends)
    assert lag_of(Position(offsets={("t", 0): 2, ("t", 1): 1}), trimmed) == 1
    assert lag_of(Position(offsets={("t", 0): 7, ("t", 1): 1}), trimmed) == 0


def test_a_pipelines_data_loss_error_suggests_reset_instead_of_fail_on_data_loss():
    from kafscale.spark.pipeline.runner import QueryFailed

    with pytest.raises(DataLoss) as told:
        report_loss("offsets 1 to 5 of t have gone", fail=True)
    text = "".join(traceback.format_exception_only(told.value))
    failure = str(QueryFailed(f"{JAVA}{text}"))
    assert "failOnDataLoss" not in failure
    assert "kafscale pipeline reset --topic" in failure


class Query:
    """A query that runs until it is told to stop."""

    def __init__(self) -> None:
        self.isActive, self.recentProgress = True, ()

    def stop(self) -> None:
        self.isActive = False


def test_a_catalog_that_did_not_answer_for_metrics_had_a_second_query_started(monkeypatch):
    from kafscale.spark.pipeline import runner

    def refuse(*_: Any) -> Any:
        raise unanswered("the catalog does not answer")

    monkeypatch.setattr(runner, "format_of", refuse)
    run: Any = object.__new__(runner.MappingRun)
    run.mapping, run.pipeline, run.spark = SimpleNamespace(id="m"), SimpleNamespace(metrics="localhost:0"), None
    run._query, run._measure_at_seconds, run._restart_count = Query(), 0.0, 0
    assert run.poll([], once=False, stopping=False)
    assert (run._query.isActive, run._restart_count) == (True, 0)


@pytest.mark.parametrize("is_bug", [False, True])
def test_a_query_with_unreadable_progress_is_stopped(is_bug):
    """Or, where the mapping has failed, with nobody to watch it."""
    from kafscale.spark.pipeline import runner

    error = ValueError("a bug") if is_bug else unanswered("a call failed")

    class Unanswering(Query):
        @property
        def recentProgress(self) -> Any:
            raise error

        @recentProgress.setter
        def recentProgress(self, _: Any) -> None: ...

    query, restarts = Unanswering(), list[str]()
    mapping_run: Any = object.__new__(runner.MappingRun)
    mapping_run.mapping, mapping_run._query, mapping_run._restart_count = SimpleNamespace(id="m"), query, 0
    mapping_run._writer, mapping_run._planner, mapping_run._looking = SimpleNamespace(), None, threading.Lock()
    observer = SimpleNamespace(mapping_restarts=lambda mapping, *_: restarts.append(mapping))
    try:
        assert mapping_run.poll([observer], once=False, stopping=False)
    except ValueError:
        mapping_run.close()
    assert not query.isActive
    assert restarts == ([] if is_bug else ["m"])


def test_tables_were_never_cared_for_again_when_a_catalog_had_not_answered_once(monkeypatch):
    from kafscale.spark.pipeline import runner
    from kafscale.spark.pipeline.tables import Care

    answers = iter([unanswered("the catalog does not answer"), Care(table="a.b")])

    def maintain(*_: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        yield answer

    monkeypatch.setattr(runner, "maintain", maintain)
    ended, told = threading.Event(), list[Care]()
    run: Any = object.__new__(runner.PipelineRun)
    run.pipeline = SimpleNamespace(maintenance=SimpleNamespace(every="1ms"))
    run.spark = SimpleNamespace(newSession=lambda: None)
    run.observers = [SimpleNamespace(maintained=lambda care: (told.append(care), ended.set()))]
    run._maintain(ended)
    assert told == [Care(table="a.b")]
