"""Error codes in replies to exceptions with the code's name, for people who can't look numbers up."""

from __future__ import annotations

from kafscale.errors import KafkaError
from kafscale.wire import error_codes


def failure(code: int, about: str, message: str | None = None) -> KafkaError:
    """The exception for an error code about something, with what the broker said, if it said anything."""
    text = f"{about}: {error_codes.name(code)}"
    return KafkaError(code, f"{text} ({message})" if message else text)


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise KafkaError unless the code is 0."""
    if code != error_codes.NONE:
        raise failure(code, about, message)
