"""What the embedded engine reads of a bucket, what it leaves to Spark, and how it fails."""

import json

import pytest

from kafscale.errors import QueryError
from kafscale.spark.bucket.bucket import DirectoryBucket
from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.duckdb import scans
from kafscale.spark.duckdb.engine import DuckDBEngine
from kafscale.spark.duckdb.kinds import NoTable, NotAlike, TooMuch
from kafscale.spark.duckdb.scans import ScanReading, TopicRead
from kafscale.spark.sql.topics import BucketTopics
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import make_batches, version_2_objects
from tests.spark.logged_bucket import LoggedBucket, batch
from tests.spark.sql_topics import NOW_SECONDS, write_topics


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return write_topics(tmp_path_factory.mktemp("bucket"))


@pytest.fixture(scope="module")
def engine(store):
    return DuckDBEngine(topics=BucketTopics(options={"store": store}, clock=lambda: NOW_SECONDS))


def rows(engine, statement: str) -> list[tuple[str | None, ...]]:
    answer = engine.answer(statement)
    cells = answer.first_cells(10_000)
    answer.close()
    return [tuple(row) for row in cells.rows]


@pytest.fixture
def planned(monkeypatch):
    """Of each scan: how many segments it reads, and the columns that it decodes."""
    found = []
    read = TopicRead.records

    def noting(self, planned, columns, reading):
        found.append((len({each.key for split in planned for each in split.ranges}), set(columns)))
        return read(self, planned, columns, reading)

    monkeypatch.setattr(TopicRead, "records", noting)
    return found


@pytest.mark.parametrize(
    ("statement", "segments"),
    [
        ("select count(key) from orders", 8),
        ("select count(key) from orders where partition = 1", 4),
        ("select count(key) from `order-lines.v1` where offset >= 90 and partition = 1", 1),
        ("select count(*) from orders where offset in (3, 44) and key is not null", 4),
        ("select count(*) from orders where (offset = 3 or offset = 7) and value like '%a%'", 2),
        ("select count(*) from orders where not (offset >= 30)", 2),
        ("select count(key) from orders where timestamp >= '2023-11-14 22:16:20'", 2),
        ("select count(key) from orders where timestamp > now() - interval 1 minute", 2),
        ("select count(key) from orders LAST 1 minute", 2),
        ("select count(key) from last(orders, '1m') o where o.partition = 0", 1),
        ("select min(offset) from tail('orders', 20, 1)", 1),
        ("with x as (select * from orders where offset < 10) select count(*) from x", 2),
        ("select count(*) from orders where offset > 5 and offset < 5", 0),
        ("select count(*) from orders where partition = 1 and partition = 2", 0),
    ],
)
def test_a_condition_spares_segments(engine, planned, statement, segments):
    rows(engine, statement)
    assert sum(count for count, _ in planned) == segments


def test_each_reference_to_a_topic_keeps_separate_conditions(engine, planned):
    statement = (
        "select count(*) from orders o join orders p on o.key = p.key "
        "where o.offset < 30 and p.offset >= 90 and o.partition = 0 and p.partition = 0"
    )
    assert rows(engine, statement) == [(str(30 * 30 // 5),)]
    assert [count for count, _ in planned] == [1, 1]


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("select count(*) from orders tail 300", {"offset", "partition", "timestamp"}),
        ("select count(distinct timestamp) from orders", {"timestamp"}),
        ("select key from orders where offset < 5", {"key", "offset"}),
        ("select x.key from (select * from orders) x", {"key"}),
        ("select _key from orders", {"key"}),
        ("select * from orders", set(COLUMN_TYPES) - {"headers"}),
    ],
)
def test_only_the_columns_that_are_needed_are_decoded(engine, planned, statement, columns):
    rows(engine, statement)
    assert [names for _, names in planned] == [columns]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("select count(*), min(offset), max(offset), max(timestamp) from orders", "240,0,119,2023-11-14 22:17:19"),
        ("select count(offset) from orders where partition = 1", "120"),
        ("select count(*) + 1 as n from orders where offset >= 30 and offset <= 59", "61"),
        ("select max(_ts), count(1) from orders where _offset < 60", "2023-11-14 22:15:19,120"),
        (
            "select count(*) from orders o where o.timestamp <= '2023-11-14 22:14:19' and o.offset between 0 and 29",
            "60",
        ),
        ("select count(*) from orders where offset > 5 and offset < 5", "0"),
        ("select min(timestamp), max(timestamp) from orders", "2023-11-14 22:13:20,2023-11-14 22:17:19"),
        (
            "select count(*), min(timestamp) from orders where timestamp >= '2023-11-14 22:16:20'",
            "60,2023-11-14 22:16:20",
        ),
        ("select max(offset) from orders where partition = 7", ""),
        ("select max(partition) from orders where 90 <= offset", "1"),
    ],
)
def test_totals_of_footers_read_no_segment(engine, planned, statement, found):
    reading = ScanReading()
    answer = engine.answer(statement, reading)
    assert list(answer.csv_lines())[1:] == [f"{found}\n" if found else "\n"]
    answer.close()
    assert planned == []
    assert (reading.is_planned, reading.planned_bytes) == (True, 0)


