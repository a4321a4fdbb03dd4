from __future__ import annotations

import json
from collections.abc import Mapping

import attrs
import pytest

from kafscale.cluster.metadata.converter import decode, encode, keeping_others, others_field
from kafscale.errors import DamagedObject


@attrs.frozen
class Sample:
    name: str
    data: bytes = b""
    numbers: tuple[int, ...] = ()
    texts: dict[str, str] = attrs.field(factory=dict)
    maybe: int | None = None


@pytest.mark.parametrize(
    "sample", [Sample("ä"), Sample("a", bytes(range(256)), (1, -(2**63)), {"k": "v"}, 0)], ids=["defaults", "all"]
)
def test_an_encoded_value_decodes_to_an_equal_one(sample: Sample) -> None:
    assert decode(Sample, encode(sample)) == sample


def test_plain_values() -> None:
    assert decode(int, encode(5)) == 5
    assert decode(str, encode("x")) == "x"


def test_unknown_keys_are_ignored_and_absent_ones_take_their_default() -> None:
    assert decode(Sample, b'{"name": "a", "added_later": 1}') == Sample("a")


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b"\xff", b'{"name": "a", "numbers": ["x"]}'])
def test_damage_is_damaged_object(data: bytes) -> None:
    with pytest.raises(DamagedObject, match="Sample"):
        decode(Sample, data)


@keeping_others
@attrs.frozen(kw_only=True)
class Kept:
    name: str
    count: int = 0
    others: Mapping[str, object] = others_field()


def test_fields_of_a_later_version_are_written_back() -> None:
    later = b'{"name":"a","added":{"x":[1]},"count":1}'
    found = decode(Kept, later)
    assert found == Kept(name="a", count=1)
    assert found.others == {"added": {"x": [1]}}
    assert json.loads(encode(attrs.evolve(found, count=2))) == {"name": "a", "count": 2, "added": {"x": [1]}}
    assert encode(Kept(name="a")) == b'{"name":"a","count":0}'
    for damaged in (b"[]", b"1", b'{"count":1}'):
        with pytest.raises(DamagedObject, match="Kept"):
            decode(Kept, damaged)
