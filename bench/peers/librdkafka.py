"""confluent-kafka as a load: what a Python program with librdkafka gets."""

from __future__ import annotations

import time
from array import array

import attrs
from confluent_kafka import Message, Producer

from bench.figures import Figures
from bench.points import TOPIC
from bench.secured.sasl_ssl import SaslSsl
from kafscale.config import Address

FLUSH_SECONDS = 60.0


@attrs.frozen(kw_only=True)
class LibrdkafkaLoad:
    """Records of one size, by an idempotent producer with its defaults, as fast as its queue takes them."""

    address: Address
    record_bytes: int
    seconds: float
    security: SaslSsl | None = None


def run_librdkafka(load: LibrdkafkaLoad) -> Figures:
    """Latencies are those of every hundredth record, from `produce` to its report. Raises RuntimeError."""
    secured = {} if load.security is None else load.security.librdkafka
    producer = Producer({"bootstrap.servers": str(load.address), "enable.idempotence": True, **secured})
    value = bytes(load.record_bytes)
    latencies = array("d")
    reported_count = 0

    def report(error: object, message: Message) -> None:
        nonlocal reported_count
        if error is not None:
            raise RuntimeError(f"the broker refused a record: {error}")
        reported_count += 1
        if reported_count % 100 == 0:
            latencies.append(message.latency() or 0.0)

    began, cpu_began = time.perf_counter(), time.process_time()
    deadline = began + load.seconds
    sent_count = 0
    while time.perf_counter() < deadline:
        try:
            producer.produce(TOPIC, value, on_delivery=report)
        except BufferError:
            producer.poll(0.01)
        else:
            sent_count += 1
            if sent_count % 1000 == 0:
                producer.poll(0)
    producer.flush(FLUSH_SECONDS)
    seconds = time.perf_counter() - began
    if reported_count != sent_count:
        raise RuntimeError(f"{sent_count - reported_count} of {sent_count} records were not acknowledged")
    figures = Figures.of(
        latencies,
        seconds=seconds,
        size_bytes=sent_count * load.record_bytes,
        client_cpu_seconds=time.process_time() - cpu_began,
    )
    return attrs.evolve(figures, requests=sent_count)
