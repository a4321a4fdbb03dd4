"""Values that a registry's serializers wrote in Avro: decoded by the option `valueFormat`, and by Spark's `from_avro`.

The second knows one schema, and neither asks a registry nor tells why a value is a bad one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench.brokers import RunningBroker
from bench.spark.further import Sides, create_topic
from bench.spark.rounds import Different, Further
from tests.devtools.external.registry import running_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 300_000
DIFFERENT_ROWS = 1_000
ROUNDS = 5
TOPIC = "bench-avro"
PREFIX_BYTES = 5  # a zero, and the id of the schema
WHAT = f"decode {ROWS:,} values in Avro"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "items", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SUMS = ("sum(id)", "max(customer)", "sum(amount)", "count(note)", "sum(items)", "max(at)")


def order(number: int) -> Mapping[str, object]:
    """Make a value."""
    return {
        "id": number,
        "customer": f"customer {number % 97}",
        "amount": number / 4,
        "note": f"note {number}" if number % 3 else None,
        "items": number % 7,
        "at": 1_700_000_000_000 + number,
    }


def measure_avro(sides: Sides) -> Iterator[Further]:
    """Measure sums over all fields by each source, in turns; the first round warms up. Raises Different."""
    with running_values() as registry:
        values = [registry.avro(SCHEMA, order(number), topic=TOPIC) for number in range(DIFFERENT_ROWS)]
        for broker in (sides.kafka, sides.ours):
            create_topic(broker, TOPIC)
            _fill(broker, values)
        sides.ours.flush()
        taken: dict[str, list[float]] = {}
        for number in range(ROUNDS + 1):
            answers = []
            for name, format, broker in sides.each():
                began = time.perf_counter()
                frame = _ours(sides, registry.registry.url) if format == "kafscale" else _theirs(sides, broker)
                answers.append(frame.selectExpr(*SUMS).collect())
                if number:
                    taken.setdefault(name, []).append(time.perf_counter() - began)
            if any(answer != answers[0] for answer in answers):
                raise Different(f"{WHAT}: {answers}")
    for name, seconds in taken.items():
        yield Further(what=WHAT, source=name, seconds=seconds)


def _ours(sides: Sides, url: str) -> DataFrame:
    options = {**sides.store, "subscribe": TOPIC, "valueFormat": "avro", "schemaRegistryUrl": url}
    return sides.spark.session.read.format("kafscale").options(**options).load().select("decoded.value.*")


def _theirs(sides: Sides, broker: RunningBroker) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import expr

    options = {"kafka.bootstrap.servers": str(broker.address), "subscribe": TOPIC}
    frame = sides.spark.session.read.format("kafka").options(**options).load()
    payload = expr(f"substring(value, {PREFIX_BYTES + 1})")
    return frame.select(from_avro(payload, json.dumps(SCHEMA)).alias("read")).select("read.*")


def _fill(broker: RunningBroker, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": str(broker.address), "linger.ms": 20})
    for number in range(ROWS):
        while True:
            try:
                producer.produce(TOPIC, values[number % len(values)])
                break
            except BufferError:
                producer.poll(0.1)
    assert not producer.flush(60), "all is acknowledged"
