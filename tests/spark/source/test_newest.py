"""`freshness=broker`: what no segment has is fetched from brokers, in every mode; without a JVM."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.errors import BrokerUnavailable, ConfigError
from kafscale.log.read.reader import empty_batch
from kafscale.spark.brokers import newest
from kafscale.spark.brokers.cluster import Cluster, parse_bootstrap
from kafscale.spark.bucket.aborted import outcomes_between
from kafscale.spark.bucket.catalog import PartitionLog
from kafscale.spark.bucket.position import measure
from kafscale.spark.bucket.reading import DataLoss, TopicCreatedAgain
from kafscale.spark.bucket.splits import BrokerRange, SplitRange
from kafscale.spark.source.options import BatchOptions, Given, ReadOptions, StreamOptions
from kafscale.spark.source.planning import Planner, QueryBounds
from kafscale.spark.source.progress import StreamProgress
from kafscale.spark.sql.topics import tail_offsets
from kafscale.wire.messages.records import FetchAbortedTransaction, FetchRequest, ListOffsetsRequest
from tests.devtools.external.spark import flush, store_of
from tests.devtools.processes.process import BrokerProcess, broker_process

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=["wal", "s3-wal", "segment"])
def broker(request):
    flushing = [] if request.param == "segment" else ["--flush-interval", "1h", "--s3-wal-flush-objects", "0"]
    with broker_process("--durability", request.param, *flushing) as running:
        yield running


@pytest.fixture(scope="module")
def wal():
    with broker_process("--durability", "wal", "--flush-interval", "1h") as running:
        yield running


OPEN: list[Planner] = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture
def topic(request):
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def create(broker: BrokerProcess, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def delete(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result()


def delete_records(broker: BrokerProcess, topic: str, before_offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before_offset)]).values():
        future.result()


def write(broker: BrokerProcess, topic: str, *values: bytes, first_ms: int = 1000) -> None:
    """A batch for each value, whose timestamps rise by 1 ms."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, headers=[("h", value)], timestamp=first_ms + number, partition=0)
        producer.flush()


