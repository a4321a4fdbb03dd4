"""A statement in DuckDB's spelling: words that one of both reserves, quotes, and places in the original."""

import pytest

from kafscale.spark.duckdb.kinds import NotAlike
from kafscale.spark.duckdb.parser import spelled


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("select offset from t", 'select "offset" from t'),
        ("select o.offset from t o limit 5 offset 3", 'select o."offset" from t o limit 5 offset 3'),
        ("select * from t where offset between 1 and 2", 'select * from t where "offset" between 1 and 2'),
        ("select max(offset) from t having offset > 1", 'select max("offset") from t having "offset" > 1'),
        ("select timestamp, timestamp '2020-01-01'", "select \"timestamp\", timestamp '2020-01-01'"),
        ("select cast(x as timestamp)", 'select cast(x as "timestamp")'),
        ("select partition, sum(x) over (partition by y)", 'select "partition", sum(x) over (partition by y)'),
        ('select `a``b"c` from `order-lines.v1`', 'select "a`b""c" from "order-lines.v1"'),
        ("select \"it's\", r'\\d'", "select 'it''s', '\\d'"),
        ("select o.decoded.value.*, o.*", "select kafscale_fields(o.decoded.value), o.*"),
        ("select `my-o`.decoded.value.*", 'select kafscale_fields("my-o".decoded.value)'),
        ("select `my-o`.`decoded`.*, `offset`", 'select kafscale_fields("my-o"."decoded"), "offset"'),
        ("select 'offset' -- offset\n/* offset */", "select 'offset' -- offset\n/* offset */"),
    ],
)
def test_words_are_spelled(given, text):
    assert spelled(given).text == text


@pytest.mark.parametrize(
    "given", ["select 10L", "select 3.0D", "select 1e5", "select 'a\\'b'", "select 'a''b'", "select 'a' 'b'", "a[1]"]
)
def test_text_that_duckdb_reads_differently_is_refused(given):
    with pytest.raises(NotAlike):
        spelled(given)


def test_positions_map_back_to_the_original_statement():
    given = "select 'größer', offset, `größe` from orders o, timestamp"
    found = spelled(given)
    for name in ("orders", "o,", "'gr"):
        place = len(found.text[: found.text.index(name)].encode())
        assert given[found.original(place) :].startswith(name)
