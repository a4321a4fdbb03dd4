from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.errors import DamagedObject
from kafscale.formats.metadata_head import Head, HeadEntry, decode_head, encode_head

entries = st.lists(st.builds(HeadEntry, st.binary(min_size=16, max_size=16), st.binary(max_size=50)), max_size=8)
claims = st.none() | st.binary(max_size=50)
heads = st.builds(Head, st.integers(0, 2**31 - 1), st.integers(0, 2**40), entries.map(tuple), claims)


@given(heads)
def test_an_encoded_head_decodes_to_the_same_head(head: Head) -> None:
    data = b"".join(encode_head(head))
    assert decode_head("head", data) == head
    assert len(data) == head.size_bytes


@given(heads, st.data())
def test_a_head_with_one_other_byte_or_fewer_is_damage(head: Head, data: st.DataObject) -> None:
    encoded = bytearray(b"".join(encode_head(head)))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject):
        decode_head("head", bytes(encoded))
    encoded[place] = encoded[place]
    with pytest.raises(DamagedObject):
        decode_head("head", b"".join(encode_head(head))[:place])


@given(heads, entries, st.integers(0, 2**40))
def test_the_next_head_keeps_every_revision_in_its_place(head: Head, more: list[HeadEntry], kept_until: int) -> None:
    following = head.with_entries(more, kept_until)
    assert following.revision == head.revision + len(more)
    assert head.kept_until <= following.kept_until <= head.revision
    assert following.behind(following.kept_until) == list(following.entries)
    assert following.behind(following.kept_until - 1) is None
    assert following.behind(head.revision) == more


def test_a_head_of_a_later_version_is_refused_with_advice_to_upgrade() -> None:
    data = bytearray(b"".join(encode_head(Head(1))))
    data[9] = 3
    with pytest.raises(DamagedObject, match="start a later version"):
        decode_head("head", bytes(data))
