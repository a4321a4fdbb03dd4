"""Changes of rows as Debezium tells them, and what becomes of rows that are deleted."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

COLUMNS = (
    "[{name: shop, type: int, required: true}, {name: id, type: long}, {name: name, type: string, required: true}, "
    '{name: price, type: "decimal(10,2)"}]'
)
KEY = "{format: json, envelope: payload, columns: [{name: shop, type: int}, {name: id, type: long}]}"
VALUE = f"{{format: json, envelope: debezium, columns: {COLUMNS}}}"


def row(shop: int, id: int, name: str | None, price: str = "1.50") -> dict[str, Any]:
    return {"shop": shop, "id": id, "name": name, "price": float(price)}


def change(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, *, in_payload: bool = True) -> bytes:
    """With the schema beside it as Debezium's converter sends it by default, or without."""
    told = {"op": op, "before": before, "after": after, "ts_ms": 7, "source": {"db": "d"}}
    told["transaction"] = {"id": "tx1", "total_order": 3, "data_collection_order": 2}
    return json.dumps({"schema": {"type": "struct"}, "payload": told} if in_payload else told).encode()


def key(shop: int, id: int, *, in_payload: bool = True) -> bytes:
    told = {"shop": shop, "id": id}
    return json.dumps({"schema": {}, "payload": told} if in_payload else told).encode()


CHANGES = [
    (0, key(1, 1), change("r", None, row(1, 1, "a"))),
    (0, key(1, 2), change("c", None, row(1, 2, "b"))),
    (0, key(2, 1, in_payload=False), change("c", None, row(2, 1, "c", "9.25"), in_payload=False)),
    (0, key(1, 1), change("u", row(1, 1, "a"), row(1, 1, "a2"))),
    (0, key(1, 2), change("d", {"shop": 1, "id": 2, "name": None, "price": None}, None)),
    (0, key(1, 2), None),  # a tombstone, for compaction
]


def mapping(topic: str, more: str = "mode: upsert") -> str:
    return f"- {{topic: {topic}, table: db.{topic}, value: {VALUE}, {more}, dead_letters: db.{topic}_dead}}"


@pytest.mark.parametrize("by", ["upsert_by: [shop, id]", "upsert_by: [shop_key, id_key]"])
def test_changes_keyed_by_several_columns_leave_the_final_rows(lake, topic, produce, by):
    keys = "{format: json, envelope: payload, columns: [{name: shop_key, type: int}, {name: id_key, type: long}]}"
    renamed = [
        (partition, of_key and of_key.replace(b"shop", b"shop_key").replace(b'"id', b'"id_key'), value)
        for partition, of_key, value in CHANGES
    ]
    produce(topic, renamed)
    made = mapping(topic, f"mode: upsert, key: {keys}, {by}")
    lake.run(made)
    assert lake.rows(f"db.{topic}", "shop, id, name, CAST(price AS STRING)") == [
        (1, 1, "a2", "1.50"),
        (2, 1, "c", "9.25"),
    ]
    assert lake.rows(f"db.{topic}_dead") == []
    from kafscale.spark.pipeline.proof import prove

    (proof,) = prove(lake.spark, lake.pipeline(made))
    assert (proof.found, proof.rows) == ("proven", 2)


def test_deleted_rows_are_marked(lake, topic, produce):
    """Those too that came and went in one batch; one that comes again is not marked any more."""
    made = mapping(topic, "mode: upsert, upsert_by: [shop, id], deletes: mark, deleted_column: gone")
    produce(topic, CHANGES)
    lake.run(made)
    columns = "shop, id, name, gone"
    assert lake.rows(f"db.{topic}", columns) == [(1, 1, "a2", False), (1, 2, "b", True), (2, 1, "c", False)]
    produce(
        topic,
        [
            (0, None, change("d", row(2, 1, "c"), None)),
            (0, None, change("c", None, row(1, 2, "again"))),
            (0, None, change("d", row(9, 9, "never"), None)),
        ],
    )
    lake.run(made)
    assert lake.rows(f"db.{topic}", columns) == [(1, 1, "a2", False), (1, 2, "again", False), (2, 1, "c", True)]
    from kafscale.spark.pipeline.proof import prove

    (proof,) = prove(lake.spark, lake.pipeline(made))
    assert (proof.found, proof.rows) == ("proven", 3)


