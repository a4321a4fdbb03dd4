"""Records that only the write-ahead log in the bucket has: which of them are read, and that each is read once."""

import pytest

from kafscale.errors import AccessDenied
from kafscale.formats.wal_objects import WalPosition
from kafscale.formats.wal_runs import wal_key
from kafscale.spark.bucket import log_objects
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import Extent, plan
from tests.spark.logged_bucket import TOPIC, TOPIC_ID, LoggedBucket, batch, change, marker, topic_of


@pytest.fixture
def bucket(tmp_path) -> LoggedBucket:
    """A topic of one partition, in the log alone."""
    made = LoggedBucket(tmp_path)
    made.create_topic()
    return made


def test_acknowledged_records_are_read_before_a_flush(bucket):
    bucket.log([batch(0, b"a", b"b"), batch(2, b"c")])
    bucket.log([batch(3, b"d")])
    catalog = bucket.catalog()
    assert catalog.topics() == [TOPIC]
    assert catalog.partitions(TOPIC)[0].topic_id == TOPIC_ID
    assert bucket.read(catalog) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_records_in_segments_and_log_are_read_once(bucket):
    bucket.log([batch(0, b"a", b"b")])
    bucket.log([batch(2, b"c")])
    bucket.flush(0, b"a", b"b")
    assert bucket.read() == [(0, b"a"), (1, b"b"), (2, b"c")]
    bucket.flush(2, b"c")
    assert bucket.read() == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_gap_in_the_numbers_ends_the_log(bucket):
    """The missing object may be on its way, or never come: what is behind it was not acknowledged."""
    bucket.log([batch(0, b"a")])
    missing = bucket.directory / bucket.log([batch(0, b"of others", partition=1)]).key
    bucket.log([batch(1, b"b")], durable=2)
    content = missing.read_bytes()
    missing.unlink()
    assert bucket.read() == [(0, b"a")]
    missing.write_bytes(content)
    assert bucket.read() == [(0, b"a"), (1, b"b")]


def test_an_offset_gap_in_the_log_ends_the_read(bucket):
    bucket.log([batch(0, b"a")])
    bucket.log([batch(2, b"c")])
    assert bucket.read() == [(0, b"a")]


def test_objects_behind_a_fence_are_not_believed(bucket):
    bucket.log([batch(0, b"a")])
    bucket.fence(0, 3, by=1)
    bucket.log([batch(1, b"never acknowledged")], number=4, durable=2)
    assert bucket.read() == [(0, b"a")]
    bucket.log([batch(1, b"b", epoch=1)], epoch=1)
    bucket.checkpoint(WalPosition(1, 0))
    assert bucket.read() == [(0, b"a"), (1, b"b")]


def test_a_later_epoch_wins_over_a_segment_that_came_late(bucket):
    bucket.flush(0, b"a")
    bucket.flush(1, b"late", b"later still")
    bucket.fence(0, 2, by=1)
    bucket.log([batch(1, b"b", epoch=1)], epoch=1)
    assert bucket.read() == [(0, b"a"), (1, b"b")]


def test_entries_behind_the_end_of_an_epoch_are_not_read(bucket):
    bucket.flush(0, b"a", epoch=1)
    bucket.log([batch(1, b"of before")])
    assert bucket.read() == [(0, b"a")]


def test_an_epoch_without_its_end_is_listed_again(bucket):
    """Its broker went on, and was followed, between two pages of the listing."""
    bucket.log([batch(0, b"a")])
    bucket.log([batch(1, b"b")])
    fence = bucket.fence(0, 4, by=1)
    bucket.log([change(topics__u=topic_of(bytes(16), 1))], epoch=1)
    catalog = bucket.catalog()
    listed, opened = [], catalog.bucket.bucket.list

    def list_between(prefix, start_after=""):
        listed.append(prefix)
        infos = list(opened(prefix, start_after))
        is_early = prefix.endswith("/wal/") and listed.count(prefix) == 1
        return iter(
            [info for info in infos if not is_early or info.key not in (fence.key, wal_key("default", 0, 3).key)]
        )

    catalog.bucket.bucket = type("Paged", (), {"list": staticmethod(list_between), "get": catalog.bucket.bucket.get})()
    assert catalog.topics() == [TOPIC, "u"]
    assert listed.count("_kafscale/default/wal/") == 2


