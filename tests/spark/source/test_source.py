"""DataFrames over a bucket that a broker process has written, held against Spark's Kafka source on the same records."""

import os
import pickle

import attrs
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.store.paths import SegmentKey
from tests.devtools.external.spark import flush, store_of
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_MS = 1_700_000_000_000
PARTITIONS = 3
KEY = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)


def create(broker, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        created.result()
    return name


def produce(broker, topic: str, numbers: range, *, codec: str = "none") -> None:
    """Record number n goes to partition n % 3, a second behind n - 1; some have no key, no value, or headers."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in numbers:
        producer.produce(
            topic,
            key=None if number % 5 == 0 else f"key {number}".encode(),
            value=None if number % 7 == 0 else f"{codec} {number} ".encode() * 20,
            headers=[("a", b"1"), ("a", None), ("b", b"")] if number % 4 == 0 else None,
            partition=number % PARTITIONS,
            timestamp=BASE_MS + number * 1000,
        )
    producer.flush()


@pytest.fixture(scope="module")
def topic(broker):
    create(broker, "orders")
    for index, codec in enumerate(CODECS):
        produce(broker, "orders", range(60 * index, 60 * (index + 1)), codec=codec)
        flush(broker)
    return "orders"


@pytest.fixture
def load(spark, broker, topic):
    def load(format: str = "kafscale", **options: str):
        ours = {"store": store_of(broker)} if format == "kafscale" else {"kafka.bootstrap.servers": broker.bootstrap}
        if not {"subscribePattern", "assign"} & options.keys():
            ours["subscribe"] = topic
        return spark.read.format(format).options(**{**ours, **options}).load()

    return load


def rows(frame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=lambda row: (row[2], row[3], row[4]))


def at(seconds: int) -> str:
    return str(BASE_MS + seconds * 1000)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"includeHeaders": "true"},
        {"subscribePattern": "ord.*"},
        {"assign": '{"orders":[2,0]}'},
        {"startingOffsets": '{"orders":{"0":7,"1":-2,"2":90}}'},
        {"endingOffsets": '{"orders":{"0":7,"1":-1,"2":90}}'},
        {"startingTimestamp": at(100), "endingTimestamp": at(200)},
        {"startingTimestamp": at(299), "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsetsByTimestamp": f'{{"orders":{{"0":{at(10)},"1":{at(20)},"2":{at(290)}}}}}'},
        {"endingOffsetsByTimestamp": f'{{"orders":{{"0":{at(10)},"1":{at(20)},"2":{at(990)}}}}}'},
        {"startingTimestamp": at(250), "startingOffsets": "earliest"},
        {"minPartitions": "7"},
        {"maxRecordsPerPartition": "40"},
        {"kafka.isolation.level": "read_committed"},
        {"failOnDataLoss": "false", "groupIdPrefix": "x", "kafka.fetch.min.bytes": "1"},
    ],
    ids=lambda options: ",".join(options) or "none",
)
def test_the_same_rows_as_the_kafka_source(load, options):
    ours, theirs = load(**options), load("kafka", **options)
    assert ours.schema == theirs.schema
    found = rows(ours)
    assert found == rows(theirs)
    assert found


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"endingOffsets": "earliest"},
        {"startingOffsets": '{"orders":{"0":7}}'},
        {"startingTimestamp": at(1000)},
        {"minPartitions": "0"},
        {"startingOffsets": '{"orders":{"0":9,"1":0,"2":0}}', "endingOffsets": '{"orders":{"0":3,"1":9,"2":9}}'},
        {"assign": '{"orders":[0]}', "subscribe": "orders"},
    ],
    ids=lambda options: ",".join(options),
)
def test_the_same_queries_are_refused(load, options):
    for format in ("kafscale", "kafka"):
        with pytest.raises(Exception, match=r"\S"):
            load(format, **options).count()


def test_spark_talks_to_its_workers_through_unix_sockets(spark):
    """Through TCP each task began 40 ms later."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")).collect()
    assert found == ["True"]


def test_a_schema_prunes_columns(spark, broker, topic):
    reader = spark.read.format("kafscale").options(store=store_of(broker), subscribe=topic)
    frame = reader.schema("offset LONG, key BINARY").load()
    assert frame.columns == ["offset", "key"]
    assert frame.count() == 300
    with pytest.raises(Exception, match="there is no column offset string"):
        reader.schema("offset STRING").load().count()


def test_a_wrong_option_error_suggests_the_nearest_name(load):
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        load(startingOffset="earliest")


def test_one_querys_filter_does_not_limit_other_queries_of_the_frame(load):
    frame = load()
    assert frame.where("offset < 5").count() == 15
    assert frame.count() == 300
    assert frame.where("partition = 1").union(frame.where("partition = 2")).count() == 200


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("offset < 5", 15),
        ("partition IN (0, 2) AND offset >= 90", 20),
        ("timestamp >= timestamp_millis(1700000100000)", 200),
        ("timestamp < timestamp_millis(1700000100000)", 100),
        ("partition = 5", 0),
        ("value IS NULL", 43),
    ],
)
def test_filters_that_are_pushed_change_nothing(load, condition, count):
    assert load(pushFilters="true").where(condition).count() == count


def test_records_that_arrive_between_two_queries_are_read_by_a_new_load(broker, load):
    """A DataFrame that was read already may keep the plan of its first query, and Spark says when."""
    create(broker, "growing")
    produce(broker, "growing", range(30))
    flush(broker)
    frame = load(assign='{"growing":[0,1,2]}')
    assert frame.count() == 30
    produce(broker, "growing", range(30, 60))
    flush(broker)
    assert load(assign='{"growing":[0,1,2]}').count() == 60


def test_segments_that_are_merged_between_planning_and_reading(tmp_path):
    from kafscale.spark.source.source import KafScaleDataSource

    for base in (0, 30):
        version_2_objects(attrs.evolve(KEY, base_offset=base), make_batches(base, 10)).write_to(tmp_path)
    source = KafScaleDataSource({"store": f"file:{tmp_path}", "subscribe": "t"})
    reader = source.reader(source.schema())
    reader, partitions = pickle.loads(pickle.dumps((reader, list(reader.partitions()))))
    for path in list(tmp_path.rglob("segment-*")):
        path.unlink()
    version_2_objects(attrs.evolve(KEY, generation=1), make_batches(0, 20)).write_to(tmp_path)
    found = [offset for each in partitions for part in reader.read(each) for offset in part["offset"].to_pylist()]
    assert found == list(range(60))
