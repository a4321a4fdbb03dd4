"""The topic that has the last decision of each query, by its transactional id: `kafscale-spark-transactions`.

It is compacted, so the last decision of a query stays however long the query rests. It is looked for from the end of
the partition backwards: that of a query that is at work is among the last records. Records of transactions that are
open or aborted are left out by their markers, not by `read_committed`, which would wait for other queries' open ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import attrs

from kafscale.errors import KafkaError
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.transactions.decision import Decision
from kafscale.spark.transactions.lead import Lead
from kafscale.spark.transactions.logs import PartitionLog, StoredBatch
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_records import Record, iterate_records

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
