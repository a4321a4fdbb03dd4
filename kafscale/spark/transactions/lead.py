"""The producer by which a driver decides: one id for each query, so that its newest driver fences all others."""

from __future__ import annotations

from typing import Final

import attrs

from kafscale.login.failures import check
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.producing.batches import next_sequence
from kafscale.spark.producing.transaction import WriterIdentity, WriterTransaction
from kafscale.spark.transactions.logs import StoredBatch
from kafscale.wire import error_codes
from kafscale.wire.batch_header import DELETE_HORIZON, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL, encode_batch
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import ProducerStamp, Record, build_batch

ALL: Final = -1
PRODUCE_TIMEOUT_MS: Final = 30_000
_WRITTEN = frozenset({error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER})


@attrs.define(eq=False, kw_only=True, repr=False)
class Lead:
    """A producer that writes a few batches in a transaction. Made by `take`."""

    transaction: WriterTransaction
    identity: WriterIdentity
    _sequences: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    @classmethod
    def take(cls, cluster: Cluster, transactional_id: str, timeout_ms: int) -> Lead:
        """Fence the former producer of the id. Raises BrokerUnavailable, KafkaError."""
        made = WriterTransaction(cluster=cluster, transactional_id=transactional_id, timeout_ms=timeout_ms)
        return cls(transaction=made, identity=made.identify())

    def write(self, topic: str, partition: int, record: Record, codec: int) -> None:
        """Add a record to the transaction. Raises BrokerUnavailable, KafkaError, for example if it is fenced."""
        sequence = self._sequence(topic, partition, 1)
        stamp = ProducerStamp(self.identity.producer_id, self.identity.producer_epoch, sequence)
        self._produce(topic, partition, build_batch([record], codec=codec, attributes=TRANSACTIONAL, producer=stamp))

    def copy(self, topic: str, partition: int, batch: StoredBatch) -> None:
        """Add the records of a stored batch to the transaction. Raises BrokerUnavailable, KafkaError."""
        header = attrs.evolve(
            batch.header,
            base_offset=0,
            leader_epoch=-1,
            attributes=batch.header.attributes & ~(LOG_APPEND_TIME | DELETE_HORIZON),
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self._sequence(topic, partition, batch.header.last_offset_delta + 1),
        )
        self._produce(topic, partition, encode_batch(header, bytes(batch.data[HEADER_BYTES:])))

    def commit(self) -> None:
        """Commit all writes since the last commit. Raises BrokerUnavailable, KafkaError."""
        self.transaction.end(committed=True)

    def _sequence(self, topic: str, partition: int, count: int) -> int:
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = next_sequence(sequence, count)
        return sequence

    def _produce(self, topic: str, partition: int, batch: bytearray) -> None:
        self.transaction.enrol([(topic, partition)])
        cluster = self.transaction.cluster
        data = [PartitionProduceData(index=partition, records=memoryview(batch))]
        request = ProduceRequest(
            transactional_id=self.transaction.transactional_id,
            acks=ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )

        def send() -> None:
            response = cluster.ask(cluster.leader(topic, partition), request, ProduceResponse)
            answer = response.responses[0].partition_responses[0]
            if answer.error_code not in _WRITTEN:
                check(answer.error_code, f"writing to '{topic}' {partition}", answer.error_message)

        cluster.patiently(send)
