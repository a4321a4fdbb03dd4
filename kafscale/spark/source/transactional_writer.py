"""`transactional=true`: the rows of a micro-batch, or of one `df.write`, are written once and as a whole.

A task writes in a transaction of its own, leaves it open, and names it to the driver; the driver decides and commits
(`kafscale.spark.transactions`). This module imports pyspark, and confluent-kafka.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from uuid import uuid4

import attrs
import pyarrow as pa
from confluent_kafka import Producer
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kafscale.config import Address
from kafscale.errors import ConfigError
from kafscale.spark.brokers.cluster import Cluster, parse_bootstrap
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.source.deliveries import Refusals
from kafscale.spark.source.options import Given
from kafscale.spark.source.task_transaction import ColumnWriting, LibrdkafkaWriting, TransactionWriting, prepare
from kafscale.spark.source.writer import WriteOptions
from kafscale.spark.transactions.commit import Committer, task_id
from kafscale.spark.transactions.decisions import Prepared
from kafscale.spark.workers.calls import ease_next_call

# Kafka's brokers allow no longer one by default (transaction.max.timeout.ms); librdkafka's default is a minute, which
# the first task of a batch would have to wait for the last one.
TIMEOUT_MS_DEFAULT = 15 * 60_000
_TIMEOUT = "transaction.timeout.ms"
_ID_MAX_LENGTH = 200
# Set by Spark for the tasks of a streaming query.
_QUERY_ID, _RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"


@attrs.frozen(kw_only=True)
class TransactionOptions:
    """Options of transactions, besides those of producing."""

    bootstrap: Sequence[Address]
    timeout_ms: int
    transactional_id: str | None

    @classmethod
    def of(cls, given: Given, options: WriteOptions) -> TransactionOptions:
        """Read the options. Raises ConfigError."""
        producer = options.producer
        if producer["enable.idempotence"].strip().lower() != "true":
            raise ConfigError(
                "transactional=true needs an idempotent producer: leave out kafka.enable.idempotence, kafka.acks, "
                "kafka.retries and kafka.max.in.flight.requests.per.connection"
            )
        options.security()  # where it is wrong, the driver says so, before there are tasks
        timeout = producer.get(_TIMEOUT, str(TIMEOUT_MS_DEFAULT)).strip()
        if not timeout.isdecimal() or int(timeout) == 0:
            raise ConfigError(f"kafka.{_TIMEOUT} is a positive number, not '{timeout}'")
        transactional_id = given.text("transactionalId")
        if transactional_id is not None and not 0 < len(transactional_id.strip()) <= _ID_MAX_LENGTH:
            raise ConfigError(f"transactionalId has 1 to {_ID_MAX_LENGTH} characters, not {len(transactional_id)}")
        return cls(
            bootstrap=parse_bootstrap(producer.get("bootstrap.servers", "")),
            timeout_ms=int(timeout),
            transactional_id=None if transactional_id is None else transactional_id.strip(),
        )

    def producer_settings(self, options: WriteOptions) -> ProducerSettings | None:
        """Return the settings of a producer by columns; None if librdkafka has to produce."""
        return ProducerSettings.of({name: value for name, value in options.producer.items() if name != _TIMEOUT})

    def settings(self, of_task: str) -> Mapping[str, str]:
        """Return librdkafka's settings of a task's transaction."""
        return {"transactional.id": of_task, _TIMEOUT: str(self.timeout_ms)}

    @classmethod
    def of_batch(cls, given: Given, options: WriteOptions) -> TransactionOptions:
        """Read the options of a write that is not a stream. Raises ConfigError."""
        found = cls.of(given, options)
        if found.transactional_id is None:
            raise ConfigError(
                "transactional=true of a write outside of streams needs the option transactionalId: a name that no "
                "other job has, by which the next write finishes the commit of a driver that died"
            )
        return found


@attrs.define(slots=False)
class TaskWritten(WriterCommitMessage):
    """The result of a task. `prepared` is None without rows."""

    transactional_id: str
    run: str
    prepared: Prepared | None


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class _TransactionalWriting(ABC):
    """The common part of the writers of batches and of streams."""

    options: WriteOptions
    transactions: TransactionOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Produce the rows of a task in a transaction that stays open. Raises ConfigError, KafkaError."""
        ease_next_call()
        context = TaskContext.get()
        assert context is not None
        transactional_id, run = self._query(context)
        of_task = task_id(transactional_id, partition=context.partitionId(), attempt=context.attemptNumber())
        prepared = prepare(iterator, self.options.topic, partial(self._begin, of_task))
        return TaskWritten(transactional_id, run, prepared)

    def _begin(self, of_task: str) -> TransactionWriting:
        settings = self.transactions.producer_settings(self.options)
        if settings is not None:
            return ColumnWriting.begin(settings, self.cluster(), of_task, self.transactions.timeout_ms)
        return LibrdkafkaWriting.begin(of_task, self.cluster, partial(self._open_producer, of_task))

    def _open_producer(self, of_task: str, refusals: Refusals) -> Producer:
        return self.options.open({**self.transactions.settings(of_task), "error_cb": refusals.note})

    @abstractmethod
    def _query(self, context: TaskContext) -> tuple[str, str]:
        """Return the transactional id that the driver decides by, and the id of the run."""

    def cluster(self) -> Cluster:
        """Return the brokers, to be closed."""
        return Cluster(bootstrap=self.transactions.bootstrap, security=self.options.security())

    def committer(self, cluster: Cluster, transactional_id: str) -> Committer:
        """Return the committer of a query."""
        return Committer(cluster=cluster, transactional_id=transactional_id, timeout_ms=self.transactions.timeout_ms)


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransactionalStreamWriter(_TransactionalWriting, DataSourceStreamArrowWriter):
    """The writer of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch that all tasks have prepared, unless it was. Raises KafkaError, BrokerUnavailable."""
        if written := _written(messages):
            with closing(self.cluster()) as cluster:
                committer = self.committer(cluster, written[0].transactional_id)
                committer.commit(_prepared_of(written), run=written[0].run, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort a batch that was not decided. Raises KafkaError, BrokerUnavailable."""
        if written := _written(messages):
            with closing(self.cluster()) as cluster:
                committer = self.committer(cluster, written[0].transactional_id)
                committer.abort(_prepared_of(written), run=written[0].run, batch=batchId)

    def _query(self, context: TaskContext) -> tuple[str, str]:
        query_id, run_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_RUN_ID)
        if not query_id or not run_id:
            raise ConfigError("transactional=true: Spark does not tell this task of which streaming query it is")
        return self.transactions.transactional_id or f"kafscale-spark-{query_id}", run_id


@attrs.define(kw_only=True, eq=False, slots=False, repr=False)
class TransactionalWriter(_TransactionalWriting, DataSourceArrowWriter):
    """The writer of a batch query."""

    run: str = attrs.field(factory=lambda: uuid4().hex)

    def finish_former(self) -> None:
        """Finish a decided write whose driver died. Raises KafkaError, BrokerUnavailable."""
        with closing(self.cluster()) as cluster:
            self.committer(cluster, self._transactional_id).finish_former(run=self.run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows that all tasks have prepared. Raises KafkaError, BrokerUnavailable."""
        with closing(self.cluster()) as cluster:
            committer = self.committer(cluster, self._transactional_id)
            committer.commit(_prepared_of(_written(messages)), run=self.run, batch=None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort rows that were not decided. Raises KafkaError, BrokerUnavailable."""
        with closing(self.cluster()) as cluster:
            committer = self.committer(cluster, self._transactional_id)
            committer.abort(_prepared_of(_written(messages)), run=self.run, batch=None)

    @property
    def _transactional_id(self) -> str:
        assert self.transactions.transactional_id is not None
        return self.transactions.transactional_id

    def _query(self, context: TaskContext) -> tuple[str, str]:
        return self._transactional_id, self.run


def _written(messages: Sequence[WriterCommitMessage | None]) -> Sequence[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]


def _prepared_of(written: Sequence[TaskWritten]) -> Sequence[Prepared]:
    return [task.prepared for task in written if task.prepared is not None]
