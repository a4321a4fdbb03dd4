"""`kafscale pipeline prove`: derives a table again from the bucket, and compares. This module imports pyspark.

The summaries of a table's snapshots tell the offsets of each micro-batch, and CRCs of the segments that it read wholly.
These are checked against the bucket first; then all records in between are decoded again, by the present mapping, put
together as the batches did, and compared row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise

import attrs
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from kafscale.errors import CorruptBatch, DamagedObject
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.bucket.digests import of_batches, was_compacted
from kafscale.spark.bucket.position import Position, TopicPartition, range_options, recreations
from kafscale.spark.pipeline.batch import truncates_of, upserts
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.records import RECORD, TOMBSTONE, BatchRows, rows_of
from kafscale.spark.pipeline.runner import planner_of, source_options
from kafscale.spark.pipeline.schema import fitted
from kafscale.spark.pipeline.snapshots import Committed, committed_batches
from kafscale.spark.pipeline.tables import begun_tables, format_of, routed, share_of
from kafscale.spark.source.planning import Planner

NUMBER = "_kafscale_batch_number"
PROVEN = "proven"


@attrs.frozen(kw_only=True)
class Proof:
    """The proof of one table. `found`: `proven`, or the difference.

    crcs: how many of the mapping's snapshots were checked against batches in the bucket. records: between the offsets.
    missing, extra: rows that the table lacks, or has in excess.
    """

    mapping: str
    table: str
    snapshots: int = 0
    crcs: int = 0
    records: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    found: str = PROVEN

    @property
    def is_proven(self) -> bool:
        return self.found == PROVEN


class _Unproven(Exception):
    """A difference found before rows are compared."""


def prove(spark: SparkSession, pipeline: Pipeline, mappings: Sequence[str] = ()) -> Iterator[Proof]:
    """Prove the tables of all mappings, or of these. Raises ConfigError, StoreError."""
    for mapping in pipeline.mappings:
        if mappings and mapping.id not in mappings:
            continue
        others = begun_tables(format_of(spark, pipeline), mapping)
        for table in (None, *others):
            proof = Proof(mapping=mapping.id, table=table or mapping.table)
            try:
                yield _prove(spark, pipeline, mapping, proof, others)
            except _Unproven as exc:
                yield attrs.evolve(proof, found=str(exc))


def _prove(
    spark: SparkSession, pipeline: Pipeline, mapping: TableMapping, proof: Proof, others: Mapping[str, Position]
) -> Proof:
    tables = format_of(spark, pipeline)
    if not tables.exists(proof.table):
        raise _Unproven("there is no such table")
    commits = list(tables.commits(proof.table))
    batches = [batch for batch in committed_batches(commits) if batch.mapping == mapping.id][::-1]
    if not batches:
        raise _Unproven("no snapshot of the table is of this mapping")
    end = batches[-1].end
    begin = batches[-1].began
    with closing(planner_of(pipeline, mapping)) as planner:
        logs = planner.logs(end.offsets.keys(), must_exist=False)
        for recreated in [topic for batch in batches for topic in recreations(batch.end.topic_ids, logs).values()]:
            raise _Unproven(str(recreated))
        _check_order(batches)
        _check_there(logs, begin, end)
        crc_count = sum(_check_crcs(planner, logs, batch) for batch in batches)
    derived = routed(rows_of(_records(spark, pipeline, mapping, begin, end), mapping, pipeline), mapping, others)
    derived = share_of(derived, mapping, proof.table if proof.table in others else None)
    derived = attrs.evolve(derived, frame=derived.frame.persist())
    try:
        table = spark.read.option("versionAsOf", commits[0].id).table(pipeline.full_name(proof.table))
        found = attrs.evolve(proof, snapshots=len(batches), crcs=crc_count)
        return _compare(table, derived, mapping, batches, found)
    finally:
        derived.frame.unpersist()


def _check_order(batches: Sequence[Committed]) -> None:
    """Raise _Unproven unless each batch begins at the end of the one before."""
    for before, after in pairwise(batches):
        for partition, start in after.start.offsets.items():
            end = before.end.offsets.get(partition, start)
            if end != start:
                topic, index = partition
                raise _Unproven(
                    f"batch {after.batch_id} begins at offset {start} of partition {index} of {topic}, and batch "
                    f"{before.batch_id} before it ended at {end}"
                )


def _check_there(logs: Mapping[TopicPartition, PartitionLog], begin: Position, end: Position) -> None:
    for partition, behind in end.offsets.items():
        topic, index = partition
        start = begin.offsets.get(partition, 0)
        log = logs.get(partition)
        if start >= behind:
            continue
        if log is None or log.start_offset > start:
            now = "it has none" if log is None else f"it begins at {log.start_offset} now"
            raise _Unproven(f"the table has partition {index} of {topic} from offset {start} on, and the bucket: {now}")
        if log.written_end_offset < behind:
            raise _Unproven(
                f"the table has partition {index} of {topic} up to {behind}, and the bucket up to "
                f"{log.written_end_offset}"
            )


def _check_crcs(planner: Planner, logs: Mapping[TopicPartition, PartitionLog], batch: Committed) -> bool:
    """Tell whether the batch has CRCs that were checked against the bucket.

    Compaction changes CRCs, and a segment may have begun before the remaining records.
    """
    checked = False
    for partition, digest in batch.digests.items():
        log = logs[partition]
        is_gone = digest.start_offset < log.start_offset
        if is_gone or was_compacted(planner.catalog, log, digest.start_offset, digest.end_offset):
            continue
        try:
            found = of_batches(planner.catalog, log, digest.start_offset, digest.end_offset)
        except (DamagedObject, CorruptBatch) as exc:
            raise _Unproven(str(exc)) from exc
        if found != digest:
            topic, index = partition
            raise _Unproven(
                f"offsets {digest.start_offset} to {digest.end_offset - 1} of partition {index} of {topic} are not "
                f"those that batch {batch.batch_id} had: the CRC of their batches is another one"
            )
        checked = True
    return checked


def _records(
    spark: SparkSession, pipeline: Pipeline, mapping: TableMapping, begin: Position, end: Position
) -> DataFrame:
    starts = {name: min(begin.offsets.get(name, 0), behind) for name, behind in end.offsets.items()}
    options = source_options(pipeline, mapping)
    for name in ("subscribe", "subscribePattern", "warnOfAvailableNow"):
        options.pop(name, None)
    options |= range_options(starts, end.offsets)
    return spark.read.format("kafscale").options(**options).load()


def _compare(
    table: DataFrame, derived: BatchRows, mapping: TableMapping, batches: Sequence[Committed], proof: Proof
) -> Proof:
    columns = [  # in a form that Spark can compare: maps as text
        f"to_json(`{field.name}`) AS `{field.name}`" if _has_map(field.dataType) else f"`{field.name}`"
        for field in table.schema.fields
    ]
    expected = _expected(derived, mapping, batches).select(*fitted(derived.columns, table.schema)).selectExpr(*columns)
    actual = table.selectExpr(*columns)
    proof = attrs.evolve(
        proof,
        records=derived.frame.count(),
        rows=actual.count(),
        missing=expected.exceptAll(actual).count(),
        extra=actual.exceptAll(expected).count(),
    )
    if proof.missing or proof.extra:
        return attrs.evolve(proof, found="the table is not what follows from the bucket")
    return proof


def _expected(derived: BatchRows, mapping: TableMapping, batches: Sequence[Committed]) -> DataFrame:
    """Return the rows that the batches leave: a later batch wins for a key, whatever its timestamp."""
    if not derived.upsert_by:
        return derived.good()
    columns = f"of_topic STRING, of_partition INT, start BIGINT, end BIGINT, {NUMBER} INT"
    ranges = derived.frame.sparkSession.createDataFrame(list(_ranges(batches)), columns)
    offset = functions.col(f"{RECORD}.offset")
    same = (
        (functions.col(f"{RECORD}.topic") == ranges.of_topic)
        & (functions.col(f"{RECORD}.partition") == ranges.of_partition)
        & (offset >= ranges.start)
        & (offset < ranges.end)
    )
    numbered = attrs.evolve(derived, frame=derived.frame.join(functions.broadcast(ranges), same))
    truncates = truncates_of(numbered, batch=NUMBER)
    return upserts(numbered, mapping, truncates, batch=NUMBER).where(~functions.col(TOMBSTONE))


def _ranges(batches: Sequence[Committed]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the offsets of each batch; the first remaining one includes those of expired snapshots."""
    ends: dict[TopicPartition, int] = {}
    for number, batch in enumerate(batches):
        for (topic, index), end in batch.end.offsets.items():
            yield topic, index, ends.get((topic, index), 0), end, number
            ends[topic, index] = end


def _has_map(type_: DataType) -> bool:
    if isinstance(type_, StructType):
        return any(_has_map(field.dataType) for field in type_.fields)
    return isinstance(type_, MapType) or (isinstance(type_, ArrayType) and _has_map(type_.elementType))
