"""The decision of a batch, and the topic that keeps the last one of each query.

The record is JSON, so that `kafka-console-consumer` shows the state of a query:

    version       1
    batch         the number of the last decided batch; outside of streams, the number of writes
    run           the run that decided: an execution of the query, or one write
    former        the last few runs before, which may not decide any more
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
from kafscale.spark.producing.transaction import Prepared, RecordSpan
from kafscale.spark.transactions.lead import Lead
from kafscale.spark.transactions.logs import StoredBatch, UnfilteredPartition
from kafscale.wire import compression, error_codes
from kafscale.wire.records import Record, iterate_records

VERSION: Final = 1
FORMER_MAX_COUNT: Final = 8  # a run that even older ones fence is told by the number of its batch


@attrs.frozen(kw_only=True)
class Decision:
    """The last decided batch of a query."""

    batch: int
    run: str
    former: tuple[str, ...] = ()
    unfinished: tuple[Prepared, ...] = ()

    def followed_by(self, run: str) -> tuple[str, ...]:
        """Return the former runs for the next decision of this run."""
        return self.former if run == self.run else (self.run, *self.former)[:FORMER_MAX_COUNT]

    def to_text(self) -> bytes:
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Decision:
        """Read a record. Raises KafkaError for one of another version."""
        try:
            document = json.loads(text)
            if document.pop("version") != VERSION:
                raise ValueError("it is of a newer version")
            unfinished = tuple(
                Prepared(**{**transaction, "spans": tuple(RecordSpan(**span) for span in transaction["spans"])})
                for transaction in document.pop("unfinished")
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
class DecisionJournal:
    cluster: Cluster
    transactional_id: str
    partition: int

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str) -> DecisionJournal:
        """Open the topic, and create it if it is missing. Raises BrokerUnavailable, KafkaError."""

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
        """Return the last decision. Raises BrokerUnavailable, KafkaError."""
        log = UnfilteredPartition(cluster=self.cluster, topic=TOPIC, partition=self.partition)
        start, end = log.start(), log.end()
        later: list[StoredBatch] = []  # batches behind the present look
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
        """Add a decision to the lead's transaction; it counts once that is committed.

        Raises BrokerUnavailable, KafkaError.
        """
        record = Record(key=self.transactional_id.encode(), value=decision.to_text(), timestamp_ms=timestamp_ms)
        codec = compression.GZIP if decision.unfinished else compression.NONE
        lead.write(TOPIC, self.partition, record, codec)

    def _text_of(self, batch: StoredBatch) -> bytes | None:
        if batch.header.is_control:
            return None
        key = self.transactional_id.encode()
        return next((record.value for record in iterate_records(batch.data) if record.key == key), None)


def _is_committed(batch: StoredBatch, later: Sequence[StoredBatch]) -> bool:
    of_producer = (stored for stored in later if stored.header.producer_id == batch.header.producer_id)
    outcomes = (stored.outcome for stored in of_producer)
    return next((outcome for outcome in outcomes if outcome is not None), False)
