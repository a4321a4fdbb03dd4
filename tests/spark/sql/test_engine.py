"""Statements over a bucket that a broker process has written: right rows, and of the bucket only what they need."""

import json
import re

import pytest

from kafscale.errors import QueryError
from kafscale.spark.bucket.decode import COLUMN_TYPES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

NOW_SECONDS = 1_700_000_240
COLUMNS = [name for name in COLUMN_TYPES if name != "headers"]


@pytest.fixture(scope="module")
def engine(spark, store):
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics

    return Engine(topics=Topics(spark=spark, options={"store": store}, clock=lambda: NOW_SECONDS))


def rows(frame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.collect()]


def segments_read(frame) -> int:
    from tests.spark.sql.spark_plans import splits_of

    return len({range.key for split in splits_of(frame) for range in split.ranges})


@pytest.mark.parametrize(
    ("statement", "found", "segments"),
    [
        ("select count(key) from orders", 240, 8),
        ("select count(key) from `order-lines.v1` where offset >= 90 and partition = 1", 30, 1),
        ("select count(key) from orders where timestamp >= timestamp_millis(1700000180000)", 60, 2),
        ("select count(key) from orders LAST 1 minute", 60, 2),
        ("select count(key) from last('orders', interval 60 seconds)", 60, 2),
        ("select count(key) from last(orders, '1m') o where o.partition = 0", 30, 1),
        ("select count(*) from orders tail 20", 20, 2),
        ("select min(offset) from tail('orders', 20, 1)", 100, 1),
        ("select count(*) from orders LAST 10s TAIL 100", 10, 2),
        ("with x as (select * from orders where offset < 10) select count(key) from x", 20, 2),
        ("with orders as (select * from orders where offset < 10) select count(orders.key) from orders", 20, 2),
        ("select count(*) from (table orders) where offset < 10", 20, 2),
        ('select count(key) from orders with (endingOffsets = \'{"orders":{"0":10,"1":0}}\') o', 10, 1),
        ("select count(orders.key) from orders tablesample (100 percent) where orders.offset < 10", 20, 8),
        ("from orders |> where offset < 10 |> aggregate count(*)", 20, 2),
        ("select count(*) from identifier('orders') where offset < 10", 20, 2),
        (
            "select (select max(offset) from orders where offset < 40) from orders where offset = 7 and partition = 0",
            39,
            4,
        ),
    ],
)
def test_a_statement_reads_only_the_needed_segments(engine, statement, found, segments):
    frame = engine.frame(statement)
    assert rows(frame)[0] == (found,)
    assert segments_read(frame) == segments


def test_a_topic_joined_with_itself_is_bound_on_each_side(engine):
    frame = engine.frame(
        "select count(*), max(o.offset), min(p.offset) from orders o join orders p on o.key = p.key "
        "where o.offset < 30 and p.offset >= 90 and o.partition = 0 and p.partition = 0"
    )
    assert rows(frame) == [(30 * 30 // 5, 29, 90)]
    assert segments_read(frame) == 2


def test_each_side_of_a_union_reads_only_its_segments(engine):
    frame = engine.frame(
        "select offset from orders where offset < 2 union all select offset from orders where offset >= 118"
    )
    assert sorted(rows(frame)) == [(offset,) for offset in (0, 0, 1, 1, 118, 118, 119, 119)]
    assert segments_read(frame) == 4


@pytest.mark.parametrize(
    ("statement", "found", "segments"),
    [
        (
            "with x as (from orders) select a.offset, b.offset from x a, x b where a.offset = 0 and b.offset = 119",
            [(0, 119)] * 4,
            8,
        ),
        (
            "with x as (table orders) select count(*), (select count(*) from x) from x where offset < 2",
            [(4, 240)],
            8,
        ),
        (
            "select offset, (select max(offset) from orders where offset < o.offset) from orders o where offset = 5",
            [(5, 4), (5, 4)],
            8,
        ),
    ],
)
def test_a_condition_of_one_scan_takes_no_rows_from_another_of_the_same_load(engine, statement, found, segments):
    frame = engine.frame(statement)
    assert rows(frame) == found
    assert segments_read(frame) == segments


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("select avg(offset) from orders", ["offset"]),
        ("select avg(offset) from orders where partition = 0 LAST 1 minute", ["partition", "offset", "timestamp"]),
        ("select min(_ts) from orders", ["offset", "timestamp"]),
        ("select o.key from orders o join payments p WITHIN 10m", ["key", "offset", "timestamp"]),
        ("select count(*) from orders as o(k, v, t, p, o, ts, tt)", COLUMNS),
        ("select * from orders", COLUMNS),
        ("select key, headers from orders with (includeHeaders = 'true')", ["key", "offset", "headers"]),
    ],
)
def test_the_columns_that_are_named_are_read(engine, statement, columns):
    leaves = engine.frame(statement)._jdf.queryExecution().optimizedPlan().collectLeaves()
    outputs = [leaves.apply(index).output() for index in range(leaves.size())]
    read = [[output.apply(place).name() for place in range(output.size())] for output in outputs]
    assert [sorted(each) for each in read] == [sorted(columns)] * len(read)


