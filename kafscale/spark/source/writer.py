"""`df.write.format("kafscale")`: produces rows to a broker, with the columns of Spark's Kafka sink. Imports pyspark.

    value       string or binary, required; null is a tombstone
    key         string or binary
    headers     array<struct<key string, value binary>>
    topic       string, required unless the option `topic` is set, which has priority
    partition   int; without it the key decides, as for Java's producers

A task ends when all its records are acknowledged, and fails with the first that is not. A repeated task writes its rows
again. With `transactional=true`, the rows of a micro-batch, or of one `df.write`, are written once and as a whole: each
task leaves a transaction open and names it to the driver, which decides and commits (`kafscale.spark.transactions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from uuid import uuid4

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafscale.errors import ConfigError
from kafscale.spark.producing.producer import ColumnProducer, prepare
from kafscale.spark.producing.settings import TRANSACTION_TIMEOUT, ProducerSettings
from kafscale.spark.producing.transaction import Prepared, WriterTransaction
from kafscale.spark.source.client_settings import client_settings, named
from kafscale.spark.source.options import Given
from kafscale.spark.transactions.commit import Committer, task_id
from kafscale.spark.workers.calls import ease_next_call

COLUMNS: Mapping[str, Sequence[str]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
_REFUSED = {
    "kafka.key.serializer": "cast the column to string or binary instead",
    "kafka.value.serializer": "cast the column to string or binary instead",
    "kafka.transactional.id": "set transactional to true, and transactionalId",
}
# Kafka's brokers allow no longer one by default (transaction.max.timeout.ms); librdkafka's default is a minute, which
# the first task of a batch would have to wait for the last one.
TIMEOUT_MS_DEFAULT = 15 * 60_000
_ID_MAX_LENGTH = 200
# Set by Spark for the tasks of a streaming query.
_QUERY_ID, _RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"


@attrs.frozen(kw_only=True)
class WriteOptions:
    """Options of a writer; travels to the tasks.

    producer: settings by `ProducerSettings`'s names. timeout_ms, transactional_id: of transactions.
    """

    producer: Mapping[str, str] = attrs.field(repr=False)
    topic: str | None
    timeout_ms: int
    transactional_id: str | None

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
        topic, transactional_id = given.text("topic"), given.text("transactionalId")
        _check_columns(schema, needs_topic=topic is None)
        producer = client_settings(given.values)
        timeout = producer.get(TRANSACTION_TIMEOUT, str(TIMEOUT_MS_DEFAULT)).strip()
        if not timeout.isdecimal() or int(timeout) == 0:
            raise ConfigError(f"kafka.{TRANSACTION_TIMEOUT} is a positive number, not '{timeout}'")
        if transactional_id is not None and not 0 < len(transactional_id.strip()) <= _ID_MAX_LENGTH:
            raise ConfigError(f"transactionalId has 1 to {_ID_MAX_LENGTH} characters, not {len(transactional_id)}")
        options = cls(
            producer=producer,
            topic=None if topic is None else topic.strip(),
            timeout_ms=int(timeout),
            transactional_id=None if transactional_id is None else transactional_id.strip(),
        )
        options.settings()  # so that the driver reports mistakes, before there are tasks
        return options

    def settings(self) -> ProducerSettings:
        """Read the settings of the producer, and the files that they name. Raises ConfigError."""
        with named():
            return ProducerSettings.of(self.producer)


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
    options: WriteOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        ease_next_call()
        with closing(ColumnProducer.of(self.options.settings())) as producer:
            for rows in iterator:
                producer.send(rows, self.options.topic)
            producer.finish()
        return WriterCommitMessage()


class TopicWriter(_TopicWriting, DataSourceArrowWriter):
    """The writer of a batch query."""


class StreamTopicWriter(_TopicWriting, DataSourceStreamArrowWriter):
    """The writer of a streaming query."""


# ---- in transactions ------------------------------------------------------------------------------------------------


@attrs.define(slots=False)
class TaskWritten(WriterCommitMessage):
    """The result of a task. `prepared` is None without rows."""

    transactional_id: str
    run: str
    prepared: Prepared | None


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class _TransactionalWriting(ABC):
    options: WriteOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        ease_next_call()
        context = TaskContext.get()
        assert context is not None
        transactional_id, run = self._query(context)
        settings = self.options.settings()
        transaction = WriterTransaction(
            cluster=settings.cluster(),
            transactional_id=task_id(
                transactional_id, partition=context.partitionId(), attempt=context.attemptNumber()
            ),
            timeout_ms=self.options.timeout_ms,
        )
        prepared = prepare(iterator, self.options.topic, settings, transaction)
        return TaskWritten(transactional_id, run, prepared)

    @abstractmethod
    def _query(self, context: TaskContext) -> tuple[str, str]:
        """Return the transactional id that the driver decides by, and the id of the run."""

    @contextmanager
    def committer(self, transactional_id: str) -> Iterator[Committer]:
        with closing(self.options.settings().cluster()) as cluster:
            yield Committer(cluster=cluster, transactional_id=transactional_id, timeout_ms=self.options.timeout_ms)


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransactionalStreamWriter(_TransactionalWriting, DataSourceStreamArrowWriter):
    """The writer of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if written := _written(messages):
            with self.committer(written[0].transactional_id) as committer:
                committer.commit(_prepared_of(written), run=written[0].run, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if written := _written(messages):
            with self.committer(written[0].transactional_id) as committer:
                committer.abort(_prepared_of(written), run=written[0].run, batch=batchId)

    def _query(self, context: TaskContext) -> tuple[str, str]:
        query_id, run_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_RUN_ID)
        if not query_id or not run_id:
            raise ConfigError("transactional=true: Spark does not tell this task of which streaming query it is")
        return self.options.transactional_id or f"kafscale-spark-{query_id}", run_id


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransactionalWriter(_TransactionalWriting, DataSourceArrowWriter):
    """The writer of a batch query. Raises ConfigError without `transactionalId`."""

    run: str = attrs.field(factory=lambda: uuid4().hex)
    _id: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.options.transactional_id is None:
            raise ConfigError(
                "transactional=true of a write outside of streams needs the option transactionalId: a name that no "
                "other job has, by which the next write finishes the commit of a driver that died"
            )
        self._id = self.options.transactional_id

    def finish_former(self) -> None:
        """Finish a decided write whose driver died. Raises KafkaError, BrokerUnavailable."""
        with self.committer(self._id) as committer:
            committer.finish_former(run=self.run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with self.committer(self._id) as committer:
            committer.commit(_prepared_of(_written(messages)), run=self.run, batch=None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with self.committer(self._id) as committer:
            committer.abort(_prepared_of(_written(messages)), run=self.run, batch=None)

    def _query(self, context: TaskContext) -> tuple[str, str]:
        return self._id, self.run


def _written(messages: Sequence[WriterCommitMessage | None]) -> Sequence[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]


def _prepared_of(written: Sequence[TaskWritten]) -> Sequence[Prepared]:
    return [task.prepared for task in written if task.prepared is not None]
