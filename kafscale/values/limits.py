"""Limits that all formats share: a number that a schema may use up, and the length of an error's text."""

from __future__ import annotations

import attrs

from kafscale.errors import ConfigError

TEXT_MAX_CHARACTERS = 500


@attrs.define(eq=False, repr=False)
class Count:
    """A number that a schema may use up; `excess` is the error's text."""

    left: int
    excess: str  # what is told when there are too many

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise ConfigError(self.excess)


def error_text(exc: Exception) -> str:
    """Return an error in one line of bounded length."""
    text = " ".join(str(exc)[: 2 * TEXT_MAX_CHARACTERS].split())
    return f"{type(exc).__name__}: {text}"[:TEXT_MAX_CHARACTERS]
