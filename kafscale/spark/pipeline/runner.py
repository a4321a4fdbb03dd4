"""Runs a pipeline: one streaming query for each mapping. If one fails, the others go on. Imports pyspark."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from pyspark.sql import SparkSession

from kafscale.backoff import Backoff
from kafscale.config import parse_duration, parse_size
from kafscale.errors import KafScaleError
from kafscale.spark.bucket.digests import of_footers
from kafscale.spark.bucket.position import PartitionLag, Position, TopicPartition, ids_of, lag_behind
from kafscale.spark.bucket.reading import LOSS_ADVICE
from kafscale.spark.pipeline.batch import BatchWriter, Outcome
from kafscale.spark.pipeline.checkpoint import HadoopDirectory, QueryCheckpoint, QueryProgress, take_lock
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.records import empty_rows, needs_headers
from kafscale.spark.pipeline.snapshots import Committed, Digests, newest
from kafscale.spark.pipeline.tables import Care, ensure_dead_letters, ensure_declared, ensure_table, format_of, maintain
from kafscale.spark.session import first_line, jvm_may_have_gone
from kafscale.spark.source.offsets import EARLIEST, OffsetFinder, PartitionNotNamed, parse_offsets
from kafscale.spark.source.options import Given, ReadOptions
from kafscale.spark.source.planning import Planner
from kafscale.wire.client_rules import lag

if TYPE_CHECKING:
    from kafscale.traces import Traces

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
LAG_SECONDS = 30.0  # from one look how far a table is behind to the next, for metrics
WRITING = "addBatch"  # what Spark calls the part of a batch that writes it, among how long its parts took
RESTART_COUNT = 5  # in a row, without a batch between; Spark's own is 4 for a task
RESTARTS = Backoff(1.0)
MAINTENANCE_END_SECONDS = 30.0  # for the table that it is at; what is not committed then is not there


@attrs.frozen(kw_only=True)
class Lag:
    """The lag of a table behind the bucket; `seconds` is the age of the first missing records, by their own time."""

    records: int
    bytes: int
    seconds: float
    committed_ms: int | None

    @classmethod
    def of(cls, behind: Sequence[PartitionLag], committed: Committed | None) -> Lag:
        now_ms = int(time.time() * 1000)
        return cls(
            records=sum(partition.offsets_behind for partition in behind),
            bytes=sum(partition.bytes_behind for partition in behind),
            seconds=max((partition.seconds_behind(now_ms) for partition in behind), default=0.0),
            committed_ms=None if committed is None else committed.timestamp_ms,
        )


class Observer(Protocol):
    """An observer of a pipeline, called from several threads."""

    def batch_done(self, mapping: str, outcome: Outcome, row_count: int, lag: int) -> None: ...

    def lag_measured(self, mapping: str, lag: Lag) -> None: ...

    def mapping_failed(self, mapping: str, error: Exception) -> None: ...

    def mapping_restarts(self, mapping: str, error: Exception, delay_seconds: float) -> None: ...

    def maintained(self, care: Care) -> None: ...


@attrs.define(kw_only=True, eq=False, repr=False)
class PipelineRun:
    """A run of a pipeline in a session with its catalog. Raises StartupError, when made, if another run is at work."""

    spark: SparkSession
    pipeline: Pipeline
    observers: Sequence[Observer]
    traces: Traces | None = None
    _stopping: threading.Event = attrs.field(factory=threading.Event, init=False)
    _lock: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._lock = take_lock(HadoopDirectory(self.spark, self.pipeline.checkpoints))

    def stop(self) -> None:
        """End soon; may be called from a signal handler."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> Sequence[str]:
        """Run until told to stop, or with `once`, until nothing is left. Returns the names of failed mappings."""
        ended = threading.Event()
        maintaining = threading.Thread(target=self._maintain, args=(ended,), daemon=True)
        if self.pipeline.maintenance.every is not None and not once:
            maintaining.start()
        try:
            return self._run(once)
        finally:
            ended.set()
            if maintaining.is_alive():
                maintaining.join(MAINTENANCE_END_SECONDS)
            with jvm_may_have_gone():
                self._lock.close()

    def _maintain(self, ended: threading.Event) -> None:
        """Maintain tables now and then, beside the queries, which retry a commit that conflicts with it."""
        seconds = parse_duration(self.pipeline.maintenance.every or "") / 1_000_000
        session = self.spark.newSession()
        while not ended.wait(seconds):
            try:
                for care in maintain(session, self.pipeline):
                    for observer in self.observers:
                        observer.maintained(care)
                    if ended.is_set():
                        return
            except Exception as exc:  # py4j's, most of all
                logger.warning("maintenance is left for the next time: %s", first_line(exc))

    def _run(self, once: bool) -> Sequence[str]:
        running = [
            MappingRun(spark=self.spark, pipeline=self.pipeline, mapping=mapping, traces=self.traces)
            for mapping in self.pipeline.mappings
        ]
        failed: list[str] = []
        while running:
            for run in list(running):
                try:
                    goes_on = run.poll(self.observers, once=once, stopping=self._stopping.is_set())
                except Exception as exc:  # of one mapping, whatever it is
                    failed.append(run.mapping.id)
                    for observer in self.observers:
                        observer.mapping_failed(run.mapping.id, exc)
                    goes_on = False
                if not goes_on:
                    run.close()
                    running.remove(run)
            time.sleep(POLL_SECONDS)
        return failed


