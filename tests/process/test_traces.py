"""Traces of a broker: spans that a collector gets by OTLP while real clients produce and fetch."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from urllib.request import urlopen

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.devtools.external.clients import DEADLINE_SECONDS, PAUSE_SECONDS
from tests.devtools.external.collector import Collector, ReceivedSpan, collector
from tests.devtools.processes.process import BrokerProcess, broker_process

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # ms until spans are sent


@contextmanager
def traced_broker(*options: str, **environ: str) -> Iterator[tuple[BrokerProcess, Collector]]:
    with collector() as running:
        traced = ("--traces-endpoint", running.url, "--flush-interval", "100ms", *options)
        with broker_process(*traced, environ={**SOON, **environ}) as broker:
            yield broker, running


@attrs.define
class Traced:
    """A traced broker, and a topic that only this test uses."""

    broker: BrokerProcess
    collector: Collector
    topic: str

    def produce(self, *traceparents: str, **settings: object) -> None:
        """Produce a record for each traceparent, in one batch."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 100, **settings})
        for value in traceparents:
            producer.produce(self.topic, b"x" * 100, headers=[("other", b"1"), ("traceparent", value.encode())])
        assert producer.flush(DEADLINE_SECONDS) == 0

    def named(self, name: str) -> Sequence[ReceivedSpan]:
        """Return the spans of a name about this topic."""
        spans = self.collector.named(name)
        return [span for span in spans if span.attributes.get("messaging.destination.name") == self.topic]

    def wait_for(self, name: str) -> ReceivedSpan:
        (span,) = self.collector.wait_for(lambda: self.named(name))
        return span


@pytest.fixture(scope="module")
def _running() -> Iterator[tuple[BrokerProcess, Collector]]:
    with traced_broker("--cache-bytes", "64MiB") as running:
        yield running


@pytest.fixture
def traced(_running: tuple[BrokerProcess, Collector], request: pytest.FixtureRequest) -> Traced:
    return Traced(*_running, request.node.originalname)


def traceparent(*, sampled: bool = True) -> tuple[str, str, str]:
    """Return a new trace id and span id, and the header of both."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-0{int(sampled)}"


def check_whole_trace(traced: Traced) -> tuple[ReceivedSpan, Collector]:
    """Produce in a client's trace, and follow that into the bucket. Returns the span of the log round."""
    trace_id, span_id, header = traceparent()
    traced.produce(header)
    running = traced.collector
    request = traced.wait_for("Produce")
    assert (request.trace_id, request.parent_id) == (trace_id, span_id)
    assert request.resource["service.name"] == "kafscale"
    (log_round,) = running.wait_for(lambda: running.children(request, "log round"))
    (flush,) = running.wait_for(lambda: running.children(log_round, "flush"))
    assert flush.attributes["messaging.destination.name"] == traced.topic
    puts = running.wait_for(lambda: running.children(flush, "PUT"), 2)
    assert {span.attributes["kafscale.object.key"].rpartition(".")[2] for span in puts} == {"kfs", "index"}
    assert request.start_ns <= log_round.start_ns <= log_round.end_ns <= request.end_ns
    assert running.paths == {"/v1/traces"}
    return log_round, running


def test_a_client_trace_goes_on_through_the_log_and_its_flush_into_the_bucket(traced: Traced) -> None:
    log_round, _ = check_whole_trace(traced)
    assert log_round.attributes["kafscale.partitions"] == [f"{traced.topic}-0"]


def test_a_round_of_the_log_in_the_bucket_has_its_put() -> None:
    with traced_broker("--durability", "s3-wal") as (broker, running):
        log_round, _ = check_whole_trace(Traced(broker, running, "in-the-bucket"))
        (put,) = running.children(log_round, "PUT")
        assert "/wal/" in put.attributes["kafscale.object.key"]


def test_a_round_of_flush_on_append_is_the_flush() -> None:
    with traced_broker("--durability", "segment") as (broker, running):
        log_round, _ = check_whole_trace(Traced(broker, running, "in-segments"))
        (flush,) = running.children(log_round, "flush")
        assert flush.end_ns >= flush.start_ns >= log_round.start_ns


