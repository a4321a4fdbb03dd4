from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.cluster.registries.topic_names import check_topic_name, collision_key, is_internal, is_valid_topic_name
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_TOPIC_EXCEPTION

LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

near_names = st.text(st.sampled_from(sorted(LEGAL)) | st.characters(), max_size=20)
long_names = st.integers(240, 260).map(lambda length: "a" * length)


@given(near_names | long_names)
def test_names_are_legal_as_in_kafka(name: str) -> None:
    expected = 0 < len(name) <= 249 and name not in (".", "..") and set(name) <= LEGAL
    assert is_valid_topic_name(name) is expected


OTHERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a b", f"'a b' {OTHERS}"),
        ("a\n", f"'a\n' {OTHERS}"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_messages_are_kafkas(name: str, reason: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check_topic_name(name)
    assert (caught.value.code, caught.value.message) == (INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def test_names_collide_by_dot_and_underscore_only() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("a-b")


def test_internal_names() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("consumer_offsets")
