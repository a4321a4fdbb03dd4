"""What KAFSQL spells in its own way, as Spark is given it."""

import pytest

from kafscale.errors import QueryError
from kafscale.spark.sql.kafsql import Spoken

BETWEEN = "BETWEEN {0} - INTERVAL 600000 MILLISECONDS AND {0} + INTERVAL 600000 MILLISECONDS"


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("given", "spoken"),
    [
        ("select key from orders where offset in (3, 44)", "select key from orders where `offset` in (3, 44)"),
        (
            "select * from orders o join payments p on o.key = p.key within 10m last 1h",
            "select * from orders o join payments p on ( o.key = p.key ) AND p.timestamp {o} last 1h",
        ),
        (
            "select * from orders o join payments p within 10 minutes",
            "select * from orders o join payments p ON o.key = p.key AND p.timestamp {o}",
        ),
        (
            "from orders as o left join payments on true where left(o.key, 1) = 'x' within 600s",
            "from orders as o left join payments on ( true ) AND payments.timestamp {o} where left(o.key, 1) = 'x'",
        ),
        (
            "from (select 1 from a union select 2) o join tail('p', 5) p on left(x) = 'a' or y last 1h within 10m",
            "from (select 1 from a union select 2) o join tail('p', 5) p on ( left(x) = 'a' or y ) AND {p} last 1h",
        ),
        (
            "from x union select 1 from l.s.`o` join `p` on true within 10m left join z on false",
            "from x union select 1 from l.s.`o` join `p` on ( true ) AND `p`.timestamp {quoted} left join z on false",
        ),
        (
            "select count(*) from (select * from orders o join p within 10m) within",
            "select count(*) from (select * from orders o join p ON o.key = p.key AND p.timestamp {o} ) within",
        ),
    ],
)
def test_a_join_within_a_time(given, spoken):
    windows = {"o": BETWEEN.format("o.timestamp"), "quoted": BETWEEN.format("`o`.timestamp")}
    windows["p"] = f"p.timestamp {windows['o']}"
    assert squeezed(Spoken.of(given).text) == spoken.format(**windows)


def test_a_join_by_names_of_kafsql():
    text = Spoken.of("select o._key from orders o join payments p within 1h").text
    assert "ON o._key = p._key AND p._ts BETWEEN o._ts - INTERVAL 3600000 MILLISECONDS" in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("select * from orders within 10m", "WITHIN is for JOIN"),
        ("select * from a join b using (key) within 10m", "not with USING"),
        ("select * from (select 1) join b on true within 10m", "needs a name for each side"),
        ("select * from a join b within 10 bananas", "give a time, such as WITHIN 10m"),
    ],
)
def test_an_invalid_window_is_reported(given, told):
    with pytest.raises(QueryError, match=told):
        Spoken.of(given)


@pytest.mark.parametrize(
    ("given", "spoken"),
    [
        ("_ts >= 1700000000000", "_ts >= timestamp_millis(1700000000000)"),
        ("o._ts<5 and _offset >= 7", "o._ts<timestamp_millis(5) and _offset >= 7"),
        ("_TS BETWEEN 100 AND 200", "_TS BETWEEN timestamp_millis(100) AND timestamp_millis(200)"),
        ("_ts >= '2024-01-01 00:00:00'", "_ts >= '2024-01-01 00:00:00'"),
        ("order by _ts limit 10", "order by _ts limit 10"),
        ("'_ts > 5'", "'_ts > 5'"),
        ("timestamp > 5", "timestamp > 5"),
    ],
)
def test_numbers_beside_a_time_are_milliseconds(given, spoken):
    assert Spoken.of(given).text == spoken


def test_kafsql_columns_are_detected_by_the_names_in_a_statement():
    assert not Spoken.of("select offset from orders where value = '_key'").has_kafsql_columns
    spoken = Spoken.of("select _Headers, `_segment` from orders")
    assert spoken.has_kafsql_columns
    assert spoken.needs_segments
    assert spoken.options() == {"includeHeaders": "true"}
    assert not Spoken.of("select * from orders where _offset = 1").options()
