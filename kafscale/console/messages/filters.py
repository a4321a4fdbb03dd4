"""Filters of messages: parts of key, value and header, and a JSON path into the value.

A path is a small part of JSONPath (RFC 9535) that costs one walk over the value: `$.order.lines[0].sku`, `['a name']`,
`[*]` or `.*` for all children, and once `..name` for a name at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from kafscale.console.messages.reading import TopicMessage
from kafscale.errors import ConfigError

PATH_MAX_COUNT = 500  # characters
NODES_MAX_COUNT = 100_000  # looked at in one value
_STEP = re.compile(
    r"\.\.(?P<deep>[\w-]+)|\.(?P<name>[\w-]+)|\.(?P<star>\*)|\[(?P<index>-?\d{1,9})\]|\[(?P<all>\*)\]"
    r"|\[(?P<quote>['\"])(?P<quoted>[^'\"]*)(?P=quote)\]"
)


@attrs.frozen
class Step:
    """One step of a path: a name, an index, or None for all children; `is_deep` looks at any depth."""

    wanted: str | int | None
    is_deep: bool = False


def parse_path(text: str) -> Sequence[Step]:
    """Read a path. Raises ConfigError."""
    position = 1 if text.startswith("$") else 0
    steps: list[Step] = []
    rest = text if position or text.startswith(("[", ".")) else f".{text}"
    while position < len(rest):
        found = _STEP.match(rest, position)
        if found is None or len(text) > PATH_MAX_COUNT:
            raise ConfigError(
                f"'{text[:PATH_MAX_COUNT]}' is not a path that is understood here: write $.order.lines[0].sku, "
                "['a name'], [*] for all, or once ..name for any depth"
            )
        steps.append(_step(found))
        position = found.end()
    if sum(step.is_deep for step in steps) > 1:
        raise ConfigError(f"'{text}' has .. more than once: use it for one name only")
    return steps


def _step(found: re.Match[str]) -> Step:
    if found["deep"] is not None:
        return Step(found["deep"], is_deep=True)
    if found["index"] is not None:
        return Step(int(found["index"]))
    if found["star"] or found["all"]:
        return Step(None)
    return Step(found["quoted"] if found["name"] is None else found["name"])


def values_at(value: Any, steps: Sequence[Step]) -> Iterator[Any]:
    """Iterate over the values at a path, of the first NODES_MAX_COUNT nodes."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    for _ in range(NODES_MAX_COUNT):
        if not pending:
            return
        node, depth = pending.pop()
        if depth == len(steps):
            yield node
            continue
        step = steps[depth]
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        if step.is_deep:
            pending += reversed([(child, depth) for _, child in children])
            if isinstance(node, dict) and step.wanted in node:
                pending.append((node[step.wanted], depth + 1))
        elif step.wanted is None:
            pending += reversed([(child, depth + 1) for _, child in children])
        elif isinstance(step.wanted, str):
            if isinstance(node, dict) and step.wanted in node:
                pending.append((node[step.wanted], depth + 1))
        elif isinstance(node, list) and -len(node) <= step.wanted < len(node):
            pending.append((node[step.wanted], depth + 1))


def as_text(value: Any) -> str:
    """Return a JSON value as people write it in a filter."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


@attrs.frozen(kw_only=True)
class MessageFilter:
    """Parts that a message must have; empty ones match all. Upper and lower case are the same.

    `header` is a part of NAME=VALUE. `text_of` returns key or value as the page shows them, `json_of` the value as
    JSON, or raises ValueError.
    """

    key: str
    value: str
    header: str
    path: Sequence[Step] | None
    equals: str
    text_of: Callable[[TopicMessage, bool], str]
    json_of: Callable[[TopicMessage], Any]

    @property
    def is_empty(self) -> bool:
        return not (self.key or self.value or self.header or self.path is not None)

    def matches(self, message: TopicMessage) -> bool:
        if self.is_empty:
            return True
        if not message.is_record:
            return False
        return self._has_header(message) and self._has_texts(message) and self._has_path(message)

    def _has_header(self, message: TopicMessage) -> bool:
        wanted = self.header.lower()
        return not wanted or any(
            wanted in f"{name}={(value or b'').decode(errors='replace')}".lower()
            for name, value in message.record.headers
        )

    def _has_texts(self, message: TopicMessage) -> bool:
        return all(
            not wanted or wanted.lower() in self.text_of(message, is_key).lower()
            for wanted, is_key in ((self.key, True), (self.value, False))
        )

    def _has_path(self, message: TopicMessage) -> bool:
        if self.path is None:
            return True
        try:
            value = self.json_of(message)
        except ValueError:
            return False
        return any(not self.equals or as_text(found) == self.equals for found in values_at(value, self.path))
