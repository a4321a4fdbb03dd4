from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.metadata.converter import decode, encode
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
def test_what_was_encoded_decodes_equal(sample: Sample) -> None:
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
