"""Rows that are produced through a broker, and read back."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

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

# By columns, and by librdkafka, which alone knows this setting.
PRODUCERS = [{}, {"kafka.client.id": "by-librdkafka"}]


def write(frame, broker, **options: str) -> None:
    options["kafka.bootstrap.servers"] = broker.bootstrap
    frame.write.format("kafscale").options(**options).mode("append").save()


def read(spark, broker, topic: str):
    flush(broker)
    options = {"store": store_of(broker), "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("kafscale").options(**options).load()


@pytest.mark.parametrize("settings", PRODUCERS)
def test_every_column_is_read_back(spark, broker, settings):
    topic = f"given-{len(settings)}"
    write(spark.sql(ALL_COLUMNS.replace("'given'", f"'{topic}'")), broker, **settings)
    rows = {int(row.key): row for row in read(spark, broker, topic).collect()}
    assert sorted(rows) == list(range(10))
    assert rows[3].value is None
    assert bytes(rows[4].value) == b"value 4"
    assert [(each.key, bytes(each.value)) for each in rows[4].headers] == [("a", b"1")]
    assert rows[5].headers is None
    assert {row.partition for row in rows.values()} == {0}


def test_both_producers_have_each_key_in_the_same_partition_and_in_order(spark, broker):
    frame = spark.sql("SELECT CAST(id % 97 AS STRING) AS key, CAST(id AS STRING) AS value FROM range(0, 5000, 1, 1)")
    found = []
    for number, settings in enumerate(PRODUCERS):
        topic = f"keys-{number}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(topic, 7)])[topic].result(30)
        write(frame, broker, topic=topic, **settings)
        rows = read(spark, broker, topic).orderBy("partition", "offset").collect()
        found.append([(row.partition, bytes(row.key), bytes(row.value)) for row in rows])
    assert len(found[0]) == 5000
    assert found[0] == found[1]


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