def test_deleted_rows_are_kept(lake, topic, produce):
    produce(topic, CHANGES)
    lake.run(mapping(topic, "mode: upsert, upsert_by: [shop, id], deletes: keep"))
    assert lake.rows(f"db.{topic}", "shop, id, name") == [(1, 1, "a2"), (1, 2, "b"), (2, 1, "c")]


def test_tombstones_mark_rows_without_an_envelope_too(lake, topic, produce):
    produce(topic, [(0, b"a", b"1"), (0, b"b", b"2"), (0, b"a", None)])
    value = "value: {format: string}, key: {format: string, column: id}"
    lake.run(f"- {{topic: {topic}, table: db.{topic}, mode: upsert, deletes: mark, {value}}}")
    assert lake.rows(f"db.{topic}", "id, value, deleted") == [("a", "1", True), ("b", "2", False)]


def test_appended_changes_are_rows_with_their_operation_and_transaction(lake, topic, produce):
    produce(topic, CHANGES)
    lake.run(
        mapping(
            topic, "metadata: [offset, op, change_ms, transaction_id, transaction_order, transaction_collection_order]"
        )
    )
    found = lake.rows(
        f"db.{topic}",
        "offset, op, change_ms, transaction_id, transaction_order, transaction_collection_order, shop, id, name",
    )
    assert found == [
        (offset, op, 7, "tx1", 3, 2, *rest)
        for offset, op, *rest in [
            (0, "r", 1, 1, "a"),
            (1, "c", 1, 2, "b"),
            (2, "c", 2, 1, "c"),
            (3, "u", 1, 1, "a2"),
            (4, "d", 1, 2, None),
        ]
    ]


def test_a_value_that_is_not_a_row_change_is_a_dead_letter(lake, topic, produce):
    bad = [
        b"7",
        b'{"op":',
        json.dumps(row(1, 1, "plain")).encode(),
        change("m", None, None),
        change("u", row(1, 1, "a"), None),
        change("c", None, row(1, 1, None)),
        change("c", None, row(1, 1, "a", "1.005")),
        change("d", {"name": "no key"}, None),
        change("c", None, row(1, 1, "a")) + b"more",
    ]
    produce(topic, [(0, None, each) for each in bad])
    lake.run(mapping(topic, "mode: upsert, upsert_by: [shop, id]"))
    assert lake.rows(f"db.{topic}") == []
    errors = [error for _, error in lake.rows(f"db.{topic}_dead", "offset, error")]
    told = [
        "not a JSON object",
        "not a JSON object",
        "no op",
        "its op m",
        "nothing in after",
        "no name",
        "price has more digits",
        "nothing in shop or id",
        "not a JSON object of the mapping",
    ]
    assert len(errors) == len(told)
    for error, each in zip(errors, told, strict=True):
        assert each in error


