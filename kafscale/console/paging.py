"""Pages of long lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar
from urllib.parse import urlencode

import attrs

PER_PAGE = 50
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Pages(Generic[T]):
    """One page of a list: its `rows`, and links to the others that keep the other parameters."""

    rows: Sequence[T]
    number: int
    last: int
    total: int
    path: str
    parameters: Mapping[str, str]

    def link(self, number: int) -> str:
        return f"{self.path}?{urlencode({**self.parameters, 'page': number})}"


def page_number(text: str) -> int:
    """Read a page's number; anything else is the first page."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def paged(
    entries: Sequence[T], number: str, path: str, *, parameters: Mapping[str, str], per_page: int = PER_PAGE
) -> Pages[T]:
    """Return a page of all entries; a `number` that there is not becomes the nearest."""
    last = max(1, -(-len(entries) // per_page))
    wanted = min(page_number(number), last)
    rows = entries[(wanted - 1) * per_page : wanted * per_page]
    return Pages(rows=rows, number=wanted, last=last, total=len(entries), path=path, parameters=parameters)
