"""What `last(…)` and `tail(…)` mean, which stand where tables do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs

from kafscale.errors import QueryError
from kafscale.spark.sql.clauses import Bound, duration_ms
from kafscale.spark.sql.tokens import tokenize

FUNCTIONS = ("last", "tail")
FUNCTION_FORMS = "last('orders', INTERVAL 15 MINUTES), tail('orders', 20) and tail('orders', 20, PARTITION)"


@attrs.frozen
class Argument:
    """A literal. `is_time`: an interval, in milliseconds."""

    value: Any
    is_time: bool = False


@attrs.frozen(kw_only=True)
class Call:
    """`last(…)` or `tail(…)`, from `start` to `end`. Times are milliseconds."""

    start: int
    end: int
    function: str
    topic: str
    arguments: Sequence[Argument]


def bound_of(call: Call) -> tuple[Bound, int | None]:
    """Return what is read of the topic, and the partition that it is read of, if that is one. Raises QueryError."""
    match call.function, call.arguments:
        case "last", [Argument(int(last_ms), True)]:
            return Bound(last_ms=last_ms), None
        case "last", [Argument(str(text))]:
            return Bound(last_ms=_duration_of(text)), None
        case "tail", [Argument(int(tail_count), False)] if tail_count >= 0:
            return Bound(tail_count=tail_count), None
        case "tail", [Argument(int(tail_count), False), Argument(int(partition), False)] if tail_count >= 0:
            return Bound(tail_count=tail_count), partition
    raise QueryError(f"{call.function}() is called in another way; there are {FUNCTION_FORMS}")


def _duration_of(text: str) -> int:
    tokens = tokenize(text)
    with suppress(ValueError):
        last_ms, used = duration_ms(tokens)
        if used == len(tokens):
            return last_ms
    raise QueryError(f"last(): '{text}' is not a time; allowed: '15m', '1h' or INTERVAL 15 MINUTES")
