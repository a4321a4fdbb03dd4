"""What the fields of a Protobuf value are said to take, one by one: the bounds of memory are sums of these."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor

from kafscale.values import protobuf_schema
from kafscale.values.protobuf_bounds import MESSAGE_BYTES, NUMBER_BYTES, TEXT_BYTES, MemoryBounds, _walk
from kafscale.values.registry import Schema

ITEM = "message I { optional int64 a = 1; optional string b = 2; }"
ITEM_BYTES = MESSAGE_BYTES + NUMBER_BYTES + TEXT_BYTES


def descriptor_of(declared: str) -> Descriptor:
    """The message R with these fields, and what is declared beside them."""
    text = f'syntax = "proto2"; message R {{ {declared} }}'
    return protobuf_schema.load(Schema(format="PROTOBUF", text=text)).message_types_by_name["R"]


@pytest.mark.parametrize(
    ("declared", "payload", "taken"),
    [
        (f"repeated I items = 1; {ITEM}", b"\x0a\0", [len("items") + ITEM_BYTES]),
        (
            f"repeated I items = 1; {ITEM}",
            b"\x0a\2\x08\1\x0a\0",
            [len("items") + ITEM_BYTES, 1, len("items") + ITEM_BYTES],
        ),
        (f"optional I one = 1; {ITEM}", b"\x0a\3\x12\1x", [len("one") + ITEM_BYTES, len("b")]),
        ("repeated group G = 1 { optional int32 x = 1; }", b"\x0b\x08\5\x0c", [1 + MESSAGE_BYTES + NUMBER_BYTES, 1]),
        ("optional int32 x = 1;", b"\xfb\1\x08\1\xfc\1\x08\1", [0, 1]),
        ("repeated int64 numbers = 1 [packed = true];", b"\x0a\3\1\x80\2", [len("numbers") + 3 * NUMBER_BYTES]),
        ("repeated fixed32 words = 1 [packed = true];", b"\x0a\x08" + bytes(8), [len("words") + 3 * NUMBER_BYTES]),
        ("repeated double doubles = 1 [packed = true];", b"\x0a\x08" + bytes(8), [len("doubles") + 2 * NUMBER_BYTES]),
        ("repeated double doubles = 1;", b"\x09" + bytes(8), [len("doubles") + NUMBER_BYTES]),
        ("repeated float floats = 1;", b"\x0d" + bytes(4), [len("floats") + NUMBER_BYTES]),
        ("repeated int64 loose = 1;", b"\x08\1\x08\2", [len("loose") + NUMBER_BYTES] * 2),
        ("optional int64 single = 1;", b"\x08\1\x08\2", [len("single")] * 2),
        ("repeated string texts = 1;", b"\x0a\1t", [len("texts") + TEXT_BYTES]),
        ("optional bytes raw = 1;", b"\x0a\1t", [len("raw")]),
        (
            "repeated E colours = 1; enum E { RED = 0; VERMILION = 1; }",
            b"\x08\1",
            [len("colours") + NUMBER_BYTES + len("VERMILION")],
        ),
        (
            f"map<string, I> by_name = 1; {ITEM}",  # an entry without a value gets an empty one
            b"\x0a\3\x0a\1k",
            [len("by_name") + MESSAGE_BYTES + TEXT_BYTES + NUMBER_BYTES + ITEM_BYTES, len("key")],
        ),
        (
            "repeated X items = 1; message X { extensions 100 to 200; } extend X { optional string more = 100; }",
            b"\x0a\4\xa2\6\1x",
            [len("items") + MESSAGE_BYTES + TEXT_BYTES, len("more")],
        ),
    ],
)
def test_each_kind_of_field_has_its_expected_memory_bound(declared, payload, taken):
    bounds = MemoryBounds.of(descriptor_of(declared))
    assert list(_walk(bounds._root, payload, 0)) == taken


@pytest.mark.parametrize(
    ("declared", "most_per_byte"),
    [
        ("optional int32 x = 1;", 1.0),
        ("repeated int64 numbers = 1;", NUMBER_BYTES),  # packed, an element has a byte
        ("repeated E colours = 1; enum E { RED = 0; VERMILION = 1; }", NUMBER_BYTES + len("VERMILION")),
        (f"repeated I items = 1; {ITEM}", (len("items") + ITEM_BYTES) / 2),  # a tag and a length of 0
        ("repeated group G = 1 { optional int32 x = 1; }", (1 + MESSAGE_BYTES + NUMBER_BYTES) / 2),
        (f"optional J one = 2; message J {{ repeated I items = 1; {ITEM} }}", (len("items") + ITEM_BYTES) / 2),
    ],
)
def test_the_most_that_a_byte_can_become_is_that_of_the_costliest_field(declared, most_per_byte):
    """Values that are too short to be too much by it are not walked over."""
    assert MemoryBounds.of(descriptor_of(declared)).most_per_byte == most_per_byte
