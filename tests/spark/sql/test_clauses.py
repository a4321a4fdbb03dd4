"""LAST, TAIL and SCAN FULL are taken out of a statement, and hold where they stand."""

import pytest

from kafscale.errors import QueryError
from kafscale.spark.sql.kafsql import Bound, Clauses

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("clause", "bound"),
    [
        ("LAST 15m", Bound(last_ms=15 * MINUTE_MS)),
        ("last 15 minutes", Bound(last_ms=15 * MINUTE_MS)),
        ("LAST 1 hour", Bound(last_ms=60 * MINUTE_MS)),
        ("LAST 1.5h", Bound(last_ms=90 * MINUTE_MS)),
        ("LAST 500ms", Bound(last_ms=500)),
        ("LAST 7d", Bound(last_ms=7 * 24 * 60 * MINUTE_MS)),
        ("TAIL 20", Bound(tail_count=20)),
        ("SCAN FULL", Bound(is_full=True)),
        ("LAST 1h TAIL 20", Bound(last_ms=60 * MINUTE_MS, tail_count=20)),
    ],
)
@pytest.mark.parametrize("rest", ["", " LIMIT 5", " where offset > 5", "\n GROUP BY partition", ";"])
def test_a_clause_is_blank_and_holds(clause, bound, rest):
    text = f"select 'last 5m' from orders o {clause}{rest}"
    found = Clauses.of(text)
    assert found.text == text.replace(clause, " " * len(clause))
    assert found.bound_at(text.index("orders")) == bound


@pytest.mark.parametrize(
    "text",
    [
        "select last(value), first(value) from orders",
        "select * from last('orders', interval 15 minutes)",
        "select a from orders order by a nulls last limit 5",
        "select o.last, tail from orders o",
        "select * from orders scan full join payments on true",
        "select * from orders scan full outer join payments on true",
        "select '-- tail 5' /* last 5m */ from orders -- scan full",
    ],
)
def test_spark_sql_is_unchanged(text):
    found = Clauses.of(text)
    assert found.text == text
    assert found.bound_at(text.index("orders")) == Bound()


def test_each_select_has_separate_clauses():
    text = "select * from a LAST 1h union all select * from b TAIL 5 union select * from c"
    found = Clauses.of(text)
    assert found.bound_at(text.index(" a ") + 1) == Bound(last_ms=60 * MINUTE_MS)
    assert found.bound_at(text.index(" b ") + 1) == Bound(tail_count=5)
    assert found.bound_at(text.index(" c") + 1) == Bound()


def test_parentheses_inherit_the_outer_clause_unless_they_have_one():
    text = "with x as (select * from a TAIL 5) select * from b where k in (select k from c) LAST 1h"
    found = Clauses.of(text)
    assert found.bound_at(text.index(" a ") + 1) == Bound(tail_count=5)
    assert found.bound_at(text.index(" b ") + 1) == Bound(last_ms=60 * MINUTE_MS)
    assert found.bound_at(text.index(" c)") + 1) == Bound(last_ms=60 * MINUTE_MS)


@pytest.mark.parametrize("text", ["select * from orders LAST 15", "select * from orders LAST 15 bananas", "x last 5x"])
def test_a_time_without_its_unit_is_refused(text):
    with pytest.raises(QueryError, match="LAST 15m or LAST 15 minutes"):
        Clauses.of(text)
