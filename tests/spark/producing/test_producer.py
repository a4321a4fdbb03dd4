"""The producer and a cluster in memory, which holds batches to their sequences as brokers do, and fails as they do."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque

import attrs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.spark.brokers.cluster import FoundTopic
from kafscale.spark.producing import producer as producer_module
from kafscale.spark.producing.producer import IN_FLIGHT_MAX, KEYLESS_BYTES, ColumnProducer
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.producing.transaction import RecordSpan, WriterTransaction
from kafscale.wire import error_codes
from kafscale.wire.batch_header import parse_header
from kafscale.wire.client_rules import partition_of
from kafscale.wire.messages.records import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafscale.wire.records import iterate_records, validate

KNOWN_BATCHES = 5  # of a producer and a partition, by a broker
TOPIC = "t"
TRANSACTIONAL_ID = "mine"
FINE, LOST_BEFORE, LOST_AFTER, MOVED, REFUSED = range(5)


@attrs.define(eq=False, kw_only=True)
class Brokers:
    """Several brokers, each the leader of some partitions. `fate` says what becomes of each batch's request."""

    partition_count: int = 3
    broker_count: int = 2
    batch_max_bytes: int = 1 << 20
    retry_seconds: float = 0.0
    fates: deque[int] = attrs.field(factory=deque)
    refusal: int = error_codes.NOT_LEADER_OR_FOLLOWER
    logs: dict[int, list] = attrs.field(factory=lambda: defaultdict(list))
    known: dict[int, deque] = attrs.field(factory=lambda: defaultdict(lambda: deque(maxlen=KNOWN_BATCHES)))
    shift: int = 0
    asked: Counter = attrs.field(factory=Counter)
    greatest_in_flight: int = 0
    enrolled: set[int] | None = None  # partitions of the transaction; None where there is none
    ended: list[bool] = attrs.field(factory=list)
    connections: list = attrs.field(factory=list)

    # ---- what a cluster is asked ----

    def patiently(self, attempt):
        return attempt()

    def find(self, topic, *, create):
        self.asked["find"] += 1
        return FoundTopic(b"", self.partition_count) if topic == TOPIC else None

    def leader(self, topic, partition):
        return Address("broker", (partition + self.shift) % self.broker_count)

    def forget_leaders(self):
        self.asked["leaders"] += 1

    def ask_any(self, request, response_class):
        assert request.transactional_id is None
        return InitProducerIdResponse(producer_id=9, producer_epoch=0)

    def coordinator(self, transactional_id):
        assert transactional_id == TRANSACTIONAL_ID
        return Address("coordinator", 1)

    def ask(self, address, request, response_class):
        assert (address.host, request.transactional_id) == ("coordinator", TRANSACTIONAL_ID)
        self.asked[type(request)] += 1
        if isinstance(request, InitProducerIdRequest):
            self.enrolled = set()
            return InitProducerIdResponse(producer_id=9, producer_epoch=3)
        assert (request.producer_id, request.producer_epoch) == (9, 3)
        if isinstance(request, EndTxnRequest):
            self.ended.append(request.committed)
            return EndTxnResponse()
        (topic,) = request.topics
        assert self.enrolled.isdisjoint(topic.partitions), "each is enrolled once"
        self.enrolled.update(topic.partitions)
        results = [AddPartitionsToTxnPartitionResult(partition_index=each) for each in topic.partitions]
        of_topic = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results)
        return AddPartitionsToTxnResponse(results_by_topic=[of_topic])

    def close(self):
        self.asked["close"] += 1

    # ---- records ----

    def connect(self, address):
        self.connections.append(Connection(self, address))
        return self.connections[-1]

    def append(self, address, topic, data, transactional_id):
        """The error code for one batch, and where it begins."""
        if self.leader(topic, data.index) != address:
            return error_codes.NOT_LEADER_OR_FOLLOWER, -1
        view = memoryview(data.records)
        header = parse_header(view)
        validate(view)
        assert header.is_transactional == (transactional_id == TRANSACTIONAL_ID) == (self.enrolled is not None)
        assert self.enrolled is None or data.index in self.enrolled, "it is enrolled before it has records"
        if len(view) > self.batch_max_bytes:
            return error_codes.MESSAGE_TOO_LARGE, -1
        known = self.known[data.index]
        for first, last, base_offset in known:
            if (header.base_sequence, header.last_sequence) == (first, last):
                return error_codes.NONE, base_offset
        if header.base_sequence != (known[-1][1] + 1 if known else 0):
            return error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        base_offset = len(self.logs[data.index])
        known.append((header.base_sequence, header.last_sequence, base_offset))
        self.logs[data.index] += list(iterate_records(view))
        return error_codes.NONE, base_offset

    def values(self, partition):
        return [int(record.value) for record in self.logs[partition]]


