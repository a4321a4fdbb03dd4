"""Writes one micro-batch in one snapshot, exactly once. This module imports pyspark.

1. The table's newest snapshot of the mapping decides: a batch that is in it is skipped.
2. Bad records go to the dead-letter table first, in a snapshot with the same summary. If the batch is repeated before
   its rows are in, or others take its place after the checkpoint was lost, records that are dead letters already are
   left out, whichever way they decode now.
3. The table's schema is changed if values need it.
4. Rows are appended, or merged, in one commit, whose summary names the batch.

With a fan-out, 3 and 4 are done for each of its tables, also without a row for it, and for the mapping's own table
last: batches in that table are in all. A table that is ahead, after a repeated batch or a lost checkpoint, leaves out
rows that it has, except those of topics that a reset reads again.

A commit that conflicts with another writer's, such as compaction, is tried again, from 1. So is a commit with an
unknown outcome, as the catalog did not answer: it may still arrive after that look. So rows of a batch that may have
been tried before are appended only if nothing came into the table since the look: one of the two commits fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql import DataFrame, SparkSession, Window, functions

from kafscale.errors import KafScaleError
from kafscale.spark.bucket.position import Position
from kafscale.spark.catalogs import quoted
from kafscale.spark.pipeline.checkpoint import QueryCheckpoint
from kafscale.spark.pipeline.config import DELETES, KEEP, MARK, Pipeline, TableMapping
from kafscale.spark.pipeline.records import ERROR, RECORD, TOMBSTONE, TRUNCATE, BatchRows, rows_of
from kafscale.spark.pipeline.schema import fitted
from kafscale.spark.pipeline.snapshots import CommitsAhead, Committed, Digests, MicroBatch, newest
from kafscale.spark.pipeline.table_format import TableFormat, TableHead
from kafscale.spark.pipeline.tables import evolve, format_of, not_before, routed, share_of, tables_for

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from kafscale.traces import Traces

logger = logging.getLogger(__name__)

ATTEMPT_COUNT = 5
VIEW = "_kafscale_batch"
GONE = "_kafscale_gone"
PLACE = ("topic", "partition", "offset")
SHOWN_COUNT = 3  # of bad records, in the error that tells of them


class BadRecords(KafScaleError):
    """Records can't be decoded, and there is no table for them."""


class TableWentBack(KafScaleError):
    """The table lacks batches that the checkpoint has passed."""


class CheckpointWentBack(KafScaleError):
    """The checkpoint is older than the table, so a batch has other offsets than it should."""


@attrs.frozen(kw_only=True)
class Outcome:
    batch: MicroBatch
    dead_letter_count: int = 0
    added_bytes: int = 0
    added_rows: int = 0
    commit_seconds: float | None = None  # None: it was in the table already


