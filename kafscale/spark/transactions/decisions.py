"""The decision of a batch, the topic that keeps the last one of each query, and the producer that decides.

The record is JSON, so that `kafka-console-consumer` shows the state of a query:

    version       1
    batch         the number of the last decided batch; outside of streams, the number of writes
    run           the run that decided: an execution of the query, or one write
    former        the last few runs before, which may not decide any more
    unfinished    the transactions that are still to be committed, empty when the batch is whole

A coordinator forgets how the last transaction of an id ended when the id is initialised again. The partitions keep it:
the first marker of a producer behind one of its batches ends the transaction of that batch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from kafscale.errors import KafkaError
from kafscale.login.failures import check
from kafscale.spark.brokers.cluster import EARLIEST, LATEST, Cluster
from kafscale.spark.producing.batches import next_sequence
from kafscale.spark.producing.transaction import Prepared, RecordSpan, WriterIdentity, WriterTransaction
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import (
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    encode_batch,
    parse_header,
    whole_batches,
)
from kafscale.wire.control_records import parse_marker
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records

FETCH_BYTES: Final = 8 << 20
FETCH_WAIT_MS: Final = 500


@attrs.frozen(eq=False, repr=False)
class StoredBatch:
    header: BatchHeader
    data: memoryview

    @classmethod
    def of(cls, data: memoryview) -> StoredBatch:
        """Read the header. Raises CorruptBatch."""
        return cls(parse_header(data), data)

    @property
    def outcome(self) -> bool | None:
        """Tell whether it is the marker of a commit or of an abort; None for another batch. Raises CorruptBatch."""
        if not self.header.is_control:
            return None
        marker = parse_marker(self.data, self.header)
        return None if marker is None else marker.is_commit


@attrs.frozen(kw_only=True)
class UnfilteredPartition:
    """A partition, read without regard to transactions. Every method raises BrokerUnavailable, KafkaError."""

    cluster: Cluster
    topic: str
    partition: int

    def end(self) -> int:
        """Return the high watermark."""
        return self._offset(LATEST)

    def start(self) -> int:
        return self._offset(EARLIEST)

    def batches(self, first: int, end: int) -> Iterator[StoredBatch]:
        """Iterate over the batches with offsets from `first` to `end`, exclusive. Deleted ones are left out."""
        position = first
        while position < end:
            answer = self.cluster.patiently(lambda at=position: self._fetch(at))  # type: ignore[misc]
            if answer.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                position = self._after_deletion(position)
                continue
            batch = None
            for batch in map(StoredBatch.of, whole_batches(_records_of(answer))):
                if batch.header.base_offset >= end:
                    return
                yield batch
                position = batch.header.next_offset
            if batch is None and position >= answer.high_watermark:
                return  # nothing is left there: compaction has taken what was

    def outcome_of(self, producer_id: int, first: int) -> bool | None:
        """Tell whether the transaction of the producer's record at this offset was committed; None while it is open."""
        for batch in self.batches(first, self.end()):
            if batch.header.producer_id == producer_id and (outcome := batch.outcome) is not None:
                return outcome
        return None

    def _after_deletion(self, position: int) -> int:
        start = self.start()
        if start <= position:
            raise KafkaError(
                error_codes.OFFSET_OUT_OF_RANGE, f"'{self.topic}' {self.partition} does not have offset {position}"
            )
        return start

    def _fetch(self, offset: int) -> PartitionData:
        wanted = FetchPartition(partition=self.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        topics = [FetchTopic(topic=self.topic, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
        leader = self.cluster.leader(self.topic, self.partition)
        response = self.cluster.ask(leader, request, FetchResponse)
        check(response.error_code, f"topic '{self.topic}'")
        answer = response.responses[0].partitions[0]
        if answer.error_code != error_codes.OFFSET_OUT_OF_RANGE:
            check(answer.error_code, f"offset {offset} of '{self.topic}' {self.partition}")
        return answer

    def _offset(self, which: int) -> int:
        offsets = self.cluster.patiently(lambda: self.cluster.offsets(self.topic, [self.partition], which))
        return offsets[self.partition]


def _records_of(answer: PartitionData) -> memoryview:
    return memoryview(answer.records or b"")  # type: ignore[arg-type] # decoded: one buffer


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
