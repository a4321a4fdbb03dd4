"""Records that only streams have, where several brokers share a bucket: all are read, in the order of their leaders."""

import pytest

from kafscale.cluster.membership.records import NEXT_NUMBER_KEY
from kafscale.formats.wal_objects import WalPosition
from kafscale.spark.bucket.metadata import SHARED_KEY
from tests.spark.logged_bucket import CountingBucket, LoggedBucket, batch

ALONE_UNTIL = 3


@pytest.fixture
def bucket(tmp_path) -> LoggedBucket:
    made = LoggedBucket(tmp_path)
    made.checkpoint(WalPosition(ALONE_UNTIL, 70), 2, is_shared=True)
    return made


def test_the_shared_bucket_key_equals_the_brokers_metadata_key():
    assert SHARED_KEY == NEXT_NUMBER_KEY


def test_live_streams_are_read_side_by_side(bucket):
    bucket.log([batch(0, b"a", epoch=4)], epoch=4)
    bucket.log([batch(0, b"x", partition=1, epoch=5)], epoch=5)
    bucket.log([batch(1, b"b", epoch=4)], epoch=4)
    assert bucket.read() == [(0, b"a"), (1, b"b")]
    assert bucket.read(partition=1) == [(0, b"x")]


def test_a_trimmed_stream_begins_at_its_first_remaining_object(bucket):
    """Nothing but its own objects tells up to where it was."""
    for offset in range(6):
        key = bucket.log([batch(offset, b"%d" % offset, epoch=4)], epoch=4)
        bucket.flush(offset, b"%d" % offset, epoch=4) if offset < 4 else None
        if offset < 3:
            bucket.delete(key)
    bucket.log([batch(0, b"x", partition=1, epoch=5)], epoch=5)
    expected = [(offset, b"%d" % offset) for offset in range(6)]
    assert bucket.read() == expected
    assert bucket.catalog().present.damage is None


def test_objects_behind_a_gap_were_not_acknowledged(bucket):
    bucket.log([batch(0, b"a", epoch=4)], epoch=4)
    bucket.log([batch(2, b"c", epoch=4)], epoch=4, number=3, durable=1)
    assert bucket.read() == [(0, b"a")]


def test_a_partition_that_was_taken_over_is_read_in_the_order_of_its_leaders(bucket):
    """The older incarnation of the two has led it last."""
    bucket.log([batch(0, b"a", epoch=5)], epoch=5)
    bucket.log([batch(1, b"b", epoch=5)], epoch=5)
    bucket.fence(5, 3, by=4)
    bucket.log([batch(2, b"c", epoch=6)], epoch=4)
    bucket.log([batch(2, b"of a zombie", epoch=5)], epoch=5, number=4, durable=2)
    assert bucket.read() == [(0, b"a"), (1, b"b"), (2, b"c")]
    bucket.flush(0, b"a", b"b", epoch=6)
    assert bucket.read() == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_the_stream_of_a_lone_broker_comes_first(bucket):
    bucket.log([batch(0, b"a", epoch=2)], epoch=2)
    bucket.fence(2, 2, by=3)
    bucket.log([batch(1, b"b", epoch=4)], epoch=4)
    assert bucket.read() == [(0, b"a"), (1, b"b")]


def test_streams_that_are_fences_only_cost_no_request(bucket):
    bucket.log([batch(0, b"a", epoch=9)], epoch=9)
    for stream in range(4, 8):
        bucket.fence(stream, 7, by=9)
    catalog = bucket.catalog()
    assert bucket.read(catalog) == [(0, b"a")]
    assert isinstance(catalog.bucket, CountingBucket)
    assert {each.split("/")[3] for each in catalog.bucket.requests if ".wal" in each} == {"0000000009"}