class Payer:
    """A producer with transactions."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
        self.producer.init_transactions()

    def begin(self, topic: str, *values: bytes) -> None:
        self.producer.begin_transaction()
        self.go_on(topic, *values)

    def go_on(self, topic: str, *values: bytes) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=0)
            self.producer.flush()

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()


def planner(broker: BrokerProcess, topic: str, **options: str) -> tuple[Given, Planner]:
    asked = {"freshness": "broker", "kafka.bootstrap.servers": broker.bootstrap}
    given = Given({"store": store_of(broker), "subscribe": topic, **asked, **options})
    made = Planner.of(ReadOptions.of(given))
    OPEN.append(made)
    return given, made


def planned(broker: BrokerProcess, topic: str, **options: str):
    given, made = planner(broker, topic, **options)
    return made, made.batch(BatchOptions.of(given), QueryBounds())


def values(broker: BrokerProcess, topic: str, **options: str) -> list[bytes]:
    return read(*planned(broker, topic, **options))


def read(made: Planner, splits) -> list[bytes]:
    return [row["value"] for rows in made.reader(["value"]).read_all(splits) for row in rows.to_pylist()]


class Stream:
    """As Spark drives it."""

    def __init__(self, broker: BrokerProcess, topic: str, **options: str) -> None:
        given, self.planner = planner(broker, topic, startingOffsets="earliest", **options)
        self.progress = StreamProgress(planner=self.planner, options=StreamOptions.of(given))
        self.position = self.progress.initial()

    def plan(self):
        end = self.progress.latest()
        splits = self.progress.splits(self.position, end)
        self.position = end
        return splits

    def batch(self) -> list[bytes]:
        return read(self.planner, self.plan())


def test_all_that_is_acknowledged_is_read_in_every_mode(broker, topic):
    create(broker, topic)
    assert values(broker, topic) == []
    write(broker, topic, b"a", b"b")
    assert values(broker, topic) == [b"a", b"b"]
    flush(broker)
    write(broker, topic, b"c", b"d")
    assert values(broker, topic) == [b"a", b"b", b"c", b"d"]
    assert values(broker, topic, startingOffsets=f'{{"{topic}":{{"0":1}}}}', maxRecordsPerPartition="1") == [
        b"b",
        b"c",
        b"d",
    ]
    assert values(broker, topic, endingOffsets=f'{{"{topic}":{{"0":3}}}}') == [b"a", b"b", b"c"]


def test_records_from_brokers_have_the_columns_of_segments(broker, topic):
    create(broker, topic)
    write(broker, topic, b"a", b"b")
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    made, splits = planned(broker, topic)
    fetched = [row for rows in made.reader(columns).read_all(splits) for row in rows.to_pylist()]
    flush(broker)
    made, splits = planned(broker, topic)
    assert all(isinstance(each, SplitRange) for split in splits for each in split.ranges)
    assert fetched == [row for rows in made.reader(columns).read_all(splits) for row in rows.to_pylist()]
    assert [row["value"] for row in fetched] == [b"a", b"b"]


def test_transactions_count_as_they_do_after_a_flush(broker, topic):
    create(broker, topic)
    one, other = Payer(broker, f"{topic}-one"), Payer(broker, f"{topic}-other")
    one.begin(topic, b"one aborted")
    other.begin(topic, b"other kept")
    write(broker, topic, b"plain")
    flush(broker)  # with both open
    one.go_on(topic, b"one aborted, too")
    other.go_on(topic, b"other kept, too")
    one.abort()
    one.begin(topic, b"one kept")
    one.commit()
    other.commit()
    other.begin(topic, b"other aborted")
    other.abort()
    one.begin(topic, b"open")
    write(broker, topic, b"behind")
    kept = [b"other kept", b"plain", b"other kept, too", b"one kept"]
    everything = [
        b"one aborted", b"other kept", b"plain", b"one aborted, too", b"other kept, too", b"one kept",
        b"other aborted", b"open", b"behind",
    ]  # fmt: skip
    assert values(broker, topic) == kept
    assert values(broker, topic, maxRecordsPerPartition="1") == kept
    assert values(broker, topic, isolationLevel="read_uncommitted") == everything
    flush(broker)
    assert values(broker, topic, freshness="segments") == kept
    assert values(broker, topic) == kept
    one.commit()
    assert values(broker, topic) == [*kept, b"open", b"behind"]


def test_a_transaction_open_in_segments_and_aborted_in_the_log_is_left_out(wal, topic):
    create(wal, topic)
    one = Payer(wal, topic)
    one.begin(topic, b"aborted")
    flush(wal)
    one.abort()
    write(wal, topic, b"plain")
    assert values(wal, topic) == [b"plain"]
    assert values(wal, topic, endingOffsets=f'{{"{topic}":{{"0":1}}}}') == []


def test_a_stream_goes_from_brokers_to_segments(wal, topic):
    create(wal, topic)
    stream = Stream(wal, topic, maxOffsetsPerTrigger="2")
    write(wal, topic, b"a", b"b", b"c")
    assert stream.batch() == [b"a", b"b"]
    flush(wal)
    write(wal, topic, b"d", b"e")
    assert stream.batch() == [b"c", b"d"]
    splits = stream.plan()
    assert [type(each) for split in splits for each in split.ranges] == [BrokerRange]
    write(wal, topic, b"f")
    flush(wal)
    wal.restart(kill=True)
    assert read(stream.planner, splits) == [b"e"]
    assert stream.batch() == [b"f"]
    assert stream.batch() == []


def test_a_task_ends_where_was_planned(wal, topic):
    create(wal, topic)
    producer = Producer({"bootstrap.servers": wal.bootstrap, "linger.ms": 200})
    for value in (b"a", b"b", b"c"):
        producer.produce(topic, value, partition=0)
    producer.flush()  # one batch
    stream = Stream(wal, topic, maxOffsetsPerTrigger="1")
    assert [stream.batch() for _ in range(4)] == [[b"a"], [b"b"], [b"c"], []]


def test_a_stream_notices_a_topic_that_was_created_again(wal, topic):
    create(wal, topic)
    write(wal, topic, b"a")
    stream = Stream(wal, topic)
    assert stream.batch() == [b"a"]
    write(wal, topic, b"b")
    splits = stream.plan()
    delete(wal, topic)
    create(wal, topic)
    write(wal, topic, b"x", b"y", b"z")
    with pytest.raises(DataLoss, match="that topic was deleted since"):
        read(stream.planner, splits)
    with pytest.raises(TopicCreatedAgain, match="was deleted and created again"):
        stream.batch()
    assert values(wal, topic) == [b"x", b"y", b"z"]


def test_a_topic_that_was_flushed_and_created_again_is_the_new_one(wal, topic):
    create(wal, topic)
    write(wal, topic, b"a", b"b")
    flush(wal)
    delete(wal, topic)
    create(wal, topic)
    assert values(wal, topic) == []
    write(wal, topic, b"x")
    assert values(wal, topic) == [b"x"]


def test_deleted_records_are_not_read(wal, topic):
    create(wal, topic)
    write(wal, topic, b"a", b"b", b"c")
    made, splits = planned(wal, topic)
    delete_records(wal, topic, 2)
    assert values(wal, topic) == [b"c"]
    with pytest.raises(DataLoss, match=r"offsets 0 to 1 .* the log begins at 2 now"):
        read(made, splits)


def test_timestamps_lags_and_tails_include_records_of_brokers(wal, topic):
    create(wal, topic)
    write(wal, topic, b"a", b"b")
    flush(wal)
    write(wal, topic, b"c", b"d", first_ms=1002)
    assert values(wal, topic, startingTimestamp="1003") == [b"d"]
    assert values(wal, topic, startingTimestamp="1001", endingTimestamp="1003") == [b"b", b"c"]
    catalog = planner(wal, topic)[1].catalog
    found = measure(catalog, {(topic, 0): 1})[topic, 0]
    assert (found.end_offset, found.offsets_behind) == (4, 3)
    assert [tail_offsets(catalog, topic, count)[0] for count in (0, 1, 2, 3, 4, 5)] == [4, 3, 2, 1, 0, 0]


def test_topics_and_partitions_come_from_brokers(wal, topic):
    create(wal, topic, partitions=3)
    assert topic in planner(wal, topic)[1].catalog.topics()
    assert list(planner(wal, topic)[1].catalog.partitions(topic)) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"no broker of kafka\.bootstrap\.servers has topic 'nowhere'"):
        values(wal, "nowhere")


def test_unreachable_brokers_fail_the_query_with_a_remedy(wal, topic, monkeypatch):
    monkeypatch.setattr(newest, "RETRY_SECONDS", 0.0)
    with pytest.raises(BrokerUnavailable, match=r"no broker of kafka.bootstrap.servers \(127.0.0.1:1\) .* freshness"):
        values(wal, topic, **{"kafka.bootstrap.servers": "127.0.0.1:1"})


def test_brokers_must_be_named(wal, topic):
    with pytest.raises(ConfigError, match=r"freshness is broker, and needs the option kafka\.bootstrap.servers"):
        planner(wal, topic, **{"kafka.bootstrap.servers": ""})
    with pytest.raises(ConfigError, match=r"kafka\.ssl\.nonsense: is not known here"):
        planner(wal, topic, **{"kafka.ssl.nonsense": "1"})


def outcomes_of(made: Planner, log: PartitionLog, end_offset: int) -> tuple[list[int], list[int]]:
    """The first offsets of what was aborted, and of what is unknown, from the start of the log on."""
    found = outcomes_between(made.catalog, log, 0, end_offset)
    return [each.first_offset for each in found.aborted], [each.first_offset for each in found.unknown]


def test_records_with_deleted_markers_do_not_count_as_committed(wal, topic):
    create(wal, topic)
    one, other = Payer(wal, f"{topic}-one"), Payer(wal, f"{topic}-other")
    one.begin(topic, b"0")
    other.begin(topic, b"1")
    flush(wal)
    one.abort()
    other.commit()
    write(wal, topic, b"4")
    made = planner(wal, topic)[1]
    log = made.catalog.partitions(topic)[0]
    assert outcomes_of(made, log, 5) == ([0], [])
    delete_records(wal, topic, 4)
    assert outcomes_of(made, log, 5) == ([0, 1], [0, 1])


def test_a_transaction_that_began_before_the_log_start_gets_its_outcome(wal, topic):
    create(wal, topic)
    one, other = Payer(wal, f"{topic}-one"), Payer(wal, f"{topic}-other")
    one.begin(topic, b"0", b"1")
    other.begin(topic, b"2", b"3")
    flush(wal)
    delete_records(wal, topic, 3)
    one.abort()
    other.commit()
    write(wal, topic, b"plain")
    made = planner(wal, topic)[1]
    log = made.catalog.partitions(topic)[0]
    assert log.start_offset == 3
    assert outcomes_of(made, log, log.end_offset) == ([0], [])
    assert values(wal, topic) == [b"3", b"plain"]


def test_an_aborted_transaction_is_left_out_while_another_one_is_open(wal, topic):
    create(wal, topic)
    one, other, third = (Payer(wal, f"{topic}-{name}") for name in ("one", "other", "third"))
    one.begin(topic, b"aborted")
    other.begin(topic, b"committed")
    third.begin(topic, b"open")
    flush(wal)
    one.abort()
    other.commit()
    write(wal, topic, b"plain")
    assert values(wal, topic) == [b"committed"]
    third.commit()
    assert values(wal, topic) == [b"committed", b"open", b"plain"]


class Meddling(Cluster):
    """Does something once, with the first answer to a request of a class, before that is seen."""

    request_class: type | tuple[()] = ()

    def after(self, request_class: type, act: Callable[[Any], None]) -> None:
        self.request_class, self.act = request_class, act

    def ask(self, address, request, response_class, *, version=None):
        answer = super().ask(address, request, response_class, version=version)
        if isinstance(request, self.request_class):
            self.request_class = ()
            self.act(answer)
        return answer


@pytest.fixture
def meddled(wal):
    cluster = Meddling(bootstrap=parse_bootstrap(wal.bootstrap))
    with closing(cluster):
        yield cluster, newest.NewestReader(cluster)


def test_the_log_start_was_that_of_another_topic_of_the_name(wal, topic, meddled):
    """The topic is deleted and created again when a fetch of it is answered that its log begins later."""
    cluster, reader = meddled
    create(wal, topic)
    write(wal, topic, b"a", b"b", b"c")
    of = newest.FetchedTopic(name=topic, topic_id=reader.look(topic).topic_id, partition=0)
    delete_records(wal, topic, 2)
    assert reader.fetch(of, 0, committed_only=True).log_start_offset == 2

    def create_again(_: object) -> None:
        delete(wal, topic)
        create(wal, topic)
        write(wal, topic, b"x", b"y", b"z", b"z")
        delete_records(wal, topic, 4)

    cluster.after(FetchRequest, create_again)
    assert reader.fetch(of, 0, committed_only=True) is None


def test_a_look_and_a_time_were_of_two_topics_of_the_name(wal, topic, meddled):
    cluster, reader = meddled
    create(wal, topic)
    write(wal, topic, b"a", b"b", b"c")

    def create_again(_: object) -> None:
        delete(wal, topic)
        create(wal, topic)
        write(wal, topic, b"x")

    found = reader.look(topic)
    cluster.after(ListOffsetsRequest, create_again)
    seen = reader.look(topic)
    assert seen.topic_id != found.topic_id
    assert seen.partitions == {0: newest.PartitionEnds(log_start_offset=0, high_watermark=1, last_stable_offset=1)}
    of = newest.FetchedTopic(name=topic, topic_id=seen.topic_id, partition=0)
    assert reader.first_as_late(of, 1000) == 0
    assert reader.first_as_late(of, 1001) is None
    cluster.after(ListOffsetsRequest, create_again)
    assert reader.first_as_late(of, 1000) is None


def test_a_batch_that_was_compacted_away_did_not_tell_that_nothing_was_aborted_there(wal, topic, meddled):
    cluster, reader = meddled
    create(wal, topic)
    one = Payer(wal, topic)
    one.begin(topic, b"0")
    one.abort()
    one.begin(topic, b"2")
    one.abort()
    write(wal, topic, b"4", b"5")
    of = newest.FetchedTopic(name=topic, topic_id=reader.look(topic).topic_id, partition=0)
    later = reader.fetch(of, 5, committed_only=True).records
    every = reader.fetch(of, 0, committed_only=True).aborted
    assert [first_offset for _, first_offset in every] == [0, 2]
    (producer_id,) = {producer_id for producer_id, _ in every}
    found = [reader.aborted_around(of, offset, open_until=offset) for offset in (0, 1, 2, 4)]
    assert found == [{producer_id}] * 3 + [set()]

    def compact(answer: Any) -> None:
        answer.responses[0].partitions[0].records = later
        answer.responses[0].partitions[0].aborted_transactions = []

    def leave_no_record(answer: Any) -> None:
        answer.responses[0].partitions[0].records = memoryview(empty_batch(0, 6, 0)[0])
        answer.responses[0].partitions[0].aborted_transactions = []

    cluster.after(FetchRequest, compact)
    assert reader.aborted_around(of, 0, open_until=4) == set()  # no marker is before what follows, which is at 5
    for change in (compact, leave_no_record):
        cluster.after(FetchRequest, change)
        assert reader.aborted_around(of, 0, open_until=3) is None

    def tell_of_later_ones(answer: Any) -> None:
        answer.responses[0].partitions[0].aborted_transactions = [
            FetchAbortedTransaction(producer_id=producer_id, first_offset=2)
        ]

    cluster.after(FetchRequest, tell_of_later_ones)
    assert reader.aborted_around(of, 0, open_until=0) == set()


def test_an_aborted_transaction_spanning_another_ones_marker_is_left_out(wal, topic):
    create(wal, topic)
    one, other = Payer(wal, f"{topic}-one"), Payer(wal, f"{topic}-other")
    one.begin(topic, b"aborted")
    other.begin(topic, b"committed")
    other.commit()
    one.go_on(topic, b"aborted, too")
    one.abort()
    one.begin(topic, b"committed, too")
    one.commit()
    assert values(wal, topic) == [b"committed", b"committed, too"]
    assert values(wal, topic, maxRecordsPerPartition="1") == [b"committed", b"committed, too"]