@attrs.frozen
class BucketBounds:
    starts: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    ends: Position = attrs.field(factory=Position)


@attrs.define(kw_only=True, eq=False, repr=False)
class MappingRun:
    spark: SparkSession
    pipeline: Pipeline
    mapping: TableMapping
    traces: Traces | None = None
    _query: Any = attrs.field(default=None, init=False)
    _target: BucketBounds | None = attrs.field(default=None, init=False)  # where `once` ends
    _before: QueryProgress | None = attrs.field(default=None, init=False)
    _outcomes: dict[int, Outcome] = attrs.field(factory=dict, init=False)
    _restart_count: int = attrs.field(default=0, init=False)  # since the last batch
    _start_at_seconds: float = attrs.field(default=0.0, init=False)
    _measure_at_seconds: float = attrs.field(default=0.0, init=False)
    _bounds: BucketBounds = attrs.field(factory=BucketBounds, init=False)  # of the bucket, when it was asked last
    _planner: Planner | None = attrs.field(default=None, init=False)
    _looking: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _writer: BatchWriter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = BatchWriter(
            mapping=self.mapping,
            pipeline=self.pipeline,
            checkpoint=self.checkpoint,
            report=self._keep_outcome,
            digests=self._digests,
            traces=self.traces,
        )

    @property
    def checkpoint(self) -> QueryCheckpoint:
        return checkpoint_of(self.spark, self.pipeline, self.mapping)

    def poll(self, observers: Sequence[Observer], *, once: bool, stopping: bool) -> bool:
        """Do the next step, and tell whether the mapping goes on. Raises the error that ended the query for good."""
        if self._query is None and (stopping or time.monotonic() < self._start_at_seconds):
            return not stopping
        try:
            if self._query is None:
                self._start(once)
                return True
            return self._watch(observers, once=once, stopping=stopping)
        except Exception as exc:
            if stopping:
                return False  # what a query says that was told to stop
            if not _may_pass(exc) or self._restart_count >= RESTART_COUNT:
                raise
            self._start_again_later(observers, exc)
            return True

    def _watch(self, observers: Sequence[Observer], *, once: bool, stopping: bool) -> bool:
        if stopping:
            self._query.stop()
        is_active = self._query.isActive
        self._tell(observers)
        self._measure(observers)
        if is_active:
            return True
        self._raise_failure()
        self._query = None
        return once and not stopping and not self._is_done()

    def _measure(self, observers: Sequence[Observer]) -> None:
        """Report the lag now and then. Errors of the bucket or the catalog do not fail the query."""
        if self.pipeline.metrics is None or time.monotonic() < self._measure_at_seconds:
            return
        self._measure_at_seconds = time.monotonic() + LAG_SECONDS
        try:
            committed = newest(format_of(self.spark, self.pipeline).commits(self.mapping.table), self.mapping.id)
            with self._look() as planner:
                behind = behind_of(planner, committed)
        except Exception as exc:  # py4j's of the catalog, too
            logger.info("how far %s is behind is not known now: %s", self.mapping.id, exc)
            return
        lag = Lag.of(behind, committed)
        for observer in observers:
            observer.lag_measured(self.mapping.id, lag)

    def _start_again_later(self, observers: Sequence[Observer], exc: Exception) -> None:
        delay_seconds = RESTARTS.seconds(self._restart_count)
        self._restart_count += 1
        self._start_at_seconds = time.monotonic() + delay_seconds
        self._stop_query()
        self._writer.failure = None
        for observer in observers:
            observer.mapping_restarts(self.mapping.id, exc, delay_seconds)

    def _start(self, once: bool) -> None:
        if self._target is None:
            ensure_table(
                self.spark, self.mapping, self.pipeline, empty_rows(self.spark, self.mapping, self.pipeline).columns
            )
            ensure_declared(self.spark, self.mapping, self.pipeline)
            ensure_dead_letters(self.spark, self.mapping, self.pipeline)
            with self._look() as planner:
                self._target = self._bounds = bounds_of(planner)
        self._before = self.checkpoint.progress()
        stream = self.spark.readStream.format("kafscale").options(**self._options()).load()
        writer = stream.writeStream.foreachBatch(self._writer).queryName(self.mapping.id)
        writer = writer.option("checkpointLocation", self.checkpoint.directory.path)
        interval = f"{parse_duration(self.mapping.trigger or self.pipeline.trigger)} microseconds"
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)
        self._query = writer.start()

    def _options(self) -> dict[str, str]:
        options = {**source_options(self.pipeline, self.mapping), "startingOffsets": self._starting()}
        options["maxOffsetsPerTrigger"] = str(self.mapping.max_records)
        if self.mapping.max_bytes is not None:
            options["maxBytesPerTrigger"] = str(parse_size(self.mapping.max_bytes))
        return options

    def _starting(self) -> str:
        """Return the beginning of the stream, with partitions that came since from their start."""
        with closing(planner_of(self.pipeline, self.mapping)) as planner:
            start = self.checkpoint.start(lambda: self._first_start(planner))
            partitions = dict.fromkeys(planner.logs(start.offsets), EARLIEST)
        whole = attrs.evolve(start, offsets={**partitions, **start.offsets})
        return json.dumps(whole.to_json()) if partitions else "earliest"

    def _first_start(self, planner: Planner) -> Position:
        """Return the end of the table's newest snapshot; without one, the mapping's `starting`."""
        tables = format_of(self.spark, self.pipeline)
        committed = newest(tables.commits(self.mapping.table), self.mapping.id)
        if committed is not None:
            return committed.end
        if tables.has_forgotten(self.mapping.table, self.mapping.id):
            raise KafScaleError(
                f"the table {self.mapping.table} has batches of the mapping '{self.mapping.id}', and its log tells no "
                "more where they end: give the mapping another name, and `starting` where it is to begin"
            )
        limit = parse_offsets("starting", self.mapping.starting)
        logs = planner.logs(limit.names)
        return Position(offsets=OffsetFinder(planner.catalog).find(limit, logs), topic_ids=ids_of(logs.values()))

    def _digests(self, start: Position, end: Position) -> Digests:
        """Return CRCs between two positions, as far as footers have them, without reading bodies.

        The micro-batch was planned in the worker that Spark keeps for the stream, so this process lists again, and gets
        the footers of new segments.
        """
        with self._look() as planner:
            logs = planner.logs(end.offsets.keys(), must_exist=False)
            found = {
                name: of_footers(planner.catalog, logs[name], start.offsets.get(name, 0), behind)
                for name, behind in end.offsets.items()
                if name in logs and start.offsets.get(name, 0) < behind
            }
        return {name: digest for name, digest in found.items() if digest is not None}

    def _keep_outcome(self, outcome: Outcome) -> None:
        self._outcomes[outcome.batch.batch_id] = outcome

    def _tell(self, observers: Sequence[Observer]) -> None:
        """Report new batches of Spark; a waiting query reports the number of its next batch, too."""
        for progress in self._query.recentProgress:
            if WRITING not in progress["durationMs"]:
                continue
            outcome = self._outcomes.pop(progress["batchId"], None)
            if outcome is not None:
                self._restart_count = 0
                lag = lag_of(outcome.batch.end, self._newest_bounds())
                for observer in observers:
                    observer.batch_done(self.mapping.id, outcome, progress["numInputRows"], lag)

    def _newest_bounds(self) -> BucketBounds:
        """Return the bounds of the bucket, or the last known ones if it does not answer."""
        try:
            with self._look() as planner:
                self._bounds = bounds_of(planner)
        except KafScaleError as exc:
            logger.info("where the bucket ends for %s is not known now: %s", self.mapping.id, exc)
        return self._bounds

    @contextmanager
    def _look(self) -> Iterator[Planner]:
        """Look into the bucket, one thread at a time, with the footers of earlier looks."""
        with self._looking:
            if self._planner is None:
                self._planner = planner_of(self.pipeline, self.mapping)
            yield self._planner

    def close(self) -> None:
        self._stop_query()
        with self._looking:
            if self._planner is not None:
                self._planner.close()
            self._planner = None

    def _stop_query(self) -> None:
        """Stop the query, which may still run if asking for its state has failed."""
        query, self._query = self._query, None
        if query is not None:
            with jvm_may_have_gone():
                query.stop()

    def _raise_failure(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure
        failure = self._query.exception()
        if failure is not None:
            raise QueryFailed(str(failure)) from failure

    def _is_done(self) -> bool:
        """Tell whether everything that was in the bucket at first is in the table, or nothing more comes."""
        after = self.checkpoint.progress()
        return after == self._before or not lag_of(after.end, self._target or BucketBounds())


class QueryFailed(KafScaleError):
    """Spark ended a query. `passing`: another try may succeed.

    An error in Spark's Python workers comes as Java's text, whose last line names its class.
    """

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("kafscale.")]
        super().__init__((ours[-1] if ours else lines[0]).replace(LOSS_ADVICE, RESET_ADVICE))
        self.passing = not ours or ours[-1].partition(":")[0].rpartition(".")[2] in (*PASSING, NEW_PARTITION)