def test_each_of_a_producers_requests_has_its_own_parent_however_it_is_taken(traced: Traced) -> None:
    """The second Produce of a producer goes the short way, which does not decode it."""
    running, contexts = traced.collector, [traceparent() for _ in range(4)]
    with closing(Producer({"bootstrap.servers": traced.broker.bootstrap})) as producer:
        for _, _, header in contexts:
            producer.produce(traced.topic, b"x", headers=[("traceparent", header.encode())])
            assert producer.flush(DEADLINE_SECONDS) == 0

    def found() -> Sequence[ReceivedSpan]:
        return [span for span in running.named("Produce") if span.parent_id in [context[1] for context in contexts]]

    requests = running.wait_for(found, len(contexts))
    decoded = [span for span in requests if "messaging.destination.name" in span.attributes]
    assert 0 < len(decoded) < len(requests) == len(contexts)
    assert "after a bug" not in traced.broker.log
    for request in requests:
        running.wait_for(partial(running.children, request, "log round"))


def test_further_contexts_of_a_batch_are_links_and_compressed_records_are_not_unpacked(traced: Traced) -> None:
    first, second, third = (traceparent() for _ in range(3))
    traced.produce(first[2], second[2], third[2], second[2])
    request = traced.wait_for("Produce")
    assert request.parent_id == first[1]
    assert request.links == [second[:2], third[:2]]
    traced.topic = "compressed"
    traced.produce(*[first[2]] * 50, **{"compression.type": "gzip"})
    compressed = traced.wait_for("Produce")
    assert (compressed.parent_id, compressed.links) == ("", [])


def test_a_client_that_does_not_sample_is_followed(traced: Traced) -> None:
    traced.produce(traceparent(sampled=False)[2])
    assert traced.wait_for("flush").parent_id == ""
    assert traced.named("Produce") == []


def test_a_fetch_has_its_requests_to_the_bucket_as_children(traced: Traced) -> None:
    broker, running = traced.broker, traced.collector
    traced.produce(traceparent()[2])
    traced.wait_for("flush")
    broker.restart()
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "any", "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(traced.topic, 0, 0)])
        message = consumer.poll(DEADLINE_SECONDS)
        assert message is not None
        assert message.error() is None

    def gets() -> Sequence[ReceivedSpan]:
        return [span for fetch in running.named("Fetch") for span in running.children(fetch, "GET")]

    for span in running.wait_for(gets):
        assert traced.topic in span.attributes["kafscale.object.key"]


def test_the_sampler_of_the_environment_decides() -> None:
    with traced_broker(OTEL_TRACES_SAMPLER="always_off") as (broker, running):
        Traced(broker, running, "unsampled").produce(traceparent()[2])
        assert broker.stop() == 0
        assert running.spans == []


@pytest.mark.parametrize("answers", [False, True])
def test_a_collector_that_takes_no_spans_holds_nothing_up(answers: bool) -> None:
    environ = {"OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16"}
    with traced_broker(**environ, OTEL_EXPORTER_OTLP_TIMEOUT="1") as (broker, running):
        if answers:
            running.status = 400
        else:
            running.held.set()
        with closing(Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})) as producer:
            for _ in range(100):
                began = time.monotonic()
                producer.produce("untaken", b"x", headers=[("traceparent", traceparent()[2].encode())])
                assert producer.flush(DEADLINE_SECONDS) == 0
            assert time.monotonic() - began < DEADLINE_SECONDS
        _wait_for_lost(broker)
        log = broker.log
        assert log.count("spans are lost until the collector at") == 1
        assert "opentelemetry.exporter" not in log
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < DEADLINE_SECONDS / 2
        assert running.spans == []


def _wait_for_lost(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with urlopen(f"http://{broker.admin}/metrics") as page:
            lines = page.read().decode().splitlines()
        lost = next(line for line in lines if line.startswith("kafscale_trace_spans_lost_total"))
        if float(lost.split()[1]):
            return
        time.sleep(PAUSE_SECONDS)
    pytest.fail("no span was lost")


def test_a_broker_without_traces_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, kafscale.cli.serve, kafscale.serving, kafscale.cli.main; "
        "print([name for name in sys.modules if 'opentelemetry' in name or name.endswith('traces')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_is_told_with_what_installs_it() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None; from kafscale.cli.main import main; "
        "sys.argv = ['kafscale', 'serve', '--store', 'memory:', '--listen', '127.0.0.1:0', "
        "'--admin-listen', '127.0.0.1:0', '--traces-endpoint', 'http://127.0.0.1:4318']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert "--traces-endpoint needs opentelemetry" in done.stderr
    assert "which the extra `traces` has" in done.stderr
