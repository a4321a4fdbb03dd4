"""Regular expressions of clients: what they may cost."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from kafscale.cluster.groups.common.patterns import PATTERN_MAX_LENGTH, InvalidPattern, Piece, compile_pattern

NAME = "a" * 248 + "!"  # a topic's name has 249 characters at most


def filled(unit: str) -> str:
    return unit * (PATTERN_MAX_LENGTH // len(unit))


@pytest.mark.parametrize("regex", ["(a+)+$", "(a|aa)+$", "(a*)*b", "(.*a){20}b", "(x+x+)+y", "(a?){30}a{30}b"])
def test_no_expression_takes_longer_than_linear_time(regex: str) -> None:
    """Python's `re` comes to no end with some of these; the bound is a thousand times too wide."""
    begun = time.process_time()
    piece = Piece(compile_pattern(regex), [NAME] * 10)
    piece.run()
    assert not piece.matched
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "unit",
    [
        r"\pL",
        r"\PN",
        r"(?i:\pL)",
        "x{1000}",
        "x{0,1000}",
        "(.{0,9}){99}",
        "[!-\U0010fffe]",
        r"(?i:[!-\x{10fffe}])",
        "a?",
        ".",
    ],
)
def test_an_expression_that_takes_long_to_compile_is_refused_unread(unit: str) -> None:
    """RE2 holds the interpreter meanwhile: 4 KiB of \\pL stopped everything for 130 ms, in a thread as well."""
    begun = time.thread_time()
    with suppress(InvalidPattern):
        compile_pattern(filled(unit))
    assert time.thread_time() - begun < 0.05  # 8 ms at most, on a machine with nothing else to do


def test_a_refusal_is_remembered() -> None:
    regex = filled("a?b*")[:-1] + "("
    with pytest.raises(InvalidPattern) as first:
        compile_pattern(regex)
    begun = time.thread_time()
    for _ in range(100):
        with pytest.raises(InvalidPattern, match="missing"):
            compile_pattern(regex)
    assert time.thread_time() - begun < 0.05
    assert str(first.value)


def test_an_alternation_of_a_hundred_topics_is_accepted() -> None:
    names = [f"orders.{number:02}.clickstream-enriched" for number in range(100)]
    piece = Piece(compile_pattern("|".join(names)), ["orders", *names])
    piece.run()
    assert piece.matched == set(names)


def test_the_pieces_of_a_large_program_are_small() -> None:
    assert compile_pattern("((.{0,5}){9}){9}").piece_count < 20
    assert compile_pattern("orders.*").piece_count == 256