@attrs.define(eq=False)
class Connection:
    brokers: Brokers
    address: Address
    requests: deque = attrs.field(factory=deque)
    is_over: bool = False
    is_open: bool = True

    def send(self, request, response_class):
        assert self.is_open
        self.requests.append(request)
        self.brokers.greatest_in_flight = max(self.brokers.greatest_in_flight, len(self.requests))

    def answer(self, response_class):
        assert self.is_open
        request = self.requests.popleft()
        fate = self.brokers.fates.popleft() if self.brokers.fates else FINE
        if fate == LOST_BEFORE:
            raise BrokerUnavailable("lost before")
        if fate == MOVED:
            self.brokers.shift += 1
        topics = [
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[self.one(request, topic, each, fate) for each in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        assert all(len({each.index for each in topic.partition_data}) == len(topic.partition_data)
                   for topic in request.topic_data)  # fmt: skip
        if fate == LOST_AFTER:
            raise BrokerUnavailable("lost after")
        return ProduceResponse(responses=topics)

    def one(self, request, topic, data, fate):
        code, base_offset = self.brokers.refusal, -1
        if fate != REFUSED:
            code, base_offset = self.brokers.append(self.address, topic.name, data, request.transactional_id)
        return PartitionProduceResponse(index=data.index, error_code=code, base_offset=base_offset)

    def close(self):
        """What is on its way may arrive all the same, before anything else does or after."""
        if self.is_open and self.brokers.fates and self.brokers.fates[0] % 2:
            while self.requests:
                request = self.requests.popleft()
                for topic in request.topic_data:
                    for each in topic.partition_data:
                        self.brokers.append(self.address, topic.name, each, request.transactional_id)
        self.is_open = False


def producer_of(brokers: Brokers, transaction: WriterTransaction | None = None, **more: str) -> ColumnProducer:
    given = {"bootstrap.servers": "127.0.0.1:1", "batch.size": "400", **more}
    return ColumnProducer(
        settings=ProducerSettings.of(given),
        cluster=brokers,
        connect=brokers.connect,
        pause_seconds=0.0,
        transaction=transaction,
    )


def span(partition: int, count: int) -> RecordSpan:
    return RecordSpan(topic=TOPIC, partition=partition, first=0, last=count - 1, count=count)


def transaction_of(brokers: Brokers) -> WriterTransaction:
    return WriterTransaction(cluster=brokers, transactional_id=TRANSACTIONAL_ID, timeout_ms=1000)


def rows_of(start: int, end: int, **columns: list) -> pa.RecordBatch:
    numbers = range(start, end)
    return pa.RecordBatch.from_pydict({"key": [b"%d" % (each % 50) for each in numbers],
                                       "value": [b"%d" % each for each in numbers], **columns})  # fmt: skip


def expected(count: int, partition: int, partition_count: int) -> list[int]:
    return [each for each in range(count) if partition_of(b"%d" % (each % 50), partition_count) == partition]


fates = st.lists(st.sampled_from([FINE, FINE, LOST_BEFORE, LOST_AFTER, MOVED, REFUSED]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    fates, st.integers(1, 5), st.integers(1, 3), st.sampled_from([1 << 20, 350, 200]), st.integers(1, 4), st.booleans()
)
def test_each_record_is_written_once_and_in_order_despite_failures(
    found, partition_count, broker_count, batch_max_bytes, sends, is_transactional
):
    brokers = Brokers(
        partition_count=partition_count,
        broker_count=broker_count,
        batch_max_bytes=batch_max_bytes,
        fates=deque(found),
    )
    transaction = transaction_of(brokers) if is_transactional else None
    producer = producer_of(brokers, transaction)
    each = 600 // sends
    for number in range(sends):
        producer.send(rows_of(number * each, (number + 1) * each), TOPIC)
        producer._produce_gathered()
    producer.finish()
    producer.close()
    for partition in range(partition_count):
        assert brokers.values(partition) == expected(sends * each, partition, partition_count)
    assert brokers.greatest_in_flight <= IN_FLIGHT_MAX
    assert not any(connection.is_open for connection in brokers.connections)
    if transaction is not None:
        counts = {(TOPIC, index): len(log) for index, log in brokers.logs.items() if log}
        assert transaction.spans == {place: span(place[1], count) for place, count in counts.items()}
        assert not brokers.ended


def test_several_requests_are_on_their_way():
    brokers = Brokers(broker_count=1)
    producer = producer_of(brokers)
    producer.send(rows_of(0, 2000), TOPIC)
    producer.finish()
    assert brokers.greatest_in_flight == IN_FLIGHT_MAX
    assert len(brokers.connections) == 1


def test_rows_wait_for_others_and_no_longer_than_there_is_room(monkeypatch):
    monkeypatch.setattr(producer_module, "GATHERED_BYTES", 3000)
    brokers = Brokers(partition_count=1)
    producer = producer_of(brokers)
    producer.send(rows_of(0, 10), TOPIC)
    assert not brokers.connections
    producer.send(rows_of(10, 1000), TOPIC)
    assert producer._gathered_bytes <= 2 * 3000  # Arrow has four bytes more for each key and each value
    producer.finish()
    assert brokers.values(0) == list(range(1000))


def test_a_session_that_ends_is_followed_by_another_one():
    brokers = Brokers(broker_count=1)
    producer = producer_of(brokers)
    for number in range(3):
        producer.send(rows_of(number * 300, (number + 1) * 300), TOPIC)
        producer._produce_gathered()
        brokers.connections[-1].is_over = True
    producer.finish()
    assert len(brokers.connections) == 3
    assert brokers.values(0) == expected(900, 0, 3)


@pytest.mark.parametrize(
    "code",
    [
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        error_codes.INVALID_PRODUCER_EPOCH,
        error_codes.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_a_fatal_error_code_is_raised_at_once(code):
    brokers = Brokers(fates=deque([REFUSED]), refusal=code)
    producer = producer_of(brokers)
    producer.send(rows_of(0, 10), TOPIC)
    with pytest.raises(KafkaError, match=f"a record was not delivered: .*{error_codes.name(code)}") as caught:
        producer.finish()
    assert caught.value.code == code


def test_a_duplicate_batch_counts_as_delivered():
    brokers = Brokers(fates=deque([REFUSED] * 3), refusal=error_codes.DUPLICATE_SEQUENCE_NUMBER, broker_count=1)
    producer = producer_of(brokers)
    producer.send(rows_of(0, 10), TOPIC)
    producer.finish()
    assert not any(brokers.logs.values())


def test_a_single_record_above_the_batch_limit_is_refused():
    brokers = Brokers(batch_max_bytes=300)
    producer = producer_of(brokers)
    producer.send(pa.RecordBatch.from_pydict({"value": [b"1", b"x" * 400, b"2"]}), TOPIC)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        producer.finish()


@pytest.mark.parametrize(("fate", "error"), [(LOST_BEFORE, BrokerUnavailable), (REFUSED, KafkaError)])
def test_the_producer_gives_up_after_its_timeout(fate, error):
    producer = producer_of(Brokers(fates=deque([fate] * 100_000)), **{"message.timeout.ms": "1"})
    producer.send(rows_of(0, 10), TOPIC)
    with pytest.raises(error, match="a record was not delivered: "):
        producer.finish()


def test_rows_have_the_partition_that_they_name_or_that_of_their_key():
    brokers = Brokers()
    producer = producer_of(brokers)
    producer.send(rows_of(0, 4, partition=pa.array([2, None, 0, -1], pa.int32())), TOPIC)
    producer.finish()
    placed = {value: partition for partition in range(3) for value in brokers.values(partition)}
    assert placed == {0: 2, 1: partition_of(b"1", 3), 2: 0, 3: partition_of(b"3", 3)}


@pytest.mark.parametrize("partition", [3, -2])
def test_an_unknown_partition_is_an_error(partition):
    brokers = Brokers()
    producer = producer_of(brokers)
    producer.send(rows_of(0, 1, partition=pa.array([partition], pa.int32())), TOPIC)
    with pytest.raises(KafkaError, match=f"not delivered: topic 't' has 3 partitions, and no partition {partition}"):
        producer.finish()
    assert brokers.asked["find"] == (2 if partition > 0 else 1)


def test_partitions_that_came_since_are_found():
    brokers = Brokers(partition_count=1)
    producer = producer_of(brokers)
    producer.send(rows_of(0, 1), TOPIC)
    producer._produce_gathered()
    brokers.partition_count = 2
    producer.send(rows_of(1, 2, partition=pa.array([1], pa.int32())), TOPIC)
    producer.finish()
    assert (brokers.values(0), brokers.values(1)) == ([0], [1])


def test_rows_without_keys_go_to_all_partitions_in_turn():
    random.seed(1)
    brokers = Brokers()
    producer = producer_of(brokers, **{"batch.size": "100000"})
    values = [b"%08d" % number for number in range(KEYLESS_BYTES // 4)]
    for _ in range(3):
        producer.send(pa.RecordBatch.from_pydict({"value": values[:10]}), TOPIC)
        producer._produce_gathered()
    assert sorted(len(brokers.logs[partition]) for partition in range(3)) == [0, 0, 0]
    producer.finish()
    assert sorted(len(brokers.logs[partition]) for partition in range(3)) == [10, 10, 10]
    producer.send(pa.RecordBatch.from_pydict({"value": values}), TOPIC)
    producer.finish()
    assert sorted(len(brokers.logs[partition]) for partition in range(3)) == [10, 2058, 2058]


def test_an_unknown_or_null_topic_is_an_error():
    producer = producer_of(Brokers())
    producer.send(rows_of(0, 1), "other")
    with pytest.raises(KafkaError, match="topic 'other': UNKNOWN_TOPIC_OR_PARTITION"):
        producer.finish()
    with pytest.raises(ConfigError, match="a row has null as its topic"):
        producer.send(rows_of(0, 1, topic=pa.nulls(1, pa.string())), None)


def test_a_transaction_records_its_offset_spans_and_can_be_aborted():
    brokers = Brokers(partition_count=2, broker_count=1)
    transaction = transaction_of(brokers)
    transaction.abort_soon()
    assert not brokers.ended, "it had not begun"
    producer = producer_of(brokers, transaction)
    producer.send(rows_of(0, 9, partition=pa.array([0] * 9, pa.int32())), TOPIC)
    producer._produce_gathered()
    assert brokers.enrolled == {0}
    producer.send(rows_of(9, 12, partition=pa.array([1, 0, 1], pa.int32())), TOPIC)
    producer.finish()
    assert brokers.enrolled == {0, 1}
    assert transaction.spans == {(TOPIC, 0): span(0, 10), (TOPIC, 1): span(1, 2)}
    assert brokers.asked[InitProducerIdRequest] == 1
    assert brokers.asked[AddPartitionsToTxnRequest] == 2
    transaction.abort_soon()
    assert brokers.ended == [False]


def test_a_transactional_batch_of_unclear_offset_fails_the_task():
    """As the driver could not copy it, if the transaction is aborted behind its decision."""
    brokers = Brokers(fates=deque([REFUSED]), refusal=error_codes.DUPLICATE_SEQUENCE_NUMBER, broker_count=1)
    producer = producer_of(brokers, transaction_of(brokers))
    producer.send(rows_of(0, 10), TOPIC)
    with pytest.raises(KafkaError, match=r"does not tell where a batch is in partition . of 't'"):
        producer.finish()