@pytest.mark.parametrize(
    ("deletes", "first", "second"),
    [
        ("delete", [(1, "a", False), (3, "c", False)], [(5, "e", False)]),
        (
            "mark",
            [(1, "a", False), (2, "b", True), (3, "c", False)],
            [(1, "a", True), (2, "b", True), (3, "c", True), (4, "d", True), (5, "e", False)],
        ),
        ("keep", [(1, "a", None), (2, "b", None), (3, "c", None)], [(n, "abcde"[n - 1], None) for n in range(1, 6)]),
    ],
)
def test_a_truncate_empties_the_table_in_order_with_the_other_changes(lake, topic, produce, deletes, first, second):
    made = mapping(topic, f"mode: upsert, upsert_by: [shop, id], deletes: {deletes}")
    if deletes != "mark":
        made = made.replace("{name: shop", "{name: deleted, type: boolean}, {name: shop")
    truncate = (0, None, change("t", None, None))

    def create(id: int) -> tuple[int, None, bytes]:
        return (
            0,
            None,
            change("c", None, row(1, id, "abcde"[id - 1]) | ({"deleted": False} if deletes == "delete" else {})),
        )

    produce(topic, [create(2), truncate, create(1), create(3)])
    lake.run(made)
    assert lake.rows(f"db.{topic}", "id, name, deleted") == first
    produce(topic, [create(4), truncate, create(5)])
    lake.run(made)
    assert lake.rows(f"db.{topic}", "id, name, deleted") == second
    assert lake.rows(f"db.{topic}_dead") == []
    from kafscale.spark.pipeline.proof import prove

    (proof,) = prove(lake.spark, lake.pipeline(made))
    assert (proof.found, proof.rows) == ("proven", len(second))


def test_a_truncate_deletes_only_the_rows_of_its_topic(lake, broker, topic, produce):
    from confluent_kafka.admin import AdminClient, NewTopic

    other = f"{topic}b"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(other, 1, 1)])[other].result()
    made = mapping(topic, "mode: upsert, metadata: [topic], upsert_by: [topic, id]")
    made = made.replace(f"topic: {topic},", f"topics: [{topic}, {other}],")
    for each in (topic, other):
        produce(each, [(0, None, change("c", None, row(1, 1, "a")))])
    lake.run(made)
    produce(other, [(0, None, change("t", None, None))])
    lake.run(made)
    assert lake.rows(f"db.{topic}", "topic, id") == [(topic, 1)]
    blind = made.replace(f"table: db.{topic},", f"table: db.{topic}_blind,").replace("[topic, id]", "[shop, id]")
    lake.run(blind)
    assert lake.rows(f"db.{topic}_dead", "topic, error") == [(other, "value: no rule tells of its op t")]


ROW = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
BLOCK = {
    "type": "record",
    "name": "block",
    "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
        {"name": "transaction", "type": ["null", BLOCK], "default": None},
    ],
}


def test_changes_in_avro_are_unwrapped(lake, topic, produce, values):
    def in_avro(op: str, before: Any, after: Any) -> bytes:
        told = {"op": op, "before": before, "after": after, "ts_ms": 7}
        told["transaction"] = {"id": "tx", "total_order": 1}
        return values.avro(ENVELOPE, told, topic=topic)

    first, second = {"id": 1, "name": "a"}, {"id": 2, "name": None}
    produce(
        topic,
        [
            (0, None, in_avro("c", None, first)),
            (0, None, in_avro("r", None, second)),
            (0, None, in_avro("u", first, {"id": 1, "name": "b"})),
            (0, None, in_avro("d", second, None)),
            (0, None, None),
        ],
    )
    made = f"- {{topic: {topic}, table: db.{topic}, value: {{format: avro, envelope: debezium}}, mode: upsert"
    registry = f"registry: {{url: {values.registry.url}}}"
    lake.run(f"{made}, upsert_by: [id], metadata: [op, transaction_id]}}", registry)
    assert lake.rows(f"db.{topic}", "id, name, op, transaction_id") == [(1, "b", "u", "tx")]
    assert values.avro(ROW, first, topic="plain")  # so that the registry has its schema
    plain = "value: {format: avro, envelope: debezium, subject: plain-value}"
    seen = lake.run(f"- {{topic: {topic}, table: db.{topic}_plain, {plain}}}", registry, may_fail=True)
    assert "has values without op" in str(seen.failures[f"db.{topic}_plain"])


def flat(id: int, name: str | None, *, in_payload: bool = False, **flags: Any) -> bytes:
    """As ExtractNewRecordState makes it."""
    told = {**row(1, id, name), **{f"__{flag}": value for flag, value in flags.items()}}
    return json.dumps({"schema": {"type": "struct"}, "payload": told} if in_payload else told).encode()


