"""Regular expressions of clients: compiled within a budget, and matched in pieces of about equal work.

The syntax and the engine are RE2's: linear time, no backtracking, bounded memory. Kafka has a port of it. With `re`,
`(a+)+$` would stop the broker. RE2 holds the interpreter while it compiles, in a thread as well. So expressions with
many Unicode classes (75 us each), wide ranges, or repetitions (40 us for a thousand copies) are refused unread; the
rest takes 8 ms at most. RE2 releases the interpreter while it matches: a `Piece` belongs in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import attrs

# Kafka has no limit but that of a string, 32 KiB. An alternation of 100 names of topics has some 3,000.
PATTERN_MAX_LENGTH: Final = 4096
# For the program and the automata of one expression. RE2's own default is 8 MiB. The alternation takes 80 KiB.
PATTERN_MEMORY_BYTES: Final = 128 << 10
CLASSES_MAX_COUNT: Final = 16  # Unicode classes, and ranges that end beyond ASCII
REPETITIONS_MAX_SUM: Final = 1000  # of all upper bounds together; RE2's own bound for each of them
COMPILED_MAX_COUNT: Final = 128  # outcomes that are remembered
# Instructions of the program, for each name of a piece: where RE2's automaton outgrows its memory, each instruction
# takes a nanosecond for each character, so that a piece takes some milliseconds.
PIECE_WORK: Final = 40_000
PIECE_MAX_COUNT: Final = 256  # names, of which Python takes about a microsecond each

_CLASS: Final = re.compile(r"\\[pP]|-(?:\\x|[^\x00-\x7f])")
_REPETITION: Final = re.compile(r"\{([0-9]{1,5})(?:,([0-9]{0,5}))?")


class InvalidPattern(ValueError):
    """An expression that is not RE2's syntax, or too large; the text says why."""


@attrs.frozen(eq=False, repr=False)
class Pattern:
    """A compiled expression."""

    fullmatch: Callable[[str], Any]
    piece_count: int  # names that are matched in one piece


@attrs.define(eq=False, repr=False)
class Piece:
    """Names that `run` matches at a stretch; it may be called in a thread."""

    pattern: Pattern
    names: Sequence[str]
    matched: Collection[str] = ()

    def run(self) -> None:
        """Fill `matched` with the names that match as a whole."""
        fullmatch = self.pattern.fullmatch
        self.matched = {name for name in self.names if fullmatch(name)}


def compile_pattern(text: str) -> Pattern:
    """Return a compiled expression. Raises InvalidPattern."""
    if len(text) > PATTERN_MAX_LENGTH:
        raise InvalidPattern(f"it has {len(text)} characters; {PATTERN_MAX_LENGTH} are allowed")
    outcome = _outcome(text)
    if isinstance(outcome, str):
        raise InvalidPattern(outcome)
    return outcome


@lru_cache(COMPILED_MAX_COUNT)
def _outcome(text: str) -> Pattern | str:
    import re2  # on the first expression: most brokers never see one

    class_count = len(_CLASS.findall(text))
    if class_count > CLASSES_MAX_COUNT:
        return f"it has {class_count} Unicode classes and ranges beyond ASCII; {CLASSES_MAX_COUNT} are allowed"
    repetitions = sum(max(int(bound or 0) for bound in bounds) for bounds in _REPETITION.findall(text))
    if repetitions > REPETITIONS_MAX_SUM:
        return f"its repetitions come to {repetitions} together; {REPETITIONS_MAX_SUM} are allowed"
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(text, options)
    except re2.error as exc:
        return exc.args[0].decode(errors="replace") if exc.args and isinstance(exc.args[0], bytes) else str(exc)
    return Pattern(compiled.fullmatch, min(PIECE_MAX_COUNT, max(1, PIECE_WORK // compiled.programsize)))
