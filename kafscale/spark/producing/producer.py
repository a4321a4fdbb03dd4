"""An idempotent producer of rows (KIP-98) with several requests in flight to each broker.

Records of a partition are in order, and none is there twice: each batch has its place in the sequence of its partition,
and is sent with that place again until it is acknowledged. Where a connection is lost, or a broker can't take a batch
now, all connections are closed, and unacknowledged batches are sent again, one batch of each partition at a time:
brokers know the last five of each, and no more are in flight.

A broker that has forgotten acknowledged batches (OUT_OF_ORDER_SEQUENCE_NUMBER for the first unacknowledged one), or
that lets others produce by this id (a later epoch), ends it with an error, as it does Kafka's producer.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, zip_longest

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, KafkaError, ProtocolError
from kafscale.login.failures import check, failure
from kafscale.spark.brokers.cluster import PAUSE_SECONDS, BrokerConnection, Cluster
from kafscale.spark.producing.batches import EncodedPiece, RowBatch, encode, halves_of, next_sequence, pieces_of
from kafscale.spark.producing.rows import Rows, by_topic, cut, partitions_of, together
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.producing.transaction import Prepared, WriterIdentity, WriterTransaction
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

GATHERED_BYTES = 8 << 20  # of rows that wait for others, and of rows that are encoded at once
REQUEST_BYTES = 1 << 20  # Kafka: max.request.size; a larger batch is alone
IN_FLIGHT_MAX = 5  # Kafka: max.in.flight.requests.per.connection, and as many batches as brokers know of a producer
TOPIC_SECONDS = 30.0  # librdkafka: topic.metadata.propagation.max.ms
KEYLESS_BYTES = 16 << 10  # of rows without a key, that go to one partition together at least; Kafka: batch.size
ALL = -1
ANY_PARTITION = -1
_DELIVERED = (error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER)

Place = tuple[str, int]
Numbers = NDArray[np.int64]


class _AgainError(Exception):
    """A batch is to be sent again; its cause is what was wrong."""


@attrs.define(eq=False, kw_only=True, repr=False)
class _BrokerFlights:
    connection: BrokerConnection
    flights: deque[Sequence[RowBatch]] = attrs.field(factory=deque)


@attrs.define(eq=False, kw_only=True, repr=False)
class ColumnProducer:
    """Writes rows with the columns of Spark's Kafka sink. To be closed; not to be used after an exception.

    cluster: finds topics and leaders. connect: opens a connection for records alone. transaction: of all records; the
    caller closes it.
    """

    settings: ProducerSettings
    cluster: Cluster
    connect: Callable[[Address], BrokerConnection]
    pause_seconds: float = PAUSE_SECONDS
    transaction: WriterTransaction | None = None
    _identity: WriterIdentity | None = attrs.field(default=None, init=False)
    _brokers: dict[Address, _BrokerFlights] = attrs.field(factory=dict, init=False)
    _counts: dict[str, int] = attrs.field(factory=dict, init=False)  # of partitions
    _sequences: dict[Place, int] = attrs.field(factory=dict, init=False)  # of the next record
    _unacknowledged: dict[Place, deque[RowBatch]] = attrs.field(factory=dict, init=False)
    _gathered: dict[str, list[pa.RecordBatch]] = attrs.field(factory=dict, init=False)
    _gathered_bytes: int = attrs.field(default=0, init=False)
    _next_keyless: int = attrs.field(factory=lambda: random.randrange(1 << 16), init=False)

    @classmethod
    def of(cls, settings: ProducerSettings, transaction: WriterTransaction | None = None) -> ColumnProducer:
        """Make a producer, which connects when there are rows."""
        bootstrap, security = settings.bootstrap, settings.security
        seconds = settings.request_timeout_ms / 1000
        return cls(
            settings=settings,
            cluster=Cluster(
                bootstrap=bootstrap, security=security, retry_seconds=min(settings.timeout_seconds, TOPIC_SECONDS)
            ),
            connect=lambda address: BrokerConnection.open(address, seconds, security=security),
            transaction=transaction,
        )

    def close(self) -> None:
        """Close all connections; unacknowledged rows may be written or not."""
        self._hang_up()
        self.cluster.close()

    def send(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """Take rows, in order, to this topic or to that of each row.

        Raises ConfigError for an invalid row; KafkaError, BrokerUnavailable if a row, now or before, was not delivered.
        """
        for name, of_topic in by_topic(rows, topic):
            for part in cut(of_topic, GATHERED_BYTES):
                if self._gathered_bytes + part.nbytes > GATHERED_BYTES:
                    self._produce_gathered()
                self._gathered.setdefault(name, []).append(part)
                self._gathered_bytes += part.nbytes

    def finish(self) -> None:
        """Wait until all rows are acknowledged. Raises ConfigError, KafkaError, BrokerUnavailable."""
        self._produce_gathered()
        self._or_recover(self._land_all)

    def _produce_gathered(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        for topic, parts in gathered.items():
            self._produce(topic, together(parts))

    def _produce(self, topic: str, rows: Rows) -> None:
        partitions = self._choose(topic, rows)
        batches = [self._batch(topic, piece, rows) for piece in pieces_of(rows, partitions, self.settings.batch_bytes)]
        if self.transaction is not None:
            self.transaction.enrol(batch.at for batch in batches)
        self._or_recover(lambda: self._fly_all(batches))

    # ---- which partition, which place ----

    def _choose(self, topic: str, rows: Rows) -> Numbers:
        count = self._partition_count(topic)
        chosen = partitions_of(rows.keys, count)
        if rows.keys.null_count:
            self._spread(chosen, rows, count)
        if rows.partitions is not None:
            given = rows.partitions.fill_null(ANY_PARTITION).to_numpy(zero_copy_only=False).astype(np.int64)
            chosen = np.where(given == ANY_PARTITION, chosen, given)
            self._check_partitions(topic, chosen)
        return chosen

    def _spread(self, chosen: Numbers, rows: Rows, count: int) -> None:
        keyless = np.flatnonzero(rows.keys.is_null().to_numpy(zero_copy_only=False))
        run_count = max(1, min(count, int(rows.payload_bytes[keyless].sum()) // KEYLESS_BYTES))
        runs = np.arange(len(keyless)) * run_count // len(keyless)
        chosen[keyless] = (self._next_keyless + runs) % count
        self._next_keyless += run_count

    def _check_partitions(self, topic: str, chosen: Numbers) -> None:
        if chosen.max() >= self._counts[topic]:
            del self._counts[topic]  # there may be more by now
            self._partition_count(topic)
        is_bad = (chosen < 0) | (chosen >= self._counts[topic])
        if is_bad.any():
            raise _undelivered(
                error_codes.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic '{topic}' has {self._counts[topic]} partitions, and no partition {chosen[is_bad][0]}",
            )

    def _partition_count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self.cluster.patiently(lambda: self._find(topic))
        return self._counts[topic]

    def _find(self, topic: str) -> int:
        found = self.cluster.find(topic, create=True)
        if found is None:
            raise failure(error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{topic}'")
        return found.partition_count

    def _batch(self, topic: str, piece: EncodedPiece, rows: Rows, base_sequence: int | None = None) -> RowBatch:
        identity = self._identity = self._identity or self._identify()
        at = topic, piece.partition
        if base_sequence is None:
            base_sequence = self._sequences.get(at, 0)
            self._sequences[at] = next_sequence(base_sequence, len(piece.order))
        now_ms = time.time_ns() // 1_000_000
        batch = RowBatch(
            topic=topic,
            partition=piece.partition,
            base_sequence=base_sequence,
            data=encode(
                piece,
                identity,
                base_sequence,
                codec=self.settings.codec,
                timestamp_ms=now_ms,
                is_transactional=self.transaction is not None,
            ),
            rows=rows,
            order=piece.order,
            until=time.monotonic() + self.settings.timeout_seconds,
        )
        self._unacknowledged.setdefault(at, deque()).append(batch)
        return batch

    def _identify(self) -> WriterIdentity:
        return self.cluster.patiently(self._ask_identity) if self.transaction is None else self.transaction.identify()

    def _ask_identity(self) -> WriterIdentity:
        request = InitProducerIdRequest(transaction_timeout_ms=self.settings.request_timeout_ms)
        found = self.cluster.ask_any(request, InitProducerIdResponse)
        check(found.error_code, "the id of a producer")
        return WriterIdentity(producer_id=found.producer_id, producer_epoch=found.producer_epoch)

    # ---- on their way ----

    def _requests(self, batches: Sequence[RowBatch]) -> Iterator[tuple[Address, Sequence[RowBatch]]]:
        by_leader: dict[Address, dict[Place, deque[RowBatch]]] = {}
        for batch in batches:
            of_leader = by_leader.setdefault(self.cluster.leader(batch.topic, batch.partition), {})
            of_leader.setdefault(batch.at, deque()).append(batch)
        of_each = [[(address, batches) for batches in _together(queues)] for address, queues in by_leader.items()]
        return filter(None, chain.from_iterable(zip_longest(*of_each)))

    def _fly_all(self, batches: Sequence[RowBatch]) -> None:
        for address, of_request in self._requests(batches):
            self._fly(address, of_request)

    def _fly(self, address: Address, batches: Sequence[RowBatch]) -> None:
        broker = self._flights_to(address)
        while len(broker.flights) >= IN_FLIGHT_MAX:
            self._land(broker)
        broker.connection.send(self._request(batches), ProduceResponse)
        broker.flights.append(batches)

    def _flights_to(self, address: Address) -> _BrokerFlights:
        broker = self._brokers.get(address)
        if broker is not None and broker.connection.is_over:
            while broker.flights:
                self._land(broker)
            self._brokers.pop(address).connection.close()
            broker = None
        if broker is None:
            broker = self._brokers[address] = _BrokerFlights(connection=self.connect(address))
        return broker

    def _request(self, batches: Sequence[RowBatch]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.partition, records=memoryview(batch.data))
            topics.setdefault(batch.topic, []).append(data)
        topic_data = [TopicProduceData(name=name, partition_data=data) for name, data in topics.items()]
        return ProduceRequest(
            transactional_id=None if self.transaction is None else self.transaction.transactional_id,
            acks=ALL,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=topic_data,
        )

    def _land(self, broker: _BrokerFlights) -> None:
        response = broker.connection.answer(ProduceResponse)
        batches = broker.flights.popleft()
        answers = {(topic.name, one.index): one for topic in response.responses for one in topic.partition_responses}
        again: KafkaError | None = None
        for batch in batches:
            again = self._judge(batch, answers) or again
        if again is not None:
            raise _AgainError from again

    def _land_all(self) -> None:
        for broker in self._brokers.values():
            while broker.flights:
                self._land(broker)

    def _judge(self, batch: RowBatch, answers: Mapping[Place, PartitionProduceResponse]) -> KafkaError | None:
        answer = answers.get(batch.at)
        if answer is None:
            raise ProtocolError(f"a broker gave no answer for partition {batch.partition} of topic '{batch.topic}'")
        queue = self._unacknowledged[batch.at]
        assert queue[0] is batch, "what came before it was delivered, or all is sent again"
        if answer.error_code in _DELIVERED:
            queue.popleft()
            if self.transaction is not None:
                self.transaction.note(batch.at, answer.base_offset, batch.record_count)
            return None
        about = f"partition {batch.partition} of topic '{batch.topic}'"
        error = failure(answer.error_code, about, answer.error_message)
        if error.code in error_codes.RETRIABLE:
            return error
        if error.code == error_codes.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._halve(batch)
            return error
        raise _undelivered(error.code, str(error)) from error

    def _halve(self, batch: RowBatch) -> None:
        queue = self._unacknowledged[batch.at]
        behind = list(queue)[1:]
        queue.clear()
        sequence = batch.base_sequence
        for piece in halves_of(batch):
            self._batch(batch.topic, piece, batch.rows, sequence)
            sequence = next_sequence(sequence, len(piece.order))
        queue.extend(behind)

    # ---- when something went wrong ----

    def _or_recover(self, attempt: Callable[[], None]) -> None:
        while True:
            try:
                attempt()
            except (BrokerUnavailable, ProtocolError, KafkaError, _AgainError) as exc:
                if isinstance(exc, KafkaError) and exc.code not in error_codes.RETRIABLE:
                    raise
                if any(time.monotonic() > batch.until for batch in self._first_ones()):
                    raise _given_up(exc) from exc
            else:
                return
            self._hang_up()
            time.sleep(self.pause_seconds)
            attempt = self._send_again

    def _send_again(self) -> None:
        while waiting := self._first_ones():
            self._fly_all(waiting)
            self._land_all()

    def _first_ones(self) -> Sequence[RowBatch]:
        return [queue[0] for queue in self._unacknowledged.values() if queue]

    def _hang_up(self) -> None:
        for broker in self._brokers.values():
            broker.connection.close()
        self._brokers.clear()
        self.cluster.forget_leaders()


def _together(queues: dict[Place, deque[RowBatch]]) -> Iterator[Sequence[RowBatch]]:
    while queues:
        found: list[RowBatch] = []
        size_bytes = 0
        for at, queue in list(queues.items()):
            size_bytes += len(queue[0].data)
            if found and size_bytes > REQUEST_BYTES:
                break
            found.append(queue.popleft())
            if not queue:
                del queues[at]
        yield found


def _given_up(cause: Exception) -> Exception:
    reason = cause.__cause__ if isinstance(cause, _AgainError) else cause
    if isinstance(reason, KafkaError):
        return _undelivered(reason.code, str(reason))
    return BrokerUnavailable(f"a record was not delivered: {reason}")


def _undelivered(code: int, why: str) -> KafkaError:
    return KafkaError(code, f"a record was not delivered: {why}")


def prepare(
    batches: Iterable[pa.RecordBatch], topic: str | None, settings: ProducerSettings, transaction: WriterTransaction
) -> Prepared | None:
    """Write rows in a transaction that stays open; None, and no transaction, without rows.

    Raises ConfigError, KafkaError, BrokerUnavailable, and then aborts the transaction.
    """
    with closing(transaction), closing(ColumnProducer.of(settings, transaction)) as producer:
        try:
            for rows in batches:
                producer.send(rows, topic)
            producer.finish()
        except BaseException:
            producer.close()  # so that nothing is sent after the abort
            transaction.abort_soon()
            raise
        return transaction.prepared()