FLAT = [
    (0, key(1, 1), flat(1, "a", deleted="false", op="r", ts_ms=5)),
    (0, key(1, 2), flat(2, "b", deleted="false", op="c")),
    (0, key(1, 3), flat(3, "c", op="c")),
    (0, key(1, 1), flat(1, "a2", in_payload=True, deleted=False, op="u", ts_ms=7, transaction_id="tx")),
    (0, key(1, 2), flat(2, None, deleted="true", ts_ms=8)),
    (0, key(1, 3), flat(3, None, op="d")),
]


def test_rows_that_debezium_has_unwrapped_are_deleted_where_they_say_so(lake, topic, produce):
    produce(topic, FLAT)
    made = mapping(topic, "mode: upsert, upsert_by: [shop, id], metadata: [op, change_ms, transaction_id]")
    made = made.replace("envelope: debezium", "envelope: unwrapped")
    lake.run(made)
    assert lake.rows(f"db.{topic}") == [("u", 7, "tx", 1, 1, "a2", Decimal("1.50"))]
    assert lake.rows(f"db.{topic}_dead") == []
    produce(topic, [(0, None, flat(4, None, op="c")), (0, None, flat(5, "e"))])
    lake.run(made)
    assert lake.rows(f"db.{topic}", "id, name") == [(1, "a2"), (5, "e")]
    assert "no name" in lake.rows(f"db.{topic}_dead", "error")[0][0]
    from kafscale.spark.pipeline.proof import prove

    (proof,) = prove(lake.spark, lake.pipeline(made))
    assert (proof.found, proof.rows) == ("proven", 2)


def test_rows_that_debezium_has_unwrapped_are_deleted_by_tombstones_too_and_marked(lake, topic, produce):
    keys = "{format: json, envelope: payload, columns: [{name: id_key, type: long}]}"
    found = [(0, b'{"id_key": 1}', flat(1, "a")), (0, b'{"id_key": 2}', flat(2, "b")), (0, b'{"id_key": 1}', None)]
    produce(topic, [*found, (0, b'{"id_key": 3}', flat(3, "c")), (0, b'{"id_key": 3}', flat(3, None, deleted="true"))])
    made = mapping(topic, f"mode: upsert, key: {keys}, deletes: mark")
    lake.run(made.replace("envelope: debezium", "envelope: unwrapped"))
    assert lake.rows(f"db.{topic}", "id_key, name, deleted") == [(1, "a", True), (2, "b", False), (3, "c", True)]


def test_change_columns_of_unwrapped_avro_are_not_table_columns(lake, topic, produce, values):
    told = {**ROW, "fields": [*ROW["fields"], {"name": "__deleted", "type": ["null", "string"], "default": None}]}
    found = [{"id": 1, "name": "a", "__deleted": "false"}, {"id": 2, "name": "b", "__deleted": None}]
    found.append({"id": 1, "name": None, "__deleted": "true"})
    produce(topic, [(0, None, values.avro(told, each, topic=topic)) for each in found])
    registry = f"registry: {{url: {values.registry.url}}}"
    made = f"- {{topic: {topic}, table: db.{topic}, value: {{format: avro, envelope: unwrapped}}, mode: upsert"
    lake.run(f"{made}, upsert_by: [id]}}", registry)
    assert lake.rows(f"db.{topic}") == [(2, "b")]
    assert values.avro(ROW, {"id": 1, "name": "a"}, topic="flat")  # so that the registry has its schema
    plain = "value: {format: avro, envelope: unwrapped, subject: flat-value}"
    seen = lake.run(f"- {{topic: {topic}, table: db.{topic}_plain, {plain}}}", registry, may_fail=True)
    assert "neither __deleted nor __op" in str(seen.failures[f"db.{topic}_plain"])
