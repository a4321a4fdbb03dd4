"""What is decided of a batch: which transactions of which tasks it is. A value, and a record's text.

The text is JSON, so that `kafka-console-consumer` shows what a query was at:

    version       1
    batch         the number of the last batch that was decided; of writes that are no stream, how many there were
    run           whose decision it is: an execution of the query, or one write
    former        the runs before, which may not decide any more; the last few of them
    unfinished    the transactions that are still to be committed, empty when the batch is whole
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Final

import attrs

from kafscale.errors import KafkaError
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.transactions.lead import Lead
from kafscale.spark.transactions.logs import PartitionLog, StoredBatch
from kafscale.wire import compression, error_codes
from kafscale.wire.records import Record, iterate_records

VERSION: Final = 1
FORMER_MAX_COUNT: Final = 8  # a run that even older ones fence is told by the number of its batch


@attrs.frozen(kw_only=True)
class Span:
    """Where the records of a transaction are in one partition: `count` of them, among offsets from first to last."""

    topic: str
    partition: int
    first: int
    last: int
    count: int


@attrs.frozen(kw_only=True)
class Prepared:
    """The transaction of one task: all of its records are acknowledged, and it is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    spans: tuple[Span, ...]


@attrs.frozen(kw_only=True)
class Decision:
    """The last batch of a query that was decided."""

    batch: int
    run: str
    former: tuple[str, ...] = ()
    unfinished: tuple[Prepared, ...] = ()

    def followed_by(self, run: str) -> tuple[str, ...]:
        """The former runs, as the next decision of this run has them."""
        return self.former if run == self.run else (self.run, *self.former)[:FORMER_MAX_COUNT]

    def to_text(self) -> bytes:
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Decision:
        """Raises KafkaError for what this version did not write."""
        try:
            document = json.loads(text)
            if document.pop("version") != VERSION:
                raise ValueError("it is of a newer version")
            unfinished = tuple(
                Prepared(**{**each, "spans": tuple(Span(**span) for span in each["spans"])})
                for each in document.pop("unfinished")
            )
            return cls(**{**document, "former": tuple(document["former"])}, unfinished=unfinished)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            code = error_codes.INVALID_RECORD
            raise KafkaError(code, f"a record of kafscale-spark-transactions can't be read: {exc}") from exc


TOPIC: Final = "kafscale-spark-transactions"
PARTITIONS: Final = 16
FIRST_LOOK_OFFSETS: Final = 64
NEXT_LOOK_FACTOR: Final = 16


@attrs.frozen(kw_only=True)
class Journal:
    """The decisions of one query."""

    cluster: Cluster
    transactional_id: str
    partition: int

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str) -> Journal:
        """Create the topic, if there is none. Raises BrokerUnavailable, KafkaError."""

        def count() -> int:
            try:
                return cluster.partitions(TOPIC)
            except KafkaError as exc:
                if exc.code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                cluster.create_compacted(TOPIC, PARTITIONS)
                raise

        partition = zlib.crc32(transactional_id.encode()) % cluster.patiently(count)
        return cls(cluster=cluster, transactional_id=transactional_id, partition=partition)

    def last(self) -> Decision | None:
        """The last one that was made. Raises BrokerUnavailable, KafkaError."""
        log = PartitionLog(cluster=self.cluster, topic=TOPIC, partition=self.partition)
        start, end = log.start(), log.end()
        later: list[StoredBatch] = []  # than what is looked at, or there
        looked_from, look = end, FIRST_LOOK_OFFSETS
        while looked_from > start:
            look_from = max(start, end - look)
            batches = list(log.batches(look_from, looked_from))
            later = [*batches, *later]
            for index in reversed(range(len(batches))):
                text = self._text_of(batches[index])
                if text is not None and _is_committed(later[index], later[index + 1 :]):
                    return Decision.of_text(text)
            looked_from, look = look_from, look * NEXT_LOOK_FACTOR
        return None

    def write(self, lead: Lead, decision: Decision, timestamp_ms: int) -> None:
        """Add a decision to the lead's transaction, which makes it when it is committed.

        Raises BrokerUnavailable, KafkaError.
        """
        record = Record(key=self.transactional_id.encode(), value=decision.to_text(), timestamp_ms=timestamp_ms)
        codec = compression.GZIP if decision.unfinished else compression.NONE
        lead.write(TOPIC, self.partition, record, codec)

    def _text_of(self, batch: StoredBatch) -> bytes | None:
        if batch.header.is_control:
            return None
        key = self.transactional_id.encode()
        return next((each.value for each in iterate_records(batch.data) if each.key == key), None)


def _is_committed(batch: StoredBatch, later: Sequence[StoredBatch]) -> bool:
    of_producer = (each for each in later if each.header.producer_id == batch.header.producer_id)
    outcomes = (each.outcome for each in of_producer)
    return next((outcome for outcome in outcomes if outcome is not None), False)
