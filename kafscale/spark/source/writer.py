"""`df.write.format("kafscale")`: produces rows to a broker, with the columns of Spark's Kafka sink.

    value     string or binary, required; null is a tombstone key       string or binary headers   array<struct<key
    string, value binary>> topic     string, required unless the option `topic` is set, which goes before it partition
    int; without it the key decides, as for Java's producers

A task ends when all its records were acknowledged, and fails with the first that was not: at least once, as a repeated
task writes again; `transactional_writer` writes exactly once. Other columns are ignored.

Records are made by columns (`kafscale.spark.producing`), unless there are settings that only librdkafka knows: with
those, confluent-kafka produces. This module imports pyspark, and confluent-kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any

import attrs
import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafscale.errors import ConfigError
from kafscale.login.librdkafka import librdkafka_settings
from kafscale.login.security import ClientSecurity, client_security
from kafscale.spark.producing.producer import ColumnProducer
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.source.client_settings import client_settings, named
from kafscale.spark.source.deliveries import COLUMNS, FAILURES_ALONE, Deliveries, Refusals
from kafscale.spark.source.options import Given
from kafscale.spark.workers.calls import ease_next_call

_DEFAULTS = {"partitioner": "murmur2_random"}  # Java's, by librdkafka's name
_IDEMPOTENCE = "enable.idempotence"
# What an idempotent producer can't do without, by the names of its settings, of which the second are librdkafka's own.
_ACKS = ("acks", "request.required.acks")
_RETRIES = ("retries", "message.send.max.retries")
_IN_FLIGHT = ("max.in.flight.requests.per.connection", "max.in.flight")
_IN_FLIGHT_MAX = 5
_REFUSED = {
    "kafka.key.serializer": "cast the column to string or binary instead",
    "kafka.value.serializer": "cast the column to string or binary instead",
    "kafka.transactional.id": "set transactional to true, and transactionalId",
}


@attrs.frozen(kw_only=True)
class WriteOptions:
    """Options to produce. `producer` has the settings of Java's or librdkafka's clients."""

    producer: Mapping[str, str] = attrs.field(repr=False)
    topic: str | None = None

    @classmethod
    def of(cls, given: Given, schema: StructType, *, overwrite: bool) -> WriteOptions:
        """Read the options. Raises ConfigError."""
        if overwrite:
            raise ConfigError('a topic can\'t be overwritten: use mode("append")')
        if not given.text("kafka.bootstrap.servers"):
            raise ConfigError("the option kafka.bootstrap.servers is required for writing: HOST:PORT of a broker")
        for name, instead in _REFUSED.items():
            if given.text(name) is not None:
                raise ConfigError(f"the option {name} is not supported: {instead}")
        topic = given.text("topic")
        _check_columns(schema, needs_topic=topic is None)
        chosen = client_settings(given.values)
        defaults = {**_DEFAULTS, _IDEMPOTENCE: str(_may_be_idempotent(chosen)).lower()}
        options = cls(producer={**defaults, **chosen}, topic=None if topic is None else topic.strip())
        options.configuration()  # where it is wrong, the driver says so, before there are tasks
        return options

    def open(self, further: Mapping[str, Any] = MappingProxyType({})) -> Producer:
        """Open a producer, with settings besides those of the user. Raises ConfigError."""
        try:
            return Producer({**self.configuration(), **further})
        except KafkaException as exc:
            raise ConfigError(f"kafka.*: {exc.args[0].str()}; settings have librdkafka's names") from exc

    def configuration(self) -> dict[str, Any]:
        """Return the settings in librdkafka's form. Raises ConfigError."""
        with named():
            return librdkafka_settings(self.producer)

    def security(self) -> ClientSecurity:
        """Return how to secure connections that are not librdkafka's. Raises ConfigError."""
        with named():
            return client_security(self.producer)


def _may_be_idempotent(chosen: Mapping[str, str]) -> bool:
    """Tell whether other settings allow idempotence, as Java's producer does; librdkafka would refuse them."""

    def given(names: Sequence[str], default: str) -> str:
        return next((chosen[name].strip() for name in names if name in chosen), default)

    in_flight = given(_IN_FLIGHT, "1")
    return (
        given(_ACKS, "all") in ("all", "-1")
        and given(_RETRIES, "1") != "0"
        and (not in_flight.isdecimal() or int(in_flight) <= _IN_FLIGHT_MAX)
    )


def _check_columns(schema: StructType, *, needs_topic: bool) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ConfigError("the column 'value' is required: name one so, by SELECT … AS value")
    if needs_topic and "topic" not in types:
        raise ConfigError("no topic: set the option topic, or have a column 'topic'")
    for name, allowed in COLUMNS.items():
        if name in types and types[name].simpleString() not in allowed:
            raise ConfigError(f"the column '{name}' is {types[name].simpleString()}; it must be {' or '.join(allowed)}")


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class _TopicWriting:
    """The common part of the writers of batches and of streams."""

    options: WriteOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Produce the rows of a task and wait until they are acknowledged. Raises ConfigError, KafkaError."""
        ease_next_call()
        settings = ProducerSettings.of(self.options.producer)
        if settings is None:
            self._write_by_librdkafka(iterator)
            return WriterCommitMessage()
        with closing(ColumnProducer.of(settings)) as producer:
            for rows in iterator:
                producer.send(rows, self.options.topic)
            producer.finish()
        return WriterCommitMessage()

    def _write_by_librdkafka(self, iterator: Iterator[pa.RecordBatch]) -> None:
        refusals = Refusals()
        producer = self.options.open({**FAILURES_ALONE, "error_cb": refusals.note})
        deliveries = Deliveries(producer=producer, refusals=refusals)
        for rows in iterator:
            deliveries.send(rows, self.options.topic)
        deliveries.finish()


class TopicWriter(_TopicWriting, DataSourceArrowWriter):
    """The writer of a batch query."""


class StreamTopicWriter(_TopicWriting, DataSourceStreamArrowWriter):
    """The writer of a streaming query."""
