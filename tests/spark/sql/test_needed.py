"""Which columns a statement can need, by its text."""

import pytest

from kafscale.spark.bucket.decode import COLUMN_TYPES
from kafscale.spark.sql.kafsql import COLUMNS, columns_needed


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ("select count(*) from orders", ""),
        ("SELECT COUNT ( * ) FROM orders", ""),
        ("select max(_ts) from orders where _partition = 1", "timestamp partition"),
        ("explain select count(*) from orders", ""),
        ("select max(OFFSET) from orders where `partition` = 1", "offset partition"),
        ("with x as (select key k from orders) select count(*) from x", "key"),
        ('select _value, "topic" from orders -- timestamp', "value topic timestamp"),
        ("select 'timestampType' from orders", "timestamp timestampType"),
        ("(select key from orders) union (select value from orders)", "key value"),
        ("select extract(hour from timestamp) from orders", "timestamp"),
    ],
)
def test_columns_are_needed_that_are_named(statement, columns):
    assert columns_needed(statement, COLUMN_TYPES, COLUMNS) == set(columns.split())


@pytest.mark.parametrize(
    "statement",
    [
        "select * from orders",
        "select o.* from orders o",
        "select count(distinct *) from orders",
        "select offset * 2 from orders",
        "table orders",
        "select count(*) from (table orders)",
        "from orders",
        "from orders |> where offset < 10",
        "select key from orders |> extend value",
        "with x as (from orders) select count(*) from x",
        "select key from orders union all from payments",
        "select key from orders natural join payments",
        "select * from (select key, offset from orders) pivot (sum(offset) for key in ('a'))",
        "select identifier('k' || 'ey') from orders",
        "create table lake.a.b as select key from orders",
        "insert into lake.a.b select key from orders",
        "with x as (select key from orders) insert into lake.a.b select key from x",
        "describe orders",
        "",
    ],
)
def test_statements_without_a_clear_column_list_need_all_columns(statement):
    assert columns_needed(statement, COLUMN_TYPES, COLUMNS) is None
