"""Hashes of a column of keys, held to those of one key after the other."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafscale.spark.producing.rows import WORDS_MAX, hashes_of, partitions_of
from kafscale.wire.client_rules import murmur2, partition_of

keys = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=4 * WORDS_MAX - 4, max_size=4 * WORDS_MAX + 8))


@given(st.lists(keys, max_size=30), st.integers(0, 5), st.integers(1, 1000))
def test_each_key_gets_the_partition_of_kafkas_clients(found, skipped, partition_count):
    column = pa.array([b"before"] * skipped + found, pa.binary()).slice(skipped)
    hashes, partitions = hashes_of(column), partitions_of(column, partition_count)
    for number, key in enumerate(found):
        if key is not None:
            assert hashes[number] == murmur2(key)
            assert partitions[number] == partition_of(key, partition_count)
    assert all(0 <= each < partition_count for each in partitions)
