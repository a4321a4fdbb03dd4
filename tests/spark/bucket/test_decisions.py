"""Which of two brokers' objects is read, where neither is that of the broker that leads (by its checkpoint)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.spark.logged_bucket import LoggedBucket


@pytest.fixture
def bucket(tmp_path: Path) -> LoggedBucket:
    found = LoggedBucket(tmp_path)
    found.create_topic()
    return found


def test_a_third_brokers_decision_picks_the_first_brokers_late_object(bucket: LoggedBucket) -> None:
    """Three brokers: the third found what the first had sent late; what the second sends comes later still."""
    found = bucket.flush(0, b"of the first", epoch=5)
    bucket.flush(0, b"of the second", epoch=6)
    assert bucket.read() == [(0, b"of the second")], "nobody else is known to have led"
    bucket.decide(7, found)
    assert bucket.read() == [(0, b"of the first")]


def test_a_newer_checkpoint_is_used_by_the_next_read(bucket: LoggedBucket) -> None:
    first, second = bucket.flush(0, b"of the first", epoch=5), bucket.flush(0, b"of the second", epoch=6)
    bucket.decide(7, first)
    catalog = bucket.catalog()
    assert bucket.read(catalog) == [(0, b"of the first")]
    bucket.decide(8, second)
    assert bucket.read(catalog) == [(0, b"of the second")]


def test_the_checkpoint_is_read_only_where_objects_contradict_one_another_and_only_once(bucket: LoggedBucket) -> None:
    found = bucket.flush(0, b"of the first", epoch=5)
    bucket.decide(7, found)
    catalog = bucket.catalog()
    bucket.read(catalog)
    assert not [each for each in catalog.bucket.requests if "/manifests/" in each]
    bucket.flush(0, b"of the second", epoch=6)
    bucket.read(catalog)
    bucket.read(catalog)
    assert len([each for each in catalog.bucket.requests if each.startswith("get ") and "/manifests/" in each]) == 1


def test_a_checkpoint_replaced_during_the_read_is_looked_up_again(bucket: LoggedBucket) -> None:
    first, second = bucket.flush(0, b"of the first", epoch=5), bucket.flush(0, b"of the second", epoch=6)
    bucket.decide(7, second)
    catalog = bucket.catalog()
    old = next(bucket.directory.rglob("*.manifests"))

    def replace(key: str) -> None:
        if key.endswith(".manifests") and old.exists():
            old.unlink()
            bucket.decide(7, first)

    catalog.bucket.before_get = replace
    assert bucket.read(catalog) == [(0, b"of the first")]


def test_a_damaged_checkpoint_decides_nothing_and_is_logged(
    bucket: LoggedBucket, caplog: pytest.LogCaptureFixture
) -> None:
    found = bucket.flush(0, b"of the first", epoch=5)
    bucket.flush(0, b"of the second", epoch=6)
    bucket.decide(7, found)
    path = next(bucket.directory.rglob("*.manifests"))
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert bucket.read() == [(0, b"of the second")]
    assert "sent too late may be returned" in caplog.text
