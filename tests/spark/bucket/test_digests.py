"""CRCs of what lies between two offsets stay the same, however it is cut into segments."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from crc32c import crc32c

from kafscale.config import StoreUrl
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.catalog import Catalog
from kafscale.spark.bucket.digests import RangeDigest, combined, of_batches, of_footers
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects, version_2_objects


def put(directory: Path, *cuts: int) -> None:
    """Batches of three records, in segments that begin at these batches and end at the last one."""
    for first, behind in pairwise(cuts):
        key = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=3 * first)
        objects = version_2_objects(key, make_batches(3 * first, behind - first))
        objects.write_to(directory)


def looked_at(directory: Path):
    catalog = Catalog(BucketOptions(url=StoreUrl.parse(f"file:{directory}")).open())
    return catalog, catalog.partitions("t")[0]


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (1000, 77), (3, 70_001)])
def test_the_crc_of_two_byte_runs_combines_from_their_crcs(sizes):
    first, second = map(os.urandom, sizes)
    assert combined(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_footer_digests_equal_batch_digests_however_segments_are_cut(tmp_path):
    found = set()
    for name, cuts in {"one": (0, 20), "some": (0, 3, 4, 11, 20), "each": tuple(range(21))}.items():
        put(tmp_path / name, *cuts)
        catalog, log = looked_at(tmp_path / name)
        assert of_footers(catalog, log, 0, 60) == of_batches(catalog, log, 0, 60)
        found.add(of_batches(catalog, log, 0, 60))
    assert len(found) == 1


def test_a_segment_belongs_to_the_read_that_contains_its_end(tmp_path):
    put(tmp_path, 0, 5, 10, 15)
    catalog, log = looked_at(tmp_path)
    assert of_footers(catalog, log, 0, 44) == of_batches(catalog, log, 0, 30)
    assert of_footers(catalog, log, 1, 45) == of_batches(catalog, log, 0, 45)
    assert of_footers(catalog, log, 44, 45) == of_batches(catalog, log, 30, 45)
    assert of_footers(catalog, log, 30, 44) is None


def test_segments_behind_a_gap_have_no_digest(tmp_path):
    put(tmp_path, 0, 5)
    put(tmp_path, 10, 15)
    catalog, log = looked_at(tmp_path)
    assert of_footers(catalog, log, 0, 45) == of_batches(catalog, log, 0, 15)


def test_the_digest_covers_whole_batches_between_the_offsets(tmp_path):
    put(tmp_path, 0, 5)
    catalog, log = looked_at(tmp_path)
    stored = sorted(tmp_path.rglob("*.kfs"))[0].read_bytes()[32:]
    size = len(make_batches(0, 1)[0])
    assert of_batches(catalog, log, 3, 9) == RangeDigest(3, 9, crc32c(stored[size : 3 * size]))
    assert of_batches(catalog, log, 4, 8).crc == 0  # the one batch that begins there ends behind


@pytest.mark.parametrize("seed", range(10))
def test_any_change_of_a_byte_is_seen(tmp_path, seed):
    put(tmp_path, 0, 5, 10)
    catalog, log = looked_at(tmp_path)
    before = of_footers(catalog, log, 0, 30)
    chance = random.Random(seed)
    path = chance.choice(sorted(tmp_path.rglob("*.kfs")))
    data = bytearray(path.read_bytes())
    data[32 + 17 + chance.randrange(100)] ^= 1 << chance.randrange(
        8
    )  # behind offset, length, epoch and magic of the first
    path.write_bytes(data)
    catalog, log = looked_at(tmp_path)
    assert of_batches(catalog, log, 0, 30) != before


def test_a_digest_that_ends_early_has_its_actual_end_offset(tmp_path):
    put(tmp_path, 0, 5)
    catalog, log = looked_at(tmp_path)
    assert of_batches(catalog, log, 0, 99).end_offset == 15
    assert of_batches(catalog, log, 15, 15) == RangeDigest(15, 15, 0)


def test_version_1_tells_nothing(tmp_path):
    version_1_objects(version_1_key("t", 0, 0), make_batches(0, 3)).write_to(tmp_path)
    catalog, log = looked_at(tmp_path)
    assert of_footers(catalog, log, 0, 9) is None
