"""What is left to Spark."""

from __future__ import annotations


class NotAlike(Exception):
    """A statement that Spark has to answer; the message says why, as the part of a sentence behind "because"."""


class NoTable(NotAlike):
    """A statement names something that is no topic."""

    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' is no topic")
        self.name = name


class TooMuch(NotAlike):
    """A statement would read more than is asked of this engine."""