@attrs.define(kw_only=True, eq=False, repr=False)
class BatchWriter:
    """Writes batches for foreachBatch. `report` gets each outcome; `digests` computes the CRCs of a batch."""

    mapping: TableMapping
    pipeline: Pipeline
    checkpoint: QueryCheckpoint
    report: Callable[[Outcome], None]
    digests: Callable[[Position, Position], Digests] = lambda _start, _end: {}
    traces: Traces | None = None
    failure: Exception | None = None
    buried: CommitsAhead = attrs.field(  # in the table of dead letters
        default=attrs.Factory(lambda self: CommitsAhead(mapping=self.mapping.id), takes_self=True), init=False
    )
    _tried: int | None = attrs.field(default=None, init=False)  # the newest batch

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch. Its error is kept as `failure` too, since Spark makes it a text."""
        try:
            self._write(frame, batch_id)
        except Exception as exc:
            self.failure = exc
            raise

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        query_id = self.checkpoint.query_id
        assert query_id is not None, "Spark has written it before the first batch"
        end, start = self.checkpoint.end(batch_id), self.checkpoint.start_of(batch_id)
        again = self.checkpoint.read_again()
        batch = MicroBatch(
            mapping=self.mapping.id, query_id=query_id, batch_id=batch_id, end=end, start=start, again=again
        )
        tables = format_of(frame.sparkSession, self.pipeline)
        is_new = self._tried == batch_id - 1  # or else it may have been tried in an earlier process
        self._tried = batch_id
        with self._traced(batch) as span:
            self._try(_Attempt(self, frame, batch, tables, is_new=is_new, span=span))

    def _traced(self, batch: MicroBatch) -> AbstractContextManager[Span | None]:
        if self.traces is None:
            return nullcontext()
        from kafscale.spark.pipeline.tracing import batch_span

        return batch_span(self.traces, batch, self.mapping.table)

    def _try(self, first: _Attempt) -> None:
        tables, batch_id = first.tables, first.batch.batch_id
        for attempt in range(1, ATTEMPT_COUNT + 1):
            try:
                self.report((first if attempt == 1 else attrs.evolve(first, is_new=False)).run())
                return
            except Exception as exc:
                conflict = next((text for text in tables.conflicts if text in str(exc)), None)
                if conflict is None or attempt == ATTEMPT_COUNT:
                    raise
                logger.warning("batch %d of %s is tried again: %s", batch_id, self.mapping.id, conflict)


@attrs.frozen(eq=False, repr=False)
class _Attempt:
    """One try to write a batch."""

    writer: BatchWriter
    frame: DataFrame
    batch: MicroBatch
    tables: TableFormat  # as the stream's own session sees them, by its own settings
    is_new: bool = attrs.field(kw_only=True)  # the batch was never tried before
    span: Span | None = attrs.field(kw_only=True)

    @property
    def spark(self) -> SparkSession:
        return self.frame.sparkSession

    def run(self) -> Outcome:
        head = self._head(self.writer.mapping.table)
        committed = self._newest(self.writer.mapping.table)
        if committed is not None and self.batch.is_in(committed):
            self._check_end(committed, self.writer.mapping)
            return Outcome(batch=self.batch)
        self._check_continuity(committed, self.writer.mapping)
        self._check_start(committed, self.writer.mapping)
        rows = rows_of(self.frame, self.writer.mapping, self.writer.pipeline)
        told = self._told(committed)
        with _kept(rows, is_traced=self.span is not None):
            self._link(rows)
            others = tables_for(self.spark, self.writer.pipeline, self.writer.mapping, rows)
            rows = routed(rows, self.writer.mapping, others)
            self.tables.tell(told.summary())
            dead_letters, rows = self._bury(rows, committed)
            started = time.monotonic()
            added = [self._add_share(rows, self.writer.mapping.into(other), told) for other in others]
            self.tables.tell(told.summary(), once=True)
            self._commit(share_of(rows, self.writer.mapping, None), self.writer.mapping, head)
            added.append(self._written(self.writer.mapping.table))
        return Outcome(
            batch=self.batch,
            dead_letter_count=dead_letters,
            added_bytes=sum(committed.added_bytes for committed in added if committed is not None),
            added_rows=sum(committed.added_rows for committed in added if committed is not None),
            commit_seconds=time.monotonic() - started,
        )

    def _link(self, rows: BatchRows) -> None:
        if self.span is not None:
            from kafscale.spark.pipeline.tracing import link_records

            link_records(self.span, rows)

    def _head(self, table: str) -> TableHead | None:
        """Return the head of the table before the look, if nothing else may come before the rows."""
        return None if self.is_new else TableHead(next((commit.id for commit in self.tables.commits(table)), None))

    def _newest(self, table: str) -> Committed | None:
        return newest(self.tables.commits(table), self.batch.mapping)

    def _add_share(self, rows: BatchRows, mapping: TableMapping, told: MicroBatch) -> Committed | None:
        """Commit the rows of another table of a fan-out; None if it has them already."""
        head = self._head(mapping.table)
        committed = self._newest(mapping.table)
        if committed is not None and self.batch.is_in(committed):
            self._check_end(committed, mapping)
            return None
        if committed is not None:
            self._check_continuity(committed, mapping)
        batch = told.behind(committed)
        self.tables.tell(batch.summary(), once=True)
        self._commit(not_before(share_of(rows, mapping, mapping.table), self.batch.start, batch.start), mapping, head)
        return self._written(mapping.table)

    def _told(self, committed: Committed | None) -> MicroBatch:
        """Add the mapping's beginning and CRCs, which `prove` needs."""
        began = self.batch.start if committed is None else committed.began
        digests = self.writer.digests(self.batch.start, self.batch.end)
        return attrs.evolve(self.batch, began=began, digests=digests)

    def _written(self, table: str) -> Committed:
        """Return the batch as committed. A table without it would be a bug."""
        committed = self._newest(table)
        if committed is None or not self.batch.is_in(committed):
            raise KafScaleError(f"batch {self.batch.batch_id} was written, and the table {table} does not say so")
        return committed

    def _check_continuity(self, committed: Committed | None, mapping: TableMapping) -> None:
        before = self.batch.batch_id - 1
        if before < 0 or (
            committed is not None and committed.query_id == self.batch.query_id and committed.batch_id == before
        ):
            return
        raise TableWentBack(
            f"the table {mapping.table} has no batch {before} of the mapping '{self.batch.mapping}', which "
            f"the checkpoint {self.writer.checkpoint.directory.path} says is in it: was it made anew, or rolled back? "
            "Delete this checkpoint, and the mapping goes on from what the table has"
        )

    def _check_end(self, committed: Committed, mapping: TableMapping) -> None:
        """Raise CheckpointWentBack if the table has this batch with a smaller end."""
        had = committed.end.offsets
        if any(end > had.get(partition, 0) for partition, end in self.batch.end.offsets.items()):
            raise self._went_back(mapping)

    def _check_start(self, committed: Committed | None, mapping: TableMapping) -> None:
        """Raise CheckpointWentBack if the batch begins before the end of the table's rows, which would come twice.

        Topics that are read again, and topics without a known id, may.
        """
        if committed is not None:
            start, known, anew = self.batch.start, committed.end.topic_ids, self.batch.anew(committed)
            for (topic, index), end in committed.end.offsets.items():
                is_same = topic in known and known[topic] == start.topic_ids.get(topic) and topic not in anew
                if is_same and start.offsets.get((topic, index), end) < end:
                    raise self._went_back(mapping)

    def _went_back(self, mapping: TableMapping) -> CheckpointWentBack:
        return CheckpointWentBack(
            f"the table {mapping.table} has other offsets of the mapping '{self.batch.mapping}' up to batch "
            f"{self.batch.batch_id} than the checkpoint {self.writer.checkpoint.directory.path}: was that restored "
            "from an earlier time? Delete this checkpoint, and the mapping goes on from what the table has"
        )

    def _bury(self, rows: BatchRows, committed: Committed | None) -> tuple[int, BatchRows]:
        """Write bad records to the dead-letter table; return their number, and the rows without all dead letters."""
        if not rows.can_fail:
            return 0, rows
        name = self.writer.mapping.dead_letters
        if name is None:
            _refuse(rows, self.writer.mapping)
            return 0, rows
        head = self._head(name)
        rows = self._without_buried(rows, name, committed)
        letters = rows.bad().select(
            functions.lit(self.batch.mapping).alias("mapping"),
            *(f"{RECORD}.{column}" for column in ("topic", "partition", "offset", "timestamp", "key", "value")),
            functions.col(ERROR).alias("error"),
        )
        count = letters.count()
        if count:
            self.tables.append(name, letters, behind=head)
        return count, rows

    def _without_buried(self, rows: BatchRows, dead_letters: str, committed: Committed | None) -> BatchRows:
        """Leave out records that an earlier try has made dead letters, and no others.

        Such a try was of this batch, or, before the checkpoint was lost, of one that reached beyond the table's end.
        """
        buried = self.writer.buried.look(self.tables.commits(dead_letters), committed)
        if not buried:
            return rows
        places = []
        for commit in buried:
            anew = sorted(self.batch.anew(commit))  # topics that are read again
            appended = self.tables.appended(dead_letters, commit)
            places.append(appended.where(~functions.col("topic").isin(anew)).select(*PLACE))
        letters = reduce(DataFrame.union, places)
        same = [functions.col(f"{RECORD}.{name}") == letters[name] for name in PLACE]
        return attrs.evolve(rows, frame=rows.frame.join(letters, same, "left_anti"))

    def _commit(self, rows: BatchRows, mapping: TableMapping, head: TableHead | None) -> None:
        schema = evolve(self.spark, mapping, self.writer.pipeline, rows.columns)
        if rows.upsert_by:
            self._merge(rows, mapping, self.writer.pipeline.full_name(mapping.table))
            return
        self.tables.append(mapping.table, rows.good().select(*fitted(rows.columns, schema)), behind=head)

    def _merge(self, rows: BatchRows, mapping: TableMapping, table: str) -> None:
        truncates = truncates_of(rows)
        upserts(rows, mapping, truncates).createOrReplaceTempView(VIEW)
        names = [quoted(name) for name in rows.columns.names]
        on = " AND ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in rows.upsert_by)
        deletes = "DELETE"
        if mapping.deletes == MARK:
            deletes = f"UPDATE SET t.{quoted(mapping.deleted_column)} = true"
        self.spark.sql(
            f"MERGE INTO {table} t USING {VIEW} s ON {on} "
            f"WHEN MATCHED AND s.{TOMBSTONE} THEN {deletes} "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
            f"WHEN NOT MATCHED AND NOT s.{TOMBSTONE} THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)}) "
            f"{_emptying(mapping, truncates, deletes)}"
        )