def test_trimmed_entries_are_not_a_gap(bucket):
    first = bucket.log([batch(0, b"a")])
    second = bucket.log([batch(0, b"x", partition=1)])
    bucket.log([batch(1, b"b")])
    bucket.flush(0, b"a")
    bucket.checkpoint(WalPosition(0, 3))
    bucket.delete(wal_key("default", 0, 1))
    bucket.delete(first)
    bucket.delete(second)
    assert bucket.read() == [(0, b"a"), (1, b"b")]


def test_a_log_object_deleted_before_its_read_is_read_from_a_segment(bucket):
    gone = bucket.log([batch(0, b"a")])
    bucket.log([batch(1, b"b")])
    catalog = bucket.catalog()

    def flush(key: str) -> None:
        if key == gone.key:
            catalog.bucket.before_get = lambda key: None
            bucket.flush(0, b"a")
            bucket.checkpoint(WalPosition(0, 3))
            bucket.delete(wal_key("default", 0, 1))
            bucket.delete(gone)

    catalog.bucket.before_get = flush
    assert bucket.read(catalog) == [(0, b"a"), (1, b"b")]


def test_metadata_deleted_before_its_read_is_read_from_a_newer_checkpoint(tmp_path):
    bucket = LoggedBucket(tmp_path)
    bucket.log([change(topics__other=topic_of(bytes(16), 1))])
    bucket.create_topic()
    catalog = bucket.catalog()

    def trim(key: str) -> None:
        catalog.bucket.before_get = lambda key: None
        bucket.checkpoint(WalPosition(0, 2))
        bucket.delete(wal_key("default", 0, 1))
        bucket.delete(wal_key("default", 0, 2))
        bucket.log([batch(0, b"a")])

    catalog.bucket.before_get = trim
    assert bucket.read(catalog) == [(0, b"a")]


def test_an_object_that_goes_between_plan_and_read_is_read_from_its_segment(bucket):
    gone = bucket.log([batch(0, b"a"), batch(1, b"b")])
    bucket.log([batch(2, b"c")])
    catalog = bucket.catalog()
    assert catalog.partitions(TOPIC)[0].end_offset == 3

    def flush(key: str) -> None:
        catalog.bucket.before_get = lambda key: None
        bucket.flush(0, b"a", b"b")
        bucket.checkpoint(WalPosition(0, 3))
        bucket.delete(gone)

    catalog.bucket.before_get = flush
    assert bucket.read(catalog) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_objects_are_got_once(bucket):
    for offset in range(5):
        bucket.log([batch(offset, b"%d" % offset)])
    catalog = bucket.catalog()
    assert len(bucket.read(catalog)) == 5
    assert catalog._reader.log.read_count == 6
    bucket.log([batch(5, b"5")])
    catalog.look_again()
    assert len(bucket.read(catalog)) == 6
    assert catalog._reader.log.read_count == 7


def test_a_task_gets_an_object_once_for_all_of_its_partitions(tmp_path):
    bucket = LoggedBucket(tmp_path)
    bucket.create_topic(partition_count=3)
    logged = bucket.log([batch(0, b"%d" % index, partition=index) for index in range(3)])
    catalog = bucket.catalog()
    logs = catalog.partitions(TOPIC).values()
    splits = plan(catalog, [Extent(log=each, start_offset=0, end_offset=1) for each in logs])
    catalog.bucket.requests.clear()
    reader = SplitReader(
        bucket=catalog.bucket, namespace="default", columns=["value"], fail_on_data_loss=True, with_log=True
    )
    assert [row["value"] for rows in reader.read_all(splits) for row in rows.to_pylist()] == [b"0", b"1", b"2"]
    assert catalog.bucket.requests == [f"get {logged.key}"]


