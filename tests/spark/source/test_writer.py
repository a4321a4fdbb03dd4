"""Rows that are produced through a broker, and read back."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.wire.client_rules import partition_of
from tests.devtools.external.spark import flush, store_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

ALL_COLUMNS = """
    SELECT CAST(id AS STRING) AS key, IF(id = 3, NULL, encode(concat('value ', id), 'utf-8')) AS value,
           'given' AS topic,
           IF(id < 5, array(struct('a' AS key, encode('1', 'utf-8') AS value)), NULL) AS headers, 0 AS partition
    FROM range(10)"""


def write(frame, broker, **options: str) -> None:
    options["kafka.bootstrap.servers"] = broker.bootstrap
    frame.write.format("kafscale").options(**options).mode("append").save()


def read(spark, broker, topic: str):
    flush(broker)
    options = {"store": store_of(broker), "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("kafscale").options(**options).load()


def test_every_column_is_read_back(spark, broker):
    write(spark.sql(ALL_COLUMNS), broker)
    rows = {int(row.key): row for row in read(spark, broker, "given").collect()}
    assert sorted(rows) == list(range(10))
    assert rows[3].value is None
    assert bytes(rows[4].value) == b"value 4"
    assert [(each.key, bytes(each.value)) for each in rows[4].headers] == [("a", b"1")]
    assert rows[5].headers is None
    assert {row.partition for row in rows.values()} == {0}


def test_each_key_is_in_the_partition_of_javas_producers_and_in_order(spark, broker):
    frame = spark.sql("SELECT CAST(id % 97 AS STRING) AS key, CAST(id AS STRING) AS value FROM range(0, 5000, 1, 1)")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("keys", 7)])["keys"].result(30)
    write(frame, broker, topic="keys")
    rows = read(spark, broker, "keys").orderBy("partition", "offset").collect()
    assert len(rows) == 5000
    assert all(row.partition == partition_of(bytes(row.key), 7) for row in rows)
    by_key = [(row.partition, bytes(row.key), int(row.value)) for row in rows]
    for key in {key for _, key, _ in by_key}:
        numbers = [number for _, of_key, number in by_key if of_key == key]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_back(spark, broker, codec):
    frame = spark.sql("SELECT CAST(id AS STRING) AS value FROM range(1000)")
    write(frame, broker, topic=codec, **{"kafka.compression.type": codec})
    assert read(spark, broker, codec).selectExpr("sum(CAST(CAST(value AS STRING) AS INT))").collect()[0][0] == 499500


def test_the_option_goes_before_the_column(spark, broker):
    write(spark.sql(ALL_COLUMNS).select("value", "topic"), broker, topic="chosen")
    assert read(spark, broker, "chosen").count() == 10


def test_a_stream_is_written(spark, broker, tmp_path):
    write(spark.sql(ALL_COLUMNS), broker, topic="upstream")
    flush(broker)
    source = spark.readStream.format("kafscale").options(
        store=store_of(broker), subscribe="upstream", startingOffsets="earliest"
    )
    sink = source.load().select("key", "value").writeStream.format("kafscale").trigger(availableNow=True)
    settings = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": "downstream",
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    query = sink.options(**settings).outputMode("append").start()
    assert query.awaitTermination(120)
    assert read(spark, broker, "downstream").count() == 10


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("key", {}, "the column 'value' is required"),
        ("value", {}, "no topic: set the option topic"),
        ("id AS value", {"topic": "t"}, "the column 'value' is bigint"),
        ("value, CAST(NULL AS STRING) AS topic", {}, "a row has null as its topic"),
        ("value", {"topic": "t", "kafka.no.such.setting": "1"}, "no.such.setting"),
        ("value", {"topic": "t", "kafka.value.serializer": "x"}, "cast the column"),
        ("value, 99 AS partition", {"topic": "given", "kafka.message.timeout.ms": "3000"}, "was not delivered"),
    ],
)
def test_rows_that_can_not_be_written_are_refused(spark, broker, columns, options, message):
    frame = spark.sql("SELECT id, 'k' AS key, 'v' AS value FROM range(3)").selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=message):
        write(frame, broker, **options)


def test_a_broker_is_required_and_nothing_is_overwritten(spark, broker):
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match=r"kafka\.bootstrap\.servers is required for writing"):
        frame.write.format("kafscale").option("topic", "t").mode("append").save()
    with pytest.raises(Exception, match="can't be overwritten"):
        frame.write.format("kafscale").options(**{"topic": "t", "kafka.bootstrap.servers": "x"}).mode(
            "overwrite"
        ).save()