def _emptying(mapping: TableMapping, truncates: Sequence[Any], deletes: str) -> str:
    """Return the clause of a MERGE for rows that a truncate has deleted; empty without one."""
    if not truncates or mapping.deletes == KEEP:
        return ""
    conditions = []
    if mapping.topic_column is not None:
        topics = ", ".join(sorted({f"'{truncate.of_topic}'" for truncate in truncates}))
        conditions.append(f"t.{quoted(mapping.topic_column)} IN ({topics})")
    if mapping.deletes == MARK:
        conditions.append(f"NOT coalesce(t.{quoted(mapping.deleted_column)}, false)")
    return f"WHEN NOT MATCHED BY SOURCE{''.join(f' AND {condition}' for condition in conditions)} THEN {deletes}"


@contextmanager
def _kept(rows: BatchRows, *, is_traced: bool) -> Iterator[None]:
    """Decode rows once that are used twice: for the dead letters, or the trace, and for the table."""
    is_kept = rows.can_fail or is_traced
    if is_kept:
        rows.frame.persist()
    try:
        yield
    finally:
        if is_kept:
            rows.frame.unpersist()


def _refuse(rows: BatchRows, mapping: TableMapping) -> None:
    found = rows.bad().select(*(f"{RECORD}.{name}" for name in PLACE), ERROR).limit(SHOWN_COUNT).collect()
    if found:
        shown = "; ".join(f"{row.topic} {row.partition} at offset {row.offset}: {row[ERROR]}" for row in found)
        raise BadRecords(
            f"the mapping '{mapping.id}' has bad records, and no table for dead_letters to put them in: {shown}"
        )