@pytest.mark.parametrize(
    "statement",
    [
        "select count(*) from orders where offset < 5",  # a batch of which some is wanted
        "select count(*) from orders where timestamp >= '2023-11-14 22:16:21'",  # alike
        "select count(*) from orders LAST 59s",
    ],
)
def test_totals_that_footers_do_not_tell_are_read(engine, planned, statement):
    reading = ScanReading()
    answer = engine.answer(statement, reading)
    assert len(list(answer.csv_lines())) == 2
    answer.close()
    assert planned == []
    assert 0 < reading.read_bytes == reading.planned_bytes


@pytest.mark.parametrize(
    "statement",
    [
        "select partition as key, count(*) as n from orders group by key",
        "select count(*) as offset from orders having offset > 5",
        "select topic, count(*) as n from orders group by partition",
    ],
)
def test_a_name_means_a_column_of_the_topic_also_where_totals_have_none(engine, statement):
    with pytest.raises(NotAlike):
        rows(engine, statement)


def test_fields_of_values_were_taken_for_the_topics_own_columns_of_their_names(store):
    """Their names are those of columns of which footers tell. No value here is one of a registry, or has a field."""
    properties = {name: {"type": "integer"} for name in ("offset", "partition", "timestamp")}
    schema = json.dumps({"type": "object", "properties": properties})
    values = {"valueFormat": "json", "valueSchema": schema, "schemaRegistryUrl": "http://127.0.0.1:1"}
    engine = DuckDBEngine(topics=BucketTopics(options={"store": store, **values}))
    fields = "count(decoded.value.offset), max(decoded.value.timestamp), min(decoded.value.partition)"
    assert rows(engine, f"select {fields} from orders") == [("0", None, None)]
    assert rows(engine, "select count(*) from orders where decoded.value.offset >= 0") == [("0",)]
    assert rows(engine, "select count(*) from orders where offset >= 0") == [("240",)]


def test_rows_come_before_all_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("kafscale.spark.bucket.splits.SPLIT_BYTES", 1000)
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 2000)).write_to(tmp_path)
    engine = DuckDBEngine(topics=BucketTopics(options={"store": f"file:{tmp_path}"}))
    reading = ScanReading()
    answer = engine.answer("select value from t", reading)
    assert 0 < reading.read_bytes < reading.planned_bytes
    assert len(list(answer.csv_lines())) == 6001
    assert reading.read_bytes == reading.planned_bytes
    answer.close()


def test_objects_of_the_log_are_got_once_for_all_partitions(tmp_path, monkeypatch):
    made, got = LoggedBucket(tmp_path), []
    made.create_topic(partition_count=2)
    made.flush(0, b"a")  # so that the topic is listed
    for offset in range(3):
        made.log([batch(offset, b"a"), batch(offset, b"b", partition=1)])
    for name in ("get", "get_range"):
        read = getattr(DirectoryBucket, name)
        monkeypatch.setattr(DirectoryBucket, name, lambda *asked, read=read: got.append(asked[1]) or read(*asked))
    engine = DuckDBEngine(topics=BucketTopics(options={"store": f"file:{tmp_path}"}))
    assert rows(engine, "select sum(offset), min(value), max(value) from t") == [("6", "a", "b")]
    read_objects = [key for key in got if key.endswith(".wal")]
    assert sorted(read_objects) == sorted(set(read_objects))
    assert len(read_objects) == 4


def test_an_answer_that_is_given_up_leaves_the_next_one_alone(engine):
    answer = engine.answer("select * from orders")
    assert answer.first_cells(1).has_more
    answer.close()
    assert rows(engine, "select count(*) from orders") == [("240",)]


