"""The blocks of code of a page, for tests that do what it says."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return each block's language, which may be empty, and its text."""
    return _BLOCK.findall(page)