def test_topics_are_joined_in_a_window_of_time(engine):
    frame = engine.frame(
        "select o.offset, l.offset from orders o join `order-lines.v1` l on o.key = l.key "
        "and l.timestamp between o.timestamp - interval 5 seconds and o.timestamp + interval 5 seconds "
        "where o.offset < 3 and o.partition = 0 order by 1"
    )
    assert rows(frame) == [(0, 0), (1, 1), (2, 2)]


def test_the_next_statement_sees_new_records(spark, tmp_path):
    import attrs

    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics
    from kafscale.store.paths import SegmentKey
    from tests.devtools.fakes.segment_objects import make_batches, version_2_objects

    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 10)).write_to(tmp_path)
    engine = Engine(topics=Topics(spark=spark, options={"store": f"file:{tmp_path}"}))
    assert rows(engine.frame("select count(*) from t")) == [(30,)]
    version_2_objects(attrs.evolve(key, base_offset=30), make_batches(30, 10)).write_to(tmp_path)
    assert rows(engine.frame("select count(*) from t")) == [(60,)]
    assert rows(engine.frame("select max(offset) from t tail 5")) == [(59,)]


def test_a_description(engine):
    assert [row[0] for row in rows(engine.frame("describe orders"))][:3] == ["key", "value", "topic"]
    plan = rows(engine.frame("explain select * from orders where offset < 5"))[0][0]
    assert "BatchScan kafscale" in plan
    assert re.search(r"^Reads orders: [\d,]+ bytes of 2 segments$", plan, re.MULTILINE)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("select * from ordrs", r"no topic, table or view 'ordrs' \(topics: orders\)"),
        ("select * from tail('ordrs', 5)", r"no topic, table or view 'ordrs' \(topics: orders\)"),
        ("select * from last('orders')", "called in another way"),
        ("select * from last('orders', interval 1 month)", "called in another way"),
        ("select * from tail('orders', 5, 7)", "no partition 7"),
        ("create temp view v as select * from orders", "name the query by WITH"),
        ("select * from stream orders", "spark.readStream"),
        ("begin select * from orders; end", "one by one"),
        ("selct 1", "Syntax error at or near 'selct'"),
        ("select nothing from orders", "`nothing` cannot be resolved"),
        ("delete from orders where offset = 1", "orders"),
    ],
)
def test_wrong_statements_are_refused(engine, statement, told):
    with pytest.raises(QueryError, match=told):
        engine.frame(statement)


def test_no_views_are_left_behind(spark, engine):
    engine.frame("select * from orders o, orders p")
    with pytest.raises(QueryError):
        engine.frame("select nothing from orders")
    assert spark.catalog.listTables() == []


def test_a_refused_scan_states_how_many_bytes_would_be_read(spark, store):
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.failures import spark_errors
    from kafscale.spark.sql.topics import Topics

    limited = Engine(topics=Topics(spark=spark, options={"store": store}, max_scan_bytes=5000))
    with (
        pytest.raises(QueryError, match=r"would read [\d,]+ bytes of orders, and maxScanBytes is 5,000"),
        spark_errors(),
    ):
        limited.frame("select count(key) from orders").collect()
    assert rows(limited.frame("select count(*) from orders where offset < 5")) == [(10,)]
    assert rows(limited.frame("select count(*) from orders scan full")) == [(240,)]


