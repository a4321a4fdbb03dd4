"""Temporary replacement of an attribute, such as a function of the broker by a mutation of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace an attribute of a module or class for the block."""
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)