@pytest.mark.parametrize(
    "statement",
    [
        "selct 1",
        "insert into orders values (1)",
        "delete from orders where offset = 1",
        "select * from orders timestamp as of '2026-01-01'",
        "explain select 1",
        "create temp view v as select 1",
        "from orders |> where offset < 10",
        "select * from lake.shop.customers",
        "select * from parquet.`/tmp/x`",
        "select * from read_csv('/etc/passwd')",
        "select * from range(5)",
        "select * from '/etc/passwd'",
        "values (1)",
        "select upper('a')",
        "select key from orders group by all",
        "select count(*) from orders tablesample (10 percent)",
        "select row_number() over (partition by key order by offset) as n from orders",
        "select * from orders natural join payments",
        "select * from orders join payments using (key)",
        "select * exclude (key) from orders",
        "with recursive x as (select 1 as a) select * from x",
        "select _segment from orders",
        "select 10L as x",
        "select 3.0D as x",
        "select 1e5 as x",
        "select x'00' as x",
        "select 'a\\'b' as x",
        "select 'it''s' as x",
        "select 'a' 'b'",
        "select 1 as 'x'",
        "select cast('1.5' as int) as x",
        "select cast(cast('1.5' as double) as int) as x",
        "select offset / 0 as x from orders",
        "select offset % 0 as x from orders",
        "select cast(json_value(value, '$.status') as int) as x from orders",
        "select json_value('{\"a\":1e10}', '$.a') as x",
        "select json_value('{\"a\":1} trailing', '$.a') as x",
        "select json_value('{\"a\":1,}', '$.a') as x",
        "select json_value('{\"a\":1,\"b\": NaN}', '$.a') as x",
        "select json_value('{\"a\":{\"b\":1.50}}', '$.a') as x",
        "select json_value('{\"a\":0.001}', '$.a') as x",
        "select json_value(value, '$.*') as x from orders",
        "select cast(key as string) as x from rare",
        "select cast(timestamp as string) as x from rare",
        "select key = 1 as x from orders",
        "select nothing from orders",
        "select offset from orders, payments",
        "select offset as x, key as x from orders order by x",
        "select timestamp - timestamp as x from orders",
        "select interval 1 day as x",
        "select timestamp '2020-01-01 00:00:00'",
        "select 1 where 1",
        "select count(*) filter (where offset > 1) as x from orders",
        "select sum(offset) as x from orders group by grouping sets ((key), ())",
        "select key from orders order by offset limit 5 + 5",
        "select case when offset = 1 then 'a' else 1 end as x from orders",
        "select offset in (1, 'a') as x from orders",
        "select 2147483647 + 1 as x",
        "select 9223372036854775807 + offset as x from orders where offset > 0",
    ],
)
def test_statements_that_spark_answers_differently_are_left_to_spark(engine, statement):
    with pytest.raises(NotAlike):
        rows(engine, statement)


def test_an_unknown_table_is_named_in_the_error(engine):
    with pytest.raises(NoTable) as caught:
        rows(engine, "select * from ordrs")
    assert caught.value.name == "ordrs"


def test_a_statement_that_would_read_too_much_reads_nothing(store, planned):
    engine = DuckDBEngine(topics=BucketTopics(options={"store": store}), max_bytes=6000)
    with pytest.raises(TooMuch, match=r"it would read [\d,]+ bytes or more, and --duckdb-max-bytes is 6,000"):
        rows(engine, "select count(key) from orders")
    assert planned == []
    assert rows(engine, "select count(*) from orders where offset < 5") == [("10",)]


def test_a_refused_scan_states_how_many_bytes_would_be_read(store):
    engine = DuckDBEngine(topics=BucketTopics(options={"store": store}, max_scan_bytes=6000))
    with pytest.raises(QueryError, match=r"would read [\d,]+ bytes of orders, and maxScanBytes is 6,000"):
        rows(engine, "select count(key) from orders")
    assert rows(engine, "select count(*) from orders where offset < 5") == [("10",)]
    assert rows(engine, "select count(*) from orders scan full") == [("240",)]


def test_a_damaged_segment_gives_the_same_error_as_the_spark_source(tmp_path):
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 10)).write_to(tmp_path)
    path = tmp_path / key.key
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    engine = DuckDBEngine(topics=BucketTopics(options={"store": f"file:{tmp_path}"}))
    with pytest.raises(QueryError, match="Some data may have been lost; to go on without it, set the option"):
        rows(engine, "select max(value) from t")


def test_an_empty_topic_has_no_rows(tmp_path):
    from tests.spark.topic_checkpoints import TopicCheckpoints

    checkpoints = TopicCheckpoints(directory=tmp_path)
    checkpoints.create("nothing-yet", bytes(15) + b"\1", 2)
    checkpoints.write()
    engine = DuckDBEngine(topics=BucketTopics(options={"store": f"file:{tmp_path}"}))
    assert rows(engine, "select value from `nothing-yet`") == []
    assert rows(engine, "select value from `nothing-yet` tail 5") == []
    assert rows(engine, "select count(*), max(offset) from last('nothing-yet', '15m')") == [("0", None)]


def test_the_next_statement_sees_new_records(tmp_path):
    key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
    version_2_objects(key, make_batches(0, 10)).write_to(tmp_path)
    engine = DuckDBEngine(topics=BucketTopics(options={"store": f"file:{tmp_path}"}))
    assert rows(engine, "select count(*) from t") == [("30",)]
    later = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=30)
    version_2_objects(later, make_batches(30, 10)).write_to(tmp_path)
    assert rows(engine, "select count(*) from t") == [("60",)]


def test_a_statement_can_be_ended_from_another_thread(engine, monkeypatch):
    """As Ctrl-C in the shell ends it."""
    read = scans.TopicRead.records

    def interrupting(self, splits, columns, reading):
        engine.interrupt()
        return read(self, splits, columns, reading)

    monkeypatch.setattr(scans.TopicRead, "records", interrupting)
    with pytest.raises(KeyboardInterrupt):
        rows(engine, "select count(*) from orders o, orders p, orders q, orders r")


@pytest.mark.timeout(20)
def test_conditions_within_conditions_are_translated_once(engine):
    """Each level took twice as long as the one inside of it."""
    depth = 40
    statement = f"select count(*) from orders where {'not (' * depth}offset >= 0{')' * depth}"
    assert rows(engine, statement) == rows(engine, "select count(key) from orders")
