"""A pipeline's spans: one for each batch, linked to the trace contexts of its records, in any compression."""

import pytest

from kafscale.traces import Traces
from tests.devtools.external.collector import collector

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]
CONTEXTS = [(f"{number:032x}", f"{number:016x}") for number in (1, 2)]


def test_a_batch_is_linked_to_the_contexts_of_its_records(lake, broker, topic):
    from confluent_kafka import Producer

    from kafscale.spark.pipeline.runner import PipelineRun
    from tests.devtools.external.spark import flush

    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
    for number in range(6):
        trace_id, span_id = CONTEXTS[number % 2]
        producer.produce(topic, b"x", headers=[("traceparent", f"00-{trace_id}-{span_id}-01"), ("other", b"\xff")])
    producer.produce(topic, b"x")
    producer.flush()
    flush(broker)
    with collector() as running:
        table = f"db.{topic}"
        mapping = f"- {{topic: {topic}, table: {table}, value: {{format: string}}}}"
        pipeline = lake.pipeline(mapping, f"traces: {running.url}")
        traces = Traces.open(running.url, {"service.name": "kafscale-pipeline"})
        run = PipelineRun(spark=lake.spark, pipeline=pipeline, observers=[], traces=traces)
        assert run.run(once=True) == []
        traces.close()
    (span,) = running.named("pipeline batch")
    assert sorted(span.links) == CONTEXTS
    assert (span.attributes["kafscale.table"], span.attributes["kafscale.batch_id"], span.error) == (table, 0, None)
    assert span.resource["service.name"] == "kafscale-pipeline"
    assert len(lake.rows(table)) == 7