def upserts(rows: BatchRows, mapping: TableMapping, truncates: Sequence[Any], *, batch: str | None = None) -> DataFrame:
    """Return the outcome of each key: its row, or, where TOMBSTONE is true, its deletion.

    If deleted rows are marked, or kept, the last row before the deletion is returned.
    """
    rows = attrs.evolve(rows, frame=with_dead(rows.frame, truncates, batch=batch))
    is_gone = functions.col(TOMBSTONE) | functions.col(DEAD)
    if mapping.deletes == DELETES[0]:
        return last_by_key(rows, batch=batch).withColumn(TOMBSTONE, is_gone)
    is_row = ~functions.col(TOMBSTONE)
    last_rows = last_by_key(attrs.evolve(rows, frame=rows.frame.where(is_row)), batch=batch)
    if mapping.deletes == KEEP:
        return last_rows
    keys, ends = list(rows.upsert_by), last_by_key(rows, batch=batch)
    gone = ends.select(*map(quoted, keys), is_gone.alias(GONE))
    marked = last_rows.join(gone, keys).withColumn(mapping.deleted_column, functions.col(GONE)).drop(GONE)
    without_row = ends.where(TOMBSTONE).join(last_rows.select(*map(quoted, keys)), keys, "left_anti")
    return marked.unionByName(without_row)


