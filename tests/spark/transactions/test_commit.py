"""The protocol of driver and tasks, with drivers that die at each of their requests, and tasks as Spark runs them.

None of it needs Spark. What takes longer has the markers of the long suites.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import attrs
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.errors import KafkaError
from kafscale.spark.brokers.cluster import Cluster
from kafscale.spark.producing.producer import prepare
from kafscale.spark.producing.settings import ProducerSettings
from kafscale.spark.producing.transaction import Prepared, WriterTransaction, initialise
from kafscale.spark.transactions.commit import Committer, task_id
from kafscale.spark.transactions.decisions import Decision, DecisionJournal, UnfilteredPartition
from kafscale.wire import error_codes
from kafscale.wire.messages.records import ProduceRequest
from kafscale.wire.messages.transactions import EndTxnRequest
from tests.devtools.processes.process import BrokerProcess, broker_process

PARTITIONS = 2
TASKS = 2
ROWS = 4  # of each task
TIMEOUT_MS = 60_000
POLL_SECONDS = 30.0
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
ROWS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("partition", pa.int32()),
        ("headers", pa.list_(HEADER)),
    ]
)
START_TIMEOUT_SECONDS = 120.0  # other tests keep the machine busy

pytestmark = pytest.mark.timeout(300)


class Killed(BaseException):
    """The driver dies here."""


@attrs.frozen(kw_only=True)
class Death:
    """At a request of this kind, the how many-th one: before it is sent, or when it has taken effect."""

    kind: type = object
    number: int
    after: bool = False


ALIVE = Death(number=0)


@attrs.define(eq=False, kw_only=True)
class MortalCluster(Cluster):
    """Dies at one of its requests."""

    death: Death = ALIVE
    asked: list[object] = attrs.field(factory=list, init=False)

    def ask(self, address, request, response_class):
        self.asked.append(request)
        is_last = isinstance(request, self.death.kind) and self.death.number == sum(
            isinstance(each, self.death.kind) for each in self.asked
        )
        if is_last and not self.death.after:
            raise Killed
        answer = super().ask(address, request, response_class)
        if is_last:
            raise Killed
        return answer


@attrs.define(eq=False, kw_only=True)
class Query:
    """A streaming query that writes to a topic of its own."""

    broker: BrokerProcess
    name: str
    topic: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True))
    timeout_ms: int = TIMEOUT_MS

    def cluster(self, death: Death = ALIVE) -> MortalCluster:
        return MortalCluster(bootstrap=[self.broker.kafka], death=death)

    def committer(self, cluster: Cluster) -> Committer:
        return Committer(cluster=cluster, transactional_id=self.name, timeout_ms=self.timeout_ms)

    def prepare(self, run: str, batch: int = 0, tasks: int = TASKS, attempt: int = 0) -> list[Prepared]:
        return [self.prepare_task(run, batch, task, attempt) for task in range(tasks)]

    def prepare_task(self, run: str, batch: int, task: int, attempt: int = 0) -> Prepared:
        of_task = task_id(self.name, partition=task, attempt=attempt)
        rows = list(self.rows(run, batch, task))
        parts = [rows_of([]), rows_of(rows[:1]), rows_of(rows[1:])]
        settings = ProducerSettings.of({"bootstrap.servers": self.broker.bootstrap})
        transaction = WriterTransaction(cluster=self.cluster(), transactional_id=of_task, timeout_ms=self.timeout_ms)
        prepared = prepare(parts, None, settings, transaction)
        assert prepared is not None
        return prepared

    def rows(self, run: str, batch: int, task: int) -> Iterator[dict[str, object]]:
        for row in range(ROWS):
            yield {
                "topic": self.topic,
                "value": f"{batch} {task} {row} {run}",
                "key": f"{row}",
                "partition": row % PARTITIONS,
                "headers": [{"key": "run", "value": run.encode()}],
            }

    def commit(self, prepared: list[Prepared], run: str, batch: int | None = 0, death: Death = ALIVE) -> int:
        """Return how many requests it took."""
        with closing(self.cluster(death)) as cluster:
            self.committer(cluster).commit(prepared, run=run, batch=batch)
        return len(cluster.asked)

    def abort(self, prepared: list[Prepared], run: str, batch: int | None = 0) -> None:
        with closing(self.cluster()) as cluster:
            self.committer(cluster).abort(prepared, run=run, batch=batch)

    def die(self, prepared: list[Prepared], run: str, batch: int | None = 0, *, death: Death) -> None:
        with pytest.raises(Killed):
            self.commit(prepared, run, batch, death)

    def end_by_timeout(self, prepared: list[Prepared]) -> None:
        """As the broker ends them that are open for too long: aborted, and their producers are fenced."""
        with closing(self.cluster()) as cluster:
            for each in prepared:
                initialise(cluster, each.transactional_id, self.timeout_ms)

    def read(self, isolation_level: str = "read_committed") -> list[str]:
        """All values, up to the end as of now: the last stable offset at read_committed."""
        return [value.decode() for _, _, value, _ in self.messages(isolation_level)]

    def messages(self, isolation_level: str = "read_committed") -> list[tuple[int, bytes, bytes, list]]:
        settings = {
            "group.id": "none",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 5,
        }
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, **settings})
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
        found, at_end = [], set()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(POLL_SECONDS)
            assert message is not None
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value(), message.headers()))
            else:
                assert message.error().code() == ClientError._PARTITION_EOF
                at_end.add(message.partition())
        consumer.close()
        return found

    def last(self):
        with closing(self.cluster()) as cluster:
            return DecisionJournal.open(cluster, self.name).last()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as running:
        yield running


@pytest.fixture
def query(broker, request) -> Query:
    return query_of(broker, request.node.name.replace("[", "-").replace("]", ""))


def query_of(broker: BrokerProcess, name: str, **settings: int) -> Query:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    return Query(broker=broker, name=name, **settings)


def rows_of(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, ROWS_SCHEMA)


def values_of(run: str, batch: int = 0, tasks: int = TASKS) -> list[str]:
    return sorted(f"{batch} {task} {row} {run}" for task in range(tasks) for row in range(ROWS))


def test_a_batch_becomes_visible_only_when_committed(query):
    prepared = query.prepare("a")
    assert query.read() == []
    assert sorted(query.read("read_uncommitted")) == values_of("a")
    query.commit(prepared, "a")
    assert sorted(query.read()) == values_of("a")
    assert query.last() == Decision(batch=0, run="a")


DECIDES, ENDS_FIRST, ENDS_SECOND, WRITES_WHOLE = (
    Death(kind=EndTxnRequest, number=each, after=True) for each in (1, 2, 3, 4)
)


@pytest.mark.parametrize(
    ("death", "run"),
    [
        (attrs.evolve(DECIDES, after=False), "b"),
        (DECIDES, "a"),
        (ENDS_FIRST, "a"),
        (ENDS_SECOND, "a"),
        (WRITES_WHOLE, "a"),
    ],
)
def test_a_batch_of_a_dead_driver_is_written_once(query, death, run):
    query.die(query.prepare("a"), "a", death=death)
    query.commit(query.prepare("b"), "b")
    assert sorted(query.read()) == values_of(run)
    query.commit(query.prepare("b", batch=1), "b", batch=1)
    assert sorted(query.read()) == sorted(values_of(run) + values_of("b", batch=1))


@pytest.mark.faults
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("between", ["nothing", "abort", "timeout", "other attempts"])
def test_a_driver_that_dies_at_any_request_writes_each_batch_once(broker, between, after):
    name = f"any-{between.replace(' ', '-')}-{after}"
    first = query_of(broker, f"first-{name}")
    first.commit(first.prepare("a", 0), "a", 0)  # which may take more requests, as it creates the journal's topic
    query = query_of(broker, name)
    requests = query.commit(query.prepare("a", 0), "a", 0)
    assert requests > 15
    for number in range(1, requests + 1):
        run, following, batch = f"a{number}", f"b{number}", number
        prepared = query.prepare(run, batch)
        query.die(prepared, run, batch, death=Death(number=number, after=after))
        if between == "abort":
            query.abort(prepared, run, batch)
        elif between == "timeout":
            query.end_by_timeout(prepared)
        attempt = int(between == "other attempts")
        query.commit(query.prepare(following, batch, attempt=attempt), following, batch)
    assert each_batch_is_whole(query.read(), requests + 1)


def each_batch_is_whole(values: list[str], batches: int) -> bool:
    """Each batch has all rows of one run, and no others."""
    by_batch: dict[int, list[str]] = {}
    for value in values:
        by_batch.setdefault(int(value.split()[0]), []).append(value)
    runs = {batch: {value.split()[3] for value in found} for batch, found in by_batch.items()}
    assert all(len(found) == 1 for found in runs.values()), runs
    for batch, found in by_batch.items():
        assert sorted(found) == values_of(runs[batch].copy().pop(), batch)
    return sorted(by_batch) == list(range(batches))


@attrs.define(eq=False, kw_only=True)
class RestartingCluster(Cluster):
    """Its broker is killed before one of the requests, and started again."""

    broker: BrokerProcess
    number: int
    count: int = attrs.field(default=0, init=False)

    def ask(self, address, request, response_class):
        self.count += 1
        if self.count == self.number:
            self.broker.kill()
            self.broker.start(START_TIMEOUT_SECONDS)
        return super().ask(address, request, response_class)


@pytest.mark.faults
def test_a_broker_that_is_killed_before_any_request_of_a_commit():
    with broker_process() as broker:
        query = query_of(broker, "killed")
        query.commit(query.prepare("a"), "a")  # which creates the topic of the decisions
        requests = query.commit(query.prepare("a", 1), "a", batch=1)
        for number in range(1, requests + 1):
            prepared = query.prepare("a", number + 1)
            with closing(RestartingCluster(bootstrap=[broker.kafka], broker=broker, number=number)) as cluster:
                query.committer(cluster).commit(prepared, run="a", batch=number + 1)
                assert cluster.count >= number
        assert each_batch_is_whole(query.read(), requests + 2)


@pytest.mark.spark
def test_a_copy_of_an_aborted_transaction_has_only_its_records(query):
    """And not what others have written in between."""
    write_beside(query)
    prepared = query.prepare("a")
    write_beside(query)
    spans = [[attrs.evolve(span, first=0, last=span.last + 1) for span in each.spans] for each in prepared]
    prepared = [attrs.evolve(each, spans=tuple(wide)) for each, wide in zip(prepared, spans, strict=True)]
    query.die(prepared, "a", death=DECIDES)
    query.end_by_timeout(prepared)
    query.commit(query.prepare("b", attempt=1), "b")
    copied = [each for each in query.messages() if each[1] is not None]
    assert sorted(copied) == sorted(
        (row["partition"], row["key"].encode(), row["value"].encode(), [("run", b"a")])
        for task in range(TASKS)
        for row in query.rows("a", 0, task)
    )


def write_beside(query: Query) -> None:
    producer = Producer({"bootstrap.servers": query.broker.bootstrap})
    for partition in range(PARTITIONS):
        producer.produce(query.topic, b"beside", partition=partition)
    assert producer.flush(POLL_SECONDS) == 0


@pytest.mark.spark
@pytest.mark.parametrize("after", [False, True])
def test_runs_that_die_while_they_copy_write_nothing_twice(query, after):
    prepared = query.prepare("a")
    query.die(prepared, "a", death=DECIDES)
    query.end_by_timeout(prepared)
    deaths = 0
    for number in itertools.count(1):
        prepared = query.prepare("b", attempt=number % 2)
        try:
            query.commit(prepared, "b", death=Death(kind=ProduceRequest, number=number, after=after))
        except Killed:
            deaths += 1
        else:
            break
    assert deaths > TASKS
    assert sorted(query.read()) == values_of("a")


@pytest.mark.spark
def test_records_that_compaction_has_taken_fail_the_query_loudly(query):
    prepared = query.prepare("a")
    spans = [attrs.evolve(each, count=each.count + 1) for each in prepared[0].spans]
    prepared[0] = attrs.evolve(prepared[0], spans=tuple(spans))
    query.die(prepared, "a", death=DECIDES)
    query.end_by_timeout(prepared)
    with pytest.raises(KafkaError, match=r"2 of 3 records .* they are lost"):
        query.commit(query.prepare("b", attempt=1), "b")
    assert not [value for value in query.read() if value.endswith("b")]


@pytest.mark.spark
def test_records_that_were_deleted_since_are_not_missed(query):
    prepared = query.prepare("a")
    query.die(prepared, "a", death=DECIDES)
    query.end_by_timeout(prepared)
    admin = AdminClient({"bootstrap.servers": query.broker.bootstrap})
    ends = [TopicPartition(query.name, partition, -1) for partition in range(PARTITIONS)]
    for future in admin.delete_records(ends).values():
        future.result()
    query.commit(query.prepare("b", attempt=1), "b")
    assert query.read() == []
    assert query.last().unfinished == ()


@pytest.mark.spark
def test_a_transaction_that_timed_out_fails_the_batch_before_its_decision(broker):
    query = query_of(broker, "impatient", timeout_ms=1000)
    prepared = query.prepare("a")
    with closing(query.cluster()) as cluster:
        log = UnfilteredPartition(cluster=cluster, topic=query.name, partition=0)
        while log.outcome_of(prepared[1].producer_id, prepared[1].spans[0].first) is None:
            pass  # the broker's clock has to get there
    with pytest.raises(KafkaError, match=r"raise kafka\.transaction\.timeout\.ms"):
        query.commit(prepared, "a")
    assert query.last() is None
    query.abort(prepared, "a")
    assert query.read() == []


@pytest.mark.spark
def test_transactions_left_open_by_killed_or_repeated_tasks_are_aborted(query):
    query.prepare("killed", tasks=3, attempt=1)
    other = Query(broker=query.broker, name=f"{query.name}.task-0")  # of another query, whose id begins likewise
    of_other = Query.prepare_task(attrs.evolve(other, topic=query.name), "other", 0, 0)
    query.commit(query.prepare("a"), "a")
    other.commit([of_other], "other")
    assert sorted(query.read()) == sorted([*values_of("a"), *values_of("other", tasks=1)])


@pytest.mark.spark
def test_a_batch_that_is_aborted_is_never_seen(query):
    prepared = query.prepare("a")
    query.prepare("killed", tasks=3, attempt=1)
    query.abort(prepared, "a")
    assert query.read() == []
    assert len(query.read("read_uncommitted")) == (2 + 3) * ROWS
    with pytest.raises(KafkaError, match="was aborted before the batch was whole"):
        query.commit(prepared, "a")


@pytest.mark.spark
def test_a_decided_batch_is_not_aborted(query):
    prepared = query.prepare("a")
    query.die(prepared, "a", death=DECIDES)
    query.abort(prepared, "a")
    query.commit(query.prepare("b", attempt=1), "b")
    assert sorted(query.read()) == values_of("a")


@pytest.mark.spark
def test_a_zombie_decides_nothing(query):
    """Another query of the same checkpoint was quicker with each of the batches."""
    query.commit(query.prepare("a", 0), "a", 0)
    late = query.prepare("a", 1, attempt=1)
    query.commit(query.prepare("b", 1), "b", 1)
    for batch in (1, 2):
        with pytest.raises(KafkaError, match=r"another query|Another query"):
            query.commit(late, "a", batch)
    query.abort(late, "a", 1)
    query.commit(query.prepare("b", 2), "b", 2)
    assert sorted(query.read()) == sorted(values_of("a") + values_of("b", 1) + values_of("b", 2))


@pytest.mark.spark
def test_a_zombie_that_had_read_that_nothing_was_decided_is_fenced(query):
    prepared = query.prepare("a")
    with closing(query.cluster()) as cluster:
        zombie = query.committer(cluster)
        lead, journal, found = zombie._take_lead()
        query.commit(query.prepare("b", attempt=1), "b")
        with pytest.raises(KafkaError) as caught:
            journal.write(lead, Decision(batch=0, run="a", unfinished=tuple(prepared)), 0)
    assert found is None
    assert caught.value.code in (error_codes.PRODUCER_FENCED, error_codes.INVALID_PRODUCER_EPOCH)
    assert sorted(query.read()) == values_of("b")


@pytest.mark.spark
def test_an_earlier_batch_than_the_last_one_is_an_error(query):
    query.commit(query.prepare("a", 5), "a", 5)
    with pytest.raises(KafkaError, match="batch 4 is not written: batch 5 was decided already"):
        query.commit(query.prepare("b", 4), "b", 4)
    assert sorted(query.read()) == values_of("a", 5)


@pytest.mark.spark
def test_an_empty_batch_writes_nothing_down(query):
    query.commit([], "a", 0)
    assert query.last() is None


@pytest.mark.spark
def test_a_write_finishes_another_write_that_was_decided_meanwhile(query):
    prepared = query.prepare("b", attempt=1)
    query.die(query.prepare("a"), "a", None, death=ENDS_FIRST)
    query.commit(prepared, "b", None)
    assert sorted(query.read()) == sorted(values_of("a") + values_of("b"))


@pytest.mark.spark
def test_batch_writes_are_numbered_and_the_next_finishes_the_previous_one(query):
    query.die(query.prepare("a"), "a", None, death=ENDS_FIRST)
    with closing(query.cluster()) as cluster:
        query.committer(cluster).finish_former(run="b")
    assert sorted(query.read()) == values_of("a")
    query.commit(query.prepare("b"), "b", None)
    assert sorted(query.read()) == sorted(values_of("a") + values_of("b"))
    assert query.last() == Decision(batch=1, run="b", former=("a",))