RESET_ADVICE = (
    "The mapping stops without them; `kafscale pipeline reset --topic TOPIC FILE` makes it go on with the topic as it "
    "is now, and with --dry-run only shows where"
)
PASSING = ("StoreUnavailable", "SlowDown", "Undecided", "RegistryError", "BrokerUnavailable")
NEW_PARTITION = PartitionNotNamed.__name__  # in a query, whose offsets a run has put together itself a moment before


def _may_pass(exc: Exception) -> bool:
    """Tell whether the query is started again: a service did not answer, or Spark failed by itself."""
    if isinstance(exc, QueryFailed):
        return exc.passing
    name = type(exc).__name__
    by_spark = type(exc).__module__.partition(".")[0] in ("pyspark", "py4j")
    return name in PASSING or (by_spark and name != "Py4JNetworkError")  # which is the end of the JVM


def checkpoint_of(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> QueryCheckpoint:
    return QueryCheckpoint(HadoopDirectory(spark, f"{pipeline.checkpoints.rstrip('/')}/{mapping.id}"))


def source_options(pipeline: Pipeline, mapping: TableMapping) -> dict[str, str]:
    """Return the options of the data source. Unreadable segments always stop the mapping."""
    return {
        **pipeline.source.options,
        "store": pipeline.source.store,
        **mapping.subscription,
        "failOnDataLoss": "true",
        "warnOfAvailableNow": "false",  # `once` repeats its query until nothing is left
        "includeHeaders": str(needs_headers(mapping, pipeline)).lower(),
    }


def planner_of(pipeline: Pipeline, mapping: TableMapping) -> Planner:
    """Open the bucket as the mapping's query does. Raises ConfigError."""
    return Planner.of(ReadOptions.of(Given(source_options(pipeline, mapping))))


def bounds_of(planner: Planner) -> BucketBounds:
    logs = planner.logs()
    ends = {partition: log.end_offset for partition, log in logs.items()}
    return BucketBounds(
        starts={partition: log.start_offset for partition, log in logs.items()},
        ends=Position(offsets=ends, topic_ids=ids_of(logs.values())),
    )


def behind_of(planner: Planner, committed: Committed | None) -> Sequence[PartitionLag]:
    end = Position() if committed is None else committed.end
    logs = planner.logs()
    reached = reached_of(end, Position(topic_ids=ids_of(logs.values())))
    return [lag_behind(planner.catalog, log, reached.get(partition, 0)) for partition, log in logs.items()]


def reached_of(committed: Position, ends: Position) -> Mapping[TopicPartition, int]:
    """Return the table's offsets of the topics that exist."""
    anew = {topic for topic, known in committed.topic_ids.items() if ends.topic_ids.get(topic, known) != known}
    return {partition: offset for partition, offset in committed.offsets.items() if partition[0] not in anew}


def lag_of(committed: Position, bounds: BucketBounds) -> int:
    """Return the number of the bucket's offsets missing in the table; all of a topic that was created again."""
    reached, starts = reached_of(committed, bounds.ends), bounds.starts
    return sum(
        lag(reached.get(partition, 0), log_start_offset=starts.get(partition, 0), end_offset=end_offset)
        for partition, end_offset in bounds.ends.offsets.items()
    )
