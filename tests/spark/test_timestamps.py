"""Where timestamps lead in partitions that are empty, old, or out of order, held against Spark's Kafka source."""

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.external.spark import flush, run_stream, skip_without_kafka_stream, store_of, wait_for_topic

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

BASE_MS = 1_700_000_000_000
SECONDS = {  # by partition, of the records; two segments each
    0: range(10),
    1: [],
    2: [5, 100, 7, 6, 3, 90],
    3: [0, 1, 2],
}
FORMATS = ("kafscale", "kafka")
LATEST = {"startingOffsetsByTimestampStrategy": "latest"}
REFUSED = "refused"
REFUSALS = (
    "No offset matched",
    "no record of partition",
    "don't match what are assigned",
    "says nothing of partition",
    "is greater than the resolved end offset",
    "would begin at",
)


def at(seconds: float) -> str:
    return str(BASE_MS + int(seconds * 1000))


def by_partition(*seconds: float) -> str:
    return json.dumps({"sparse": {str(partition): int(at(each)) for partition, each in enumerate(seconds)}})


@pytest.fixture(scope="module")
def topics(broker):
    """One whose partitions are as SECONDS has them, and one that has nothing."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    kept = {"retention.ms": "-1"}  # the records are old
    for name, count in (("sparse", len(SECONDS)), ("empty", 2)):
        admin.create_topics([NewTopic(name, count, 1, config=kept)])[name].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 2})
    for half in (0, 1):
        for partition, seconds in SECONDS.items():
            middle = len(seconds) // 2
            for each in seconds[middle:] if half else seconds[:middle]:
                producer.produce("sparse", b"v", partition=partition, timestamp=int(at(each)))
        producer.flush()
        flush(broker)
    wait_for_topic(broker, "empty")


@pytest.fixture
def given(broker, topics):
    def given(format: str, **options: str) -> dict[str, str]:
        where = {"store": store_of(broker)} if format == "kafscale" else {"kafka.bootstrap.servers": broker.bootstrap}
        return {**where, **({} if "assign" in options else {"subscribe": "sparse"}), **options}

    return given


@pytest.mark.parametrize("strategy", [{}, {"startingOffsetsByTimestampStrategy": "error"}, LATEST], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *({"startingTimestamp": at(seconds)} for seconds in (0, 2, 2.001, 6, 50, 100, 101)),
        {"startingOffsetsByTimestamp": by_partition(3, 0, 7, 1)},
        {"startingOffsetsByTimestamp": by_partition(3, 0, 7)},
        {"startingTimestamp": at(1), "assign": '{"sparse":[0,2,3]}'},
        {"startingTimestamp": at(3), "assign": '{"sparse":[0,2]}'},
        {"startingTimestamp": at(3), "assign": '{"sparse":[3]}'},
        {"startingTimestamp": at(0), "subscribe": "empty"},
        {"startingTimestamp": at(0), "subscribe": "sparse,empty"},
        {"startingTimestamp": at(3), "endingTimestamp": at(6)},
        {"startingTimestamp": at(6), "endingTimestamp": at(3)},
        {"startingTimestamp": at(1), "startingOffsetsByTimestamp": by_partition(9, 9, 9, 9)},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_a_batch_begins_where_one_of_the_kafka_source_does(spark, given, options, strategy):
    ours, theirs = (outcome(spark, format, given(format, **options, **strategy)) for format in FORMATS)
    assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        *({"endingTimestamp": at(seconds)} for seconds in (0, 2.001, 6, 101)),
        {"endingOffsetsByTimestamp": by_partition(3, 0, 7, 1)},
        {"endingOffsetsByTimestamp": by_partition(3, 0, 7)},
        {"endingTimestamp": at(0), "subscribe": "empty"},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_a_batch_ends_where_one_of_the_kafka_source_does(spark, given, options):
    ours, theirs = (outcome(spark, format, given(format, **options)) for format in FORMATS)
    assert ours == theirs


def outcome(spark, format: str, options: dict[str, str]) -> list[tuple[str, int, int]] | str:
    try:
        found = spark.read.format(format).options(**options).load().select("topic", "partition", "offset").collect()
    except Exception as exc:  # each has its own
        return refusal(exc)
    return sorted(map(tuple, found))


def refusal(exc: Exception) -> str:
    """Raises what is none."""
    if not any(each in str(exc) for each in REFUSALS):
        raise exc
    return REFUSED


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": at(6), **LATEST},
        {"startingTimestamp": at(101), **LATEST},
        {"startingOffsetsByTimestamp": by_partition(3, 0, 7, 3), **LATEST},
        {"startingTimestamp": at(1)},
        {"startingTimestamp": at(1), "assign": '{"sparse":[0,2,3]}'},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_a_stream_begins_where_one_of_the_kafka_source_does(spark, given, options, tmp_path):
    skip_without_kafka_stream()
    ours, theirs = (streamed(spark, format, given(format, **options), tmp_path / format) for format in FORMATS)
    assert ours == theirs


def streamed(spark, format: str, options: dict[str, str], directory) -> list[tuple[int, int]] | str:
    """What a stream reads until nothing is left."""
    (directory / "output").mkdir(parents=True)  # it writes nothing where it reads nothing
    paths = {"path": str(directory / "output"), "checkpointLocation": str(directory / "checkpoint")}
    source = spark.readStream.format(format).options(**options).load().select("partition", "offset")
    try:
        run_stream(source.writeStream.format("parquet").options(**paths).trigger(availableNow=True))
    except Exception as exc:  # each has its own
        return refusal(exc)
    return sorted(map(tuple, spark.read.schema("partition INT, offset LONG").parquet(paths["path"]).collect()))