def last_by_key(rows: BatchRows, *, batch: str | None = None) -> DataFrame:
    """Keep the last record of each key: by offset within a partition, by timestamp between partitions.

    batch: a column with the number of the batch, if the rows are of several; later batches go before.
    """
    place = [functions.col(f"{RECORD}.{name}") for name in ("topic", "partition")]
    keys = [functions.col(quoted(name)) for name in rows.upsert_by]
    offset, timestamp = functions.col(f"{RECORD}.offset").desc(), functions.col(f"{RECORD}.timestamp").desc()
    latest = [functions.col(batch).desc()] if batch is not None else []
    in_partition = Window.partitionBy(*keys, *place).orderBy(offset)
    of_all = Window.partitionBy(*keys).orderBy(*latest, timestamp, *(column.desc() for column in place))
    last = (
        rows.good()
        .withColumn("_kafscale_place", functions.row_number().over(in_partition))
        .where("_kafscale_place = 1")
    )
    return last.withColumn("_kafscale_place", functions.row_number().over(of_all)).where("_kafscale_place = 1")


DEAD = "_kafscale_dead"


def truncates_of(rows: BatchRows, *, batch: str | None = None) -> Sequence[Any]:
    """Return the last offset and time of truncates, for each partition with one, as rows of Spark.

    Debezium's change with `op` t empties the table of its own topic. Of several in one partition, the last has the
    effect of all.
    """
    if TRUNCATE not in rows.frame.columns:
        return []
    number = functions.lit(0) if batch is None else functions.col(batch)
    place = [functions.col(f"{RECORD}.{name}").alias(f"of_{name}") for name in ("topic", "partition")]
    found = rows.good().where(TRUNCATE).groupBy(number.alias("of_batch"), *place)
    last = [functions.max(f"{RECORD}.{name}").alias(f"of_{name}") for name in ("offset", "timestamp")]
    return list(found.agg(*last).collect())


def with_dead(frame: DataFrame, truncates: Sequence[Any], *, batch: str | None = None) -> DataFrame:
    """Return the rows without truncates, and DEAD: a truncate came after the row, in the order of `last_by_key`."""
    frame = frame.where(~functions.col(TRUNCATE)) if TRUNCATE in frame.columns else frame
    if not truncates:
        return frame.withColumn(DEAD, functions.lit(False))
    columns = "of_batch INT, of_topic STRING, of_partition INT, of_offset BIGINT, of_timestamp TIMESTAMP"
    these = functions.broadcast(frame.sparkSession.createDataFrame(list(truncates), columns))
    number = functions.lit(0) if batch is None else functions.col(batch)
    partition, timestamp = functions.col(f"{RECORD}.partition"), functions.col(f"{RECORD}.timestamp")
    is_older = (timestamp < these.of_timestamp) | ((timestamp == these.of_timestamp) & (partition < these.of_partition))
    is_before = functions.when(
        partition == these.of_partition, functions.col(f"{RECORD}.offset") < these.of_offset
    ).otherwise(is_older)
    is_dead = (functions.col(f"{RECORD}.topic") == these.of_topic) & (
        (number < these.of_batch) | ((number == these.of_batch) & is_before)
    )
    dead = frame.join(these, is_dead, "left_semi").withColumn(DEAD, functions.lit(True))
    return dead.unionByName(frame.join(these, is_dead, "left_anti").withColumn(DEAD, functions.lit(False)))
