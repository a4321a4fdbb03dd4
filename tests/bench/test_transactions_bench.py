"""The loads of `make bench-transactions` against a broker in this process, small, and what is made of their results."""

import json
import math
from xml.etree import ElementTree

import pytest

from bench.figures import Figures, Result
from bench.options import RunOptions
from bench.peers.journal import Journal
from bench.peers.names import KAFKA_DURABLE, OWN
from bench.peers.targets import target_rows
from bench.points import TOPIC, Point
from bench.transactions.frames import END_TXN_VERSION, PRODUCE_VERSION, ProduceTemplate, Producing
from bench.transactions.librdkafka import LibrdkafkaLoad, run_librdkafka
from bench.transactions.loads import CROWD, LATENCY, all_loads, commits_name, producing_name
from bench.transactions.page import FILE_NAME, write_page
from bench.transactions.processing import ProcessingLoad, run_processing
from bench.transactions.producer import Producer, plain_frame
from bench.transactions.producer_load import TransactionsLoad, run_transactions
from bench.transactions.targets import TARGETS
from kafscale.config import Address
from kafscale.testing.background_broker import running_broker
from kafscale.wire import codec
from kafscale.wire.batch_header import parse_header
from kafscale.wire.error_codes import CONCURRENT_TRANSACTIONS, NONE, OUT_OF_ORDER_SEQUENCE_NUMBER
from kafscale.wire.frames import parse_request_header, response_frame
from kafscale.wire.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafscale.wire.messages.transactions import EndTxnRequest, EndTxnResponse

POINT = Point(batch_bytes=1024, in_flight=2, partitions=2)
OPTIONS = RunOptions(seconds=4, warm_up_seconds=1, rounds=2)


# ---- against a broker -----------------------------------------------------------------------------------------------


def test_the_loads_commit_all_their_records():
    with running_broker() as broker:
        broker.create_topic(TOPIC, partitions=3)
        address = Address.parse(broker.bootstrap)
        load = TransactionsLoad(address=address, point=POINT, seconds=60, count=20, producers=2, commit_every_batches=4)
        figures = run_transactions(load)
        assert figures.requests == 20
        assert figures.concurrent_count == 0
        one = TransactionsLoad(
            address=address, point=POINT, seconds=60, count=5, commit_every_batches=1, counts_commits=True,
            measures_rounds=True,
        )  # fmt: skip
        ends = run_transactions(one)
        assert ends.requests == 5
        assert ends.round_p50_ms > 0
        plain = run_transactions(
            TransactionsLoad(address=address, point=POINT, seconds=60, count=4, is_transactional=False)
        )
        assert plain.requests == 4
        client = LibrdkafkaLoad(address=address, record_bytes=10, seconds=0.2, commit_every_records=1, linger_ms=0)
        written = run_librdkafka(client)
        assert written.concurrent_count == 0
        stored = broker.records(TOPIC, isolation_level="read_committed")
        assert len(stored) == 20 + 2 * 5 + 4 + written.requests
        assert sum(each.partition == 2 for each in stored) >= 5  # the plain ones
        processed = run_processing(ProcessingLoad(address=address, end_offset=4, seconds=0.1))
        assert processed.requests > 0
        assert processed.concurrent_count == 0


# ---- one producer ---------------------------------------------------------------------------------------------------


def producer_of(*, in_flight: int = 2, **settings) -> Producer:
    templates = [ProduceTemplate.of(POINT, partition, "x") for partition in range(2)]
    return Producer(
        templates=templates, transactional_id="x", producing=Producing(7, 0), in_flight=in_flight, **settings
    )


def requests_of(producer: Producer):
    """What it has sent since it was last asked: a batch's partition, epoch and sequence, or an EndTxn's epoch."""
    found, view = [], memoryview(bytes(producer.outgoing))
    producer.outgoing.clear()
    flexible = {ProduceRequest.API_KEY: 9, EndTxnRequest.API_KEY: 3}.__getitem__
    while view:
        end = 4 + int.from_bytes(view[:4], "big")
        header = parse_request_header(view[4:end], flexible)
        body = view[4 + header.body_offset : end]
        if header.api_key == EndTxnRequest.API_KEY:
            request = codec.decode(EndTxnRequest, END_TXN_VERSION, body)
            found.append((header.correlation_id, "end", request.producer_epoch))
        else:
            data = codec.decode(ProduceRequest, PRODUCE_VERSION, body).topic_data[0].partition_data[0]
            batch = parse_header(data.records)
            found.append((header.correlation_id, data.index, batch.producer_epoch, batch.base_sequence))
        view = view[end:]
    return found


def answer(producer: Producer, correlation_id: int, error_code: int = NONE, now: float = 0.0) -> None:
    partition = PartitionProduceResponse(index=0, error_code=error_code)
    if error_code:
        partition.error_message = "no"
    response = ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[partition])])
    parts = response_frame(correlation_id, codec.encode(response, PRODUCE_VERSION), True)
    producer.take(memoryview(b"".join(parts)), now)


def answer_end(producer: Producer, correlation_id: int, epoch: int, error_code: int = NONE) -> None:
    response = EndTxnResponse(error_code=error_code, producer_id=7, producer_epoch=epoch)
    parts = response_frame(correlation_id, codec.encode(response, END_TXN_VERSION), True)
    producer.take(memoryview(b"".join(parts)), 0.0)


