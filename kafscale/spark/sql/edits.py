"""Places in the text of a statement, and what is to stand there."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen(kw_only=True)
class Edit:
    """Replaces the text from `start` to `end`, which is exclusive. Where both are the same, the text is put in."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """No two of the edits may touch."""
    for each in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: each.start] + each.text + text[each.end :]
    return text