def test_rows_as_text(engine):
    from kafscale.spark.sql.answers import SparkAnswer

    frame = engine.frame(
        "select key, x'ff00' as raw, key, timestamp, cast(null as int) as nothing, '' as empty, '\"a\",b' as quoted, "
        "named_struct('a', 1) as nested from orders where partition = 1 and offset < 2 order by offset"
    )
    assert SparkAnswer(frame).first_cells(1).rows == [
        ("key 1", "0xFF00", "key 1", "2023-11-14 22:13:21", None, "", '"a",b', "{1}")
    ]
    assert SparkAnswer(frame).first_cells(1).has_more
    assert not SparkAnswer(frame).first_cells(2).has_more
    header, first, _ = SparkAnswer(frame).csv_lines()
    assert header == "key,raw,key,timestamp,nothing,empty,quoted,nested\n"
    assert first == 'key 1,0xFF00,key 1,2023-11-14 22:13:21,,"","""a"",b",{1}\n'
    first, _ = map(json.loads, SparkAnswer(frame).json_lines())
    assert first == {
        "key": "key 1",
        "raw_base64": "/wA=",
        "key_2": "key 1",
        "timestamp": "2023-11-14T22:13:21.000Z",
        "empty": "",
        "quoted": '"a",b',
        "nested": {"a": 1},
    }


def test_rows_as_parquet(spark, engine, tmp_path):
    from kafscale.spark.sql.answers import SparkAnswer

    frame = engine.frame("select o.key, p.key from orders o join orders p using (offset, partition)")
    SparkAnswer(frame).write_parquet(f"{tmp_path}/x")
    found = spark.read.parquet(f"{tmp_path}/x")
    assert found.columns == ["key", "key_2"]
    assert found.count() == 240


@pytest.fixture
def engine_of_two(spark, tmp_path):
    """Of a bucket with a topic t, and one that nothing was flushed of, which the metadata alone tell of."""
    from kafscale.spark.sql.engine import Engine
    from kafscale.spark.sql.topics import Topics
    from kafscale.store.paths import SegmentKey
    from tests.devtools.fakes.segment_objects import make_batches, version_2_objects
    from tests.spark.topic_checkpoints import TopicCheckpoints

    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 2)).write_to(tmp_path)
    checkpoints = TopicCheckpoints(directory=tmp_path)
    checkpoints.create("t", bytes(16))
    checkpoints.create("nothing-yet", bytes(15) + b"\1", 2)
    checkpoints.write()
    return Engine(topics=Topics(spark=spark, options={"store": f"file:{tmp_path}"}))


@pytest.mark.parametrize(
    "statement",
    [
        "select value from `nothing-yet`",
        "select value from `nothing-yet` tail 5",
        "select value from last('nothing-yet', '15m')",
        "select n.value from `nothing-yet` n join t on n.offset = t.offset",
    ],
)
def test_an_empty_topic_has_no_rows(engine_of_two, statement):
    assert rows(engine_of_two.frame(statement)) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("insert into t values (1)", "'t' is a topic, and SQL only reads topics: no INSERT"),
        ("insert into `nothing-yet` select * from t", "'nothing-yet' is a topic, and SQL only reads topics"),
        ("delete from t where offset = 1", "SQL only reads topics: no DELETE"),
        ("update t set value = null", "SQL only reads topics: no UPDATE"),
        ("select * from t timestamp as of '2026-01-01'", "'t' is a topic, which has no versions: TIMESTAMP AS OF"),
        ("select * from t version as of 3", "'t' is a topic, which has no versions"),
        ("insert into u values (1)", "there is no topic, table or view 'u'"),
    ],
)
def test_a_write_to_a_topic_is_refused_as_read_only(engine_of_two, statement, told):
    with pytest.raises(QueryError, match=re.escape(told)):
        engine_of_two.frame(statement)


def test_a_table_of_the_source_suggests_a_view_and_takes_options_by_with(spark, engine_of_two):
    """Spark gives a source in Python none of a table's options when it reads: it can only be said."""
    store = engine_of_two.topics.options["store"]
    spark.sql(f"CREATE TEMPORARY VIEW given USING kafscale OPTIONS (store '{store}', subscribe 't')")
    assert spark.sql("SELECT count(*) FROM given").first()[0] == 6
    spark.catalog.dropTempView("given")
    spark.sql(f"CREATE TABLE kept USING kafscale OPTIONS (store '{store}', subscribe 't')")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW … USING kafscale OPTIONS"):
            spark.sql("SELECT count(*) FROM kept").collect()
        with_options = f"SELECT count(*) FROM kept WITH (store = '{store}', subscribe = 't')"
        assert spark.sql(with_options).first()[0] == 6
    finally:
        spark.sql("DROP TABLE kept")
