"""Protobuf values of confluent-kafka's serializer, and of a registry that keeps .proto text."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from kafscale.errors import ConfigError, RegistryError
from tests.devtools.external.registry import message_class, prefixed

HEAD = 'syntax = "proto3"; package shop;'
ORDER = (
    HEAD
    + """
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  int32 a = 1; uint32 b = 2; uint64 c = 3; string d = 4; bytes e = 5; bool f = 6; double g = 7;
  State state = 8; optional int64 maybe = 9;
  oneof choice { string left = 10; Item right = 11; }
  repeated Item items = 12; map<string, Item> by_name = 13; repeated State states = 14; map<int32, string> names = 15;
  google.protobuf.Timestamp at = 16; google.protobuf.Duration took = 17; google.protobuf.StringValue note = 18;
  google.protobuf.Struct free = 19; Order before = 20;
  enum State { NEW = 0; OLD = 1; }
  message Item { string sku = 1; int32 count = 2; }
}
message Other { string x = 1; }
"""
)


def test_each_type_becomes_its_column(values):
    order = message_class(ORDER, "shop.Order")
    message = order(a=-1, b=2**32 - 1, c=2**64 - 1, d="é", e=b"\xff", f=True, g=0.5, state=1, maybe=0)
    message.right.sku = "r"
    message.items.add(sku="i", count=2)
    message.by_name["n"].count = 3
    message.states.extend([0, 1, 7])
    message.names[5] = "five"
    message.at.FromDatetime(datetime(2024, 5, 6, 7, 8, 9, 123456))
    message.took.FromTimedelta(timedelta(seconds=-1, microseconds=-5))
    message.note.value = ""
    message.free["k"] = [1, "x"]
    message.before.d = "before"
    decoder = values.reader("protobuf", ORDER)
    decoded = decoder.decode([values.protobuf(message), values.protobuf(order())])
    assert decoded.errors == [None, None]
    full, empty = decoded.values.to_pylist()
    assert full == {
        "a": -1, "b": 2**32 - 1, "c": Decimal(2**64 - 1), "d": "é", "e": b"\xff", "f": True, "g": 0.5,
        "state": "OLD", "maybe": 0, "left": None, "right": {"sku": "r", "count": 0},
        "items": [{"sku": "i", "count": 2}], "by_name": [("n", {"sku": "", "count": 3})],
        "states": ["NEW", "OLD", "7"], "names": [(5, "five")],
        "at": datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC), "took": timedelta(seconds=-1, microseconds=-5),
        "note": "", "free": '{"k": [1.0, "x"]}', "before": '{"d": "before"}',
    }  # fmt: skip
    absent = ("maybe", "left", "right", "at", "took", "note", "free", "before")
    assert all(empty[name] is None for name in absent)
    assert (empty["a"], empty["d"], empty["items"], empty["by_name"], empty["state"]) == (0, "", [], [], "NEW")
    assert {field.name for field in decoder.type if field.nullable} == set(absent)
    assert decoder.type.field("c").type == pa.decimal128(20, 0)


def test_fields_go_by_number_between_older_and_newer_writers(values):
    older = message_class(HEAD + "message Order { int32 id = 1; string gone = 2; }", "shop.Order")
    newer = message_class(
        HEAD + "message Order { int64 id = 1; string note = 3; repeated int32 more = 4; }", "shop.Order"
    )
    reader = values.reader("protobuf", HEAD + "message Order { int64 id = 1; string remark = 3; }")
    decoded = reader.decode([values.protobuf(newer(id=2, note="n", more=[1])), values.protobuf(older(id=1, gone="g"))])
    assert decoded.errors == [None, None]
    assert decoded.values.to_pylist() == [{"id": 2, "remark": "n"}, {"id": 1, "remark": ""}]


def test_the_indexes_say_which_message_a_value_is(values):
    item, other = message_class(ORDER, "shop.Order.Item"), message_class(ORDER, "shop.Other")
    written = [values.protobuf(item(sku="s")), values.protobuf(other(x="o"), topic="others")]
    decoded = values.reader("protobuf", ORDER, message="shop.Order.Item").decode(written)
    assert decoded.values.to_pylist() == [{"sku": "s", "count": 0}, None]
    assert decoded.errors[1] == "DecodeError: the value is a shop.Other, not a shop.Order.Item"


def test_the_registry_can_hold_proto_text_with_imports(values):
    registry = values.registry
    registry.register("money", HEAD + "message Money { int64 cents = 1; }", format="PROTOBUF")
    text = HEAD + 'import "shop/money.proto"; import "google/type/date.proto";'
    text += "message Order { Money price = 1; google.type.Date day = 2; }"
    reference = {"name": "shop/money.proto", "subject": "money", "version": 1}
    schema_id = registry.register("orders-value", text, format="PROTOBUF", references=(reference,))
    decoded = values.reader_of().decode([prefixed(schema_id, b"\0\x0a\x02\x08\x05\x12\x03\x08\xe8\x0f")])
    assert decoded.errors == [None]
    assert decoded.values.to_pylist() == [{"price": {"cents": 5}, "day": {"year": 2024, "month": 0, "day": 0}}]


@pytest.mark.parametrize("payload", [b"", b"\x02", b"\x04\x00", b"\x02\x0e", b"\xff" * 12, b"\x01\x00", b"\0\x0a\x7f"])
def test_wrong_indexes_and_cut_messages_are_errors_of_the_value(values, payload):
    schema_id = values.registry.register("orders-value", ORDER, format="PROTOBUF")
    decoded = values.reader_of().decode([prefixed(schema_id, payload), None])
    assert decoded.values.to_pylist() == [None, None]
    assert decoded.errors[0].startswith("DecodeError")
    assert decoded.errors[1] is None


def test_a_message_that_is_not_there_is_refused_at_once(values):
    with pytest.raises(ConfigError, match=r"no message 'Nope'; it has shop\.Order, shop\.Other"):
        values.reader("protobuf", ORDER, message="Nope")
    with pytest.raises(ConfigError, match="protoc"):
        values.reader("protobuf", "message {")


@pytest.mark.parametrize(
    "form", ["{outside}/evil.py", "../../../../../../../../..{outside}/evil.py", "a/../../b\n.py", "\0"]
)
def test_a_registry_could_write_files_anywhere(values, tmp_path, form):
    """It names what a schema imports; protoc's files had these names, absolute ones and those with .. in them."""
    name = form.format(outside=tmp_path)
    values.registry.register("money", HEAD + "message Money { int64 cents = 1; }", format="PROTOBUF")
    reference = {"name": name, "subject": "money", "version": 1}
    text = HEAD + "message Order { int32 a = 1; }"
    schema_id = values.registry.register("orders-value", text, format="PROTOBUF", references=(reference,))
    decoded = values.reader("protobuf", text).decode([prefixed(schema_id, b"\0\x08\x05")])
    assert decoded.values.to_pylist() == [{"a": 5}], decoded.errors
    assert list(tmp_path.iterdir()) == []