def test_a_transaction_ends_after_all_replies_and_the_next_uses_its_new_epoch():
    producer = producer_of(commit_every_batches=3)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == [(1, 0, 0, 0), (2, 1, 0, 0)]
    answer(producer, 1)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == [(3, 0, 0, 1)]
    answer(producer, 2)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == []
    answer(producer, 3)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == [(4, "end", 0)]
    answer_end(producer, 4, epoch=1)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == [(5, 1, 1, 0), (6, 0, 1, 0)]
    answer(producer, 5)
    answer(producer, 6)
    producer.go_on(0.0, is_over=True)
    assert requests_of(producer) == [(7, "end", 1)]
    assert not producer.is_idle
    answer_end(producer, 7, epoch=2)
    producer.go_on(0.0, is_over=True)
    assert producer.is_idle
    assert requests_of(producer) == []


def test_concurrent_transactions_are_counted_and_refused_batches_are_resent_in_order():
    producer = producer_of(in_flight=3, commit_every_batches=3)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == [(1, 0, 0, 0), (2, 1, 0, 0), (3, 0, 0, 1)]
    answer(producer, 1, CONCURRENT_TRANSACTIONS)
    answer(producer, 2)
    answer(producer, 3, OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.go_on(0.0, is_over=False)
    assert requests_of(producer) == []  # it backs off
    producer.go_on(1.0, is_over=False)
    assert requests_of(producer) == [(4, 0, 0, 0), (5, 0, 0, 1)]
    answer(producer, 4)
    answer(producer, 5)
    producer.go_on(1.0, is_over=False)
    assert requests_of(producer) == [(6, "end", 0)]
    answer_end(producer, 6, epoch=-1, error_code=CONCURRENT_TRANSACTIONS)
    producer.go_on(2.0, is_over=False)
    assert requests_of(producer) == [(7, "end", 0)]
    assert producer.concurrent_count == 2
    assert len(producer.end_latencies) == 0


def test_any_other_refusal_ends_the_load():
    producer = producer_of()
    producer.go_on(0.0, is_over=False)
    with pytest.raises(RuntimeError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        answer(producer, 1, OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_round_is_measured_before_each_transaction():
    producer = producer_of(in_flight=1, commit_every_batches=1, plain_frame=plain_frame(5, b"x" * 70))
    producer.go_on(1.0, is_over=False)
    assert len(producer.outgoing) > 70
    producer.outgoing.clear()
    answer(producer, 1, now=1.5)
    producer.go_on(2.0, is_over=False)
    assert requests_of(producer) == [(2, 0, 0, 0)]
    assert list(producer.plain_latencies) == [0.5]
    assert len(producer.batch_latencies) == 0


# ---- results --------------------------------------------------------------------------------------------------------


def result(load: str, broker: str, *, requests: int = 100, round: int = 0, concurrent: int | None = 0) -> Result:
    figures = Figures(
        requests=requests,
        seconds=1.0,
        size_bytes=requests << 10,
        p50_ms=1.2,
        p99_ms=2.0,
        p999_ms=math.nan,
        client_cpu_seconds=0.1,
        round_p50_ms=1.0 if load == LATENCY else None,
        concurrent_count=concurrent,
    )
    return Result(
        broker=broker, point=load, round=round, figures=figures, cpu_seconds=0.01, rss_mib=1, syncs=1, puts=1, gets=1
    )


def test_every_load_that_is_compared_is_one():
    names = [load.name for load in all_loads()]
    assert len(set(names)) == len(names)
    assert {load for target in TARGETS for load, _ in target.pairs} == set(names)


@pytest.mark.parametrize(
    ("ours", "idempotent", "durable", "reached"),
    [(90, 100, 80, [True, True]), (89, 100, 90, [False, False])],
)
def test_transactions_are_compared_with_the_same_load_without_transactions(ours, idempotent, durable, reached):
    load = producing_name(1024, is_transactional=True)
    results = [
        result(load, OWN, requests=ours),
        result(producing_name(1024), OWN, requests=idempotent),
        result(load, KAFKA_DURABLE, requests=durable),
    ]
    rows = [row for row in target_rows(TARGETS, results) if row.theirs is not None]
    assert [row.is_reached for row in rows] == reached
    assert rows[0].cells()[4] == producing_name(1024)


def test_commit_latency_is_shown_in_log_rounds_and_one_refusal_misses_the_target():
    rows = {row.target.unit: row for row in target_rows(TARGETS, [result(LATENCY, OWN, concurrent=1)])}
    assert rows["p50 in rounds of the log"].ours == pytest.approx(1.2)
    assert rows["p50 in rounds of the log"].is_reached
    assert not rows["CONCURRENT_TRANSACTIONS"].is_reached
    assert rows["CONCURRENT_TRANSACTIONS"].goodness == 0


def test_a_run_becomes_a_page(tmp_path):
    journal = Journal.begin(tmp_path / FILE_NAME)
    journal.begin_part(OPTIONS)
    load = commits_name(CROWD)
    for round in range(2):
        journal.add(result(load, OWN, requests=1000 + round, round=round))
        journal.add(result(load, KAFKA_DURABLE, requests=100, round=round, concurrent=3))
    page = write_page(Journal.read(journal.path).findings, tmp_path).read_text()
    assert f"| {load} | commits/s | {OWN} | 1,000 | {KAFKA_DURABLE} | 100 | 10.01 | >= 5x | yes |" in page
    assert f"| {load} | CONCURRENT_TRANSACTIONS | {OWN} | 0 | – | – | – | <= 0 | yes |" in page
    assert "1,000–1,001 |" in (tmp_path / "transactions-figures.md").read_text()
    assert json.loads(journal.path.read_text())["results"][1]["figures"]["concurrent_count"] == 3
    ElementTree.parse(tmp_path / "transactions.svg")