def test_metadata_is_as_new_as_the_log(bucket):
    bucket.log([batch(0, b"a"), batch(1, b"b")])
    bucket.log([change(**{f"log-start-offsets/{TOPIC_ID.hex()}/0": 1})])
    assert bucket.read() == [(1, b"b")]
    other = bytes(reversed(range(16)))
    deletion = {f"deleted-topics/{TOPIC_ID.hex()}": {"name": "t", "deleted_ms": 1}}
    bucket.log([change(topics__t=topic_of(other, 2), **deletion)])
    logs = bucket.catalog().partitions(TOPIC)
    assert [(each.topic_id, each.end_offset) for each in logs.values()] == [(other, 0), (other, 0)]


# ---- transactions ---------------------------------------------------------------------------------------------------


def test_committed_records_end_before_an_open_transaction(bucket):
    bucket.log([batch(0, b"plain"), batch(1, b"open", producer_id=7), batch(2, b"behind")])
    assert bucket.read(bucket.catalog(committed_only=True)) == [(0, b"plain")]
    assert [offset for offset, _ in bucket.read()] == [0, 1, 2]
    bucket.log([marker(3, 7, is_commit=True)])
    assert bucket.read(bucket.catalog(committed_only=True)) == [(0, b"plain"), (1, b"open"), (2, b"behind")]


def test_transactions_aborted_in_the_log_are_skipped(bucket):
    bucket.log([batch(0, b"a", producer_id=7), batch(1, b"b", producer_id=8)])
    bucket.log([marker(2, 7, is_commit=False), marker(3, 8, is_commit=True), batch(4, b"c", producer_id=7)])
    assert bucket.read(bucket.catalog(committed_only=True)) == [(1, b"b")]
    bucket.log([marker(5, 7, is_commit=False), batch(6, b"d")])
    assert bucket.read(bucket.catalog(committed_only=True)) == [(1, b"b"), (6, b"d")]


# ---- what can't be read ---------------------------------------------------------------------------------------------


def test_a_missing_object_that_was_acknowledged_is_damage(bucket):
    bucket.flush(0, b"a")
    bucket.log([batch(1, b"b")])
    bucket.log([batch(2, b"c")], number=4, durable=3)
    catalog = bucket.catalog()
    assert "it had been acknowledged" in str(catalog.present.damage)
    assert bucket.read(catalog) == [(0, b"a")]


def test_a_reader_denied_the_log_reads_only_segments(bucket, caplog):
    bucket.flush(0, b"a")
    bucket.log([batch(1, b"b")])
    catalog = bucket.catalog()

    def refuse(key: str) -> None:
        if key.endswith(".wal"):
            raise AccessDenied(key)

    catalog.bucket.before_get = refuse
    for _ in range(2):
        assert bucket.read(catalog) == [(0, b"a")]
        catalog.look_again()
    assert caplog.text.count("reading flushed records alone") == 1


def test_the_bytes_of_the_newest_objects_are_kept_and_no_more_than_allowed(bucket, monkeypatch):
    keys = [bucket.log([batch(offset, b"x" * 1000)]) for offset in range(6)]
    monkeypatch.setattr(log_objects, "KEPT_BYTES", 3500 + 3 * 200)
    monkeypatch.setattr(log_objects, "SMALL_READS_AT_ONCE_COUNT", 1)  # in order
    catalog = bucket.catalog()
    assert len(bucket.read(catalog)) == 6
    assert list(catalog.log_contents) == keys[3:]
    assert all(data == (bucket.directory / key.key).read_bytes() for key, data in catalog.log_contents.items())
    bucket.flush(0, *[b"x" * 1000] * 5)
    bucket.checkpoint(WalPosition(0, 6))
    for key in [wal_key("default", 0, 1), *keys[:5]]:
        bucket.delete(key)
    catalog.look_again()
    assert len(bucket.read(catalog)) == 6
    assert list(catalog.log_contents) == keys[5:]
