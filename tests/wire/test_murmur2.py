"""The hash of keys, held to that of another client."""

from __future__ import annotations

import warnings

from hypothesis import given
from hypothesis import strategies as st

from kafscale.wire.client_rules import murmur2, partition_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its schemas by a deprecated function
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@given(st.binary(max_size=40))
def test_murmur2_equals_that_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF
    assert 0 <= partition_of(key, 7) < 7
