"""Bounds of conditions: no row that a condition wants may be left out, and of plain ones little else is kept."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.bucket.splits import Period
from kafscale.spark.duckdb.scans import Condition

SCHEMA = pa.schema([(name, COLUMN_TYPES[name]) for name in ("partition", "offset", "timestamp", "key")])
PARTITIONS = (0, 1, 2)
TIMES_US = COLUMN_TYPES["timestamp"]
ROWS = pa.table(
    {
        "partition": pa.array([number % 3 for number in range(300)], pa.int32()),
        "offset": pa.array([number // 3 for number in range(300)], pa.int64()),
        "timestamp": pa.array([(number * 7 % 300 - 5) * 1_000_000 for number in range(300)], TIMES_US),
        "key": pa.array([b"%d" % (number % 5) for number in range(300)], pa.binary()),
    },
    schema=SCHEMA,
)


def condition(random_: random.Random, depth: int):
    if depth and random_.random() < 0.6:
        one, other = condition(random_, depth - 1), condition(random_, depth - 1)
        return random_.choice([lambda: one & other, lambda: one | other, lambda: ~one])()
    name = random_.choice(("partition", "offset", "offset", "timestamp", "key"))
    values = [_value(name, random_) for _ in range(3)]
    column = pc.field(name)
    forms = [
        lambda: column == values[0],
        lambda: column != values[0],
        lambda: column < values[0],
        lambda: column >= values[0],
        lambda: column.isin(pa.array([each.as_py() for each in values], SCHEMA.field(name).type)),
        column.is_null,
    ]
    return random_.choice(forms)()


def _value(name: str, random_: random.Random):
    if name == "key":
        return pa.scalar(b"%d" % random_.randrange(6), pa.binary())
    if name == "timestamp":
        return pa.scalar(random_.randrange(-10_000, 300_000) * 1000, TIMES_US)
    return pa.scalar(random_.randrange(-1, 4 if name == "partition" else 105), SCHEMA.field(name).type)


@pytest.mark.parametrize("seed", range(60))
def test_no_row_that_is_wanted_is_left_out(seed):
    expression = condition(random.Random(seed), 3)
    bounds = Condition(expression=expression, schema=SCHEMA).bounds(PARTITIONS)
    for row in ds.dataset(ROWS).to_table(filter=expression).to_pylist():
        assert bounds.partitions is None or row["partition"] in bounds.partitions
        assert (bounds.start_offset or 0) <= row["offset"]
        assert bounds.end_offset is None or row["offset"] < bounds.end_offset
        time_ms = pa.scalar(row["timestamp"], TIMES_US).value // 1000
        assert bounds.period.first_ms <= time_ms <= bounds.period.last_ms


def bounds_of(expression):
    return Condition(expression=expression, schema=SCHEMA).bounds(PARTITIONS)


def test_bounds_are_as_narrow_as_plain_conditions():
    offset, partition, timestamp = map(pc.field, ("offset", "partition", "timestamp"))
    found = bounds_of((offset >= 5) & (offset < 9) & (partition == 1) & (pc.field("key") == b"a"))
    assert (found.start_offset, found.end_offset, found.partitions) == (5, 9, {1})
    found = bounds_of((offset == 3) | offset.isin([7, 11]))
    assert (found.start_offset, found.end_offset, found.partitions) == (3, 12, None)
    since = bounds_of(timestamp >= pa.scalar(1_500, TIMES_US))
    assert since.period == Period(first_ms=1)
    assert bounds_of(partition > 5).partitions == frozenset()
    assert bounds_of(pc.field("key") == b"offset").start_offset is None