def test_protoc_runs_no_module_of_the_working_directory(values, tmp_path, monkeypatch):
    (tmp_path / "grpc_tools").mkdir()
    evil = f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'ran').touch()"
    for name in ("__init__.py", "protoc.py"):
        (tmp_path / "grpc_tools" / name).write_text(evil)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    values.reader("protobuf", HEAD + "message Order { int32 a = 1; }")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["google/protobuf/../../evil.proto", "confluent/.evil.proto", "/google/type/x.proto"])
def test_an_import_of_an_unsafe_name_is_refused(values, name):
    with pytest.raises(ConfigError, match=r"is not a valid Protobuf schema|protoc|is imported"):
        values.reader("protobuf", HEAD + f'import "{name}"; message Order {{ int32 a = 1; }}')


def test_a_machine_that_could_not_run_protoc_made_dead_letters_of_all_values(values, monkeypatch):
    from kafscale.values import protobuf_schema

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    text = HEAD + "message Order { int32 a = 1; }"
    value = prefixed(values.registry.register("orders-value", text, format="PROTOBUF"), b"\0\x08\x05")
    decoder = values.reader("protobuf", text)
    with monkeypatch.context() as patched:
        patched.setattr(protobuf_schema.subprocess, "run", refuse)
        with pytest.raises(RegistryError, match=r"on this machine: .* Resource temporarily unavailable"):
            decoder.decode([value])
    assert decoder.decode([value]).values.to_pylist() == [{"a": 5}]


def test_a_schema_on_which_protoc_does_not_end_is_an_error_of_the_schema(values, monkeypatch):
    from kafscale.values import protobuf_schema

    monkeypatch.setattr(protobuf_schema, "_PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(protobuf_schema, "PROTOC_SECONDS", 0.2)
    with pytest.raises(ConfigError, match="did not end in"):
        values.reader("protobuf", HEAD + "message Order { int32 a = 1; }")
    monkeypatch.setattr(protobuf_schema, "TEXT_MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="is larger than 10"):
        values.reader("protobuf", HEAD + "message Order { int32 a = 1; }")
