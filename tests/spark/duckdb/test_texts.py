"""Values as Spark writes them: most of what is expected was told by Spark 4.1."""

import pyarrow as pa
import pytest

from kafscale.spark.duckdb.kinds import NotAlike, spark_name
from kafscale.spark.duckdb.texts import json_of, text_of, values_of

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.int32())])))])
UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("value", "type_", "text", "as_json"),
    [
        (1.5, pa.float64(), "1.5", "1.5"),
        (1e10, pa.float64(), "1.0E10", "1.0E10"),
        (1e-5, pa.float64(), "1.0E-5", "1.0E-5"),
        (0.001, pa.float64(), "0.001", "0.001"),
        (0.00099, pa.float64(), "9.9E-4", "9.9E-4"),
        (9999999.0, pa.float64(), "9999999.0", "9999999.0"),
        (1e7, pa.float64(), "1.0E7", "1.0E7"),
        (123456789.125, pa.float64(), "1.23456789125E8", "1.23456789125E8"),
        (0.1 + 0.2, pa.float64(), "0.30000000000000004", "0.30000000000000004"),
        (-0.0, pa.float64(), "-0.0", "-0.0"),
        (100.0, pa.float64(), "100.0", "100.0"),
        (float("nan"), pa.float64(), "NaN", '"NaN"'),
        (float("-inf"), pa.float64(), "-Infinity", '"-Infinity"'),
        (1.1, pa.float32(), "1.1", "1.1"),
        (True, pa.bool_(), "true", "true"),
        ("1.50", pa.decimal128(10, 2), "1.50", "1.50"),
        ("0", pa.decimal128(20, 10), "0.0000000000", "0E-10"),
        (1_700_000_000_123_400, UTC, "2023-11-14 22:13:20.1234", '"2023-11-14T22:13:20.123Z"'),
        (1_700_000_000_000_000, UTC, "2023-11-14 22:13:20", '"2023-11-14T22:13:20.000Z"'),
        (-1000, UTC, "1969-12-31 23:59:59.999", '"1969-12-31T23:59:59.999Z"'),
        (1_700_000_000_001_000_000, UTC, "+55840-11-08 22:13:21", '"+55840-11-08T22:13:21.000Z"'),
        (-99_999_999_999_999_000, UTC, "-1199-02-15 14:13:20.001", '"-1199-02-15T14:13:20.001Z"'),
        (19_675, pa.date32(), "2023-11-14", '"2023-11-14"'),
        ('q"x\x1f\té/', pa.string(), 'q"x\x1f\té/', '"q\\"x\\u001F\\té/"'),
        (b"\xff\x00", pa.binary(), "0xFF00", '"/wA="'),
        ([1, None], pa.list_(pa.int32()), "[1, null]", "[1,null]"),
        ([b"\xff"], pa.list_(pa.binary()), "[\ufffd]", '["/w=="]'),
        ([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int32()), "{a -> 1, b -> null}", '{"a":1}'),
        ({"a": None, "b": [{"c": None}]}, STRUCT, "{null, [{null}]}", '{"b":[{}]}'),
    ],
)
def test_values_are_formatted_as_in_spark(value, type_, text, as_json):
    column = pa.array([value], pa.string()).cast(type_) if pa.types.is_decimal(type_) else pa.array([value], type_)
    [found] = values_of(column)
    assert text_of(type_)(found) == text
    assert json_of(type_)(found) == as_json


def test_a_map_as_json_drops_null_values_like_spark():
    type_ = pa.map_(pa.string(), pa.int32())
    [found] = values_of(pa.array([[("a", 1), ("b", None)]], type_))
    assert json_of(type_)(found) == '{"a":1}'


def test_a_type_that_only_spark_can_format_is_left_to_spark():
    with pytest.raises(NotAlike):
        text_of(pa.duration("us"))


def test_names_of_types():
    assert spark_name(STRUCT) == "struct<a:int,b:array<struct<c:int>>>"
    assert spark_name(pa.map_(pa.string(), pa.decimal128(10, 2))) == "map<string,decimal(10,2)>"
    assert spark_name(pa.timestamp("us")) == "timestamp_ntz"
