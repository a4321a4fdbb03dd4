"""Validates JSON values against their writer schemas within bounds, as schemas and values may be hostile.

A value has a budget of CPU time. Regular expressions (ECMA-262) are bounded before the library `regex` compiles them:
it writes out repetitions (`(ab){1000}` a thousand times and once more, nested counts multiplied) and keeps each
captured text, so one line of pattern can take gigabytes in a second, or overflow the stack of C. A pattern's
written-out size and depth have limits, and groups capture only for backreferences. Syntax outside of ECMA-262, such as
recursion and approximate matches, is refused.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any

import attrs
import jsonschema
import regex

from kafscale.errors import DecodeError
from kafscale.lru import LruCache

PATTERN_MAX_LENGTH = 10_000  # characters
SIZE_MAX_COUNT = 50_000  # atoms and characters of sets, written out; each takes some 300 bytes, and 1 us to compile
DEPTH_MAX_COUNT = 50  # groups within groups; the library calls itself for each
KEPT_MAX_COUNT = 500_000  # the sizes of all that is kept compiled, together
CAPTURED_MAX_COUNT = 1_000_000  # groups times characters of the text, where backreferences need the groups

_TOKEN = re.compile(
    r"\\(?P<reference>[1-9][0-9]*|[kg]<[^>]*>)|(?P<escape>\\(?:[pPNu]\{[^}]*\}|.))"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<capture>\((?![?*])|\(\?P?<[A-Za-z_]\w*>)|(?P<group>\(\?(?:[:=!]|<[=!]|[ims]+[:)]))|(?P<close>\))"
    r"|(?P<once>\{1\})|\{(?P<least>[0-9]+)(?:,[0-9]*)?\}|(?P<more>\+)|(?P<any>[*?])|(?P<brace>\{)|(?P<unknown>\()|(?P<atom>.)",
    re.DOTALL,
)


@attrs.frozen
class _Pattern:
    """A compiled pattern. capture_count: groups whose texts the library keeps while it searches."""

    compiled: Any
    size: int
    capture_count: int

    def search(self, text: str, timeout_seconds: float) -> bool:
        if self.capture_count * len(text) > CAPTURED_MAX_COUNT:
            raise DecodeError(f"{len(text)} characters are too many for a pattern with backreferences")
        return self.compiled.search(text, timeout=timeout_seconds) is not None


_kept: LruCache[str, _Pattern] = LruCache(KEPT_MAX_COUNT, size_of=attrgetter("size"))
_lock = threading.Lock()


def compiled(pattern: str) -> _Pattern:
    """Compile a pattern, or take the kept one. Raises DecodeError."""
    with _lock:
        found = _kept.get(pattern)
    if found is None:
        found = _compile(pattern)
        with _lock:
            _kept.put(pattern, found)
    return found


def _compile(pattern: str) -> _Pattern:
    text, size, capture_count = _bounded_pattern(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later version may take for sets within sets
            return _Pattern(regex.compile(text, cache_pattern=False), size, capture_count)
    except (regex.error, RecursionError, OverflowError) as exc:
        raise DecodeError(f"{_shown(pattern)} is not a regular expression: {exc}") from exc


def _bounded_pattern(pattern: str) -> tuple[str, int, int]:
    if len(pattern) > PATTERN_MAX_LENGTH:
        raise DecodeError(f"a pattern has {len(pattern)} characters; allowed: at most {PATTERN_MAX_LENGTH}")
    captures = any(found["reference"] is not None for found in _TOKEN.finditer(pattern))
    parts: list[str] = []
    sizes, last, capture_count = [0], 0, 0  # of each group that is open, and of the last atom or group
    for found in _TOKEN.finditer(pattern):
        kind, part = found.lastgroup, found[0]
        if kind == "unknown":
            raise DecodeError(f"{_shown(pattern)} has {pattern[found.start() :][:4]!r}, which ECMA-262 does not know")
        if kind in ("least", "more"):
            more = last * int(found["least"] or 1)
            sizes[-1], last = sizes[-1] + more, last + more
        elif kind in ("capture", "group") and not part.endswith(")"):
            sizes.append(1)
            if kind == "capture":
                capture_count += 1
                part = part if captures else "(?:"
        elif kind == "close" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif kind not in ("any", "once"):
            last = len(part) if kind == "set" else 1
            sizes[-1] += last
            part = part.replace("\\k<", "\\g<") if kind == "reference" else part  # as the library calls it
        parts.append("\\{" if kind == "brace" else part)
        if sizes[-1] > SIZE_MAX_COUNT or len(sizes) > DEPTH_MAX_COUNT:
            raise DecodeError(
                f"{_shown(pattern)} is too large, its repetitions written out ({SIZE_MAX_COUNT}), or its groups too "
                f"deep ({DEPTH_MAX_COUNT})"
            )
    return "".join(parts), sum(sizes), capture_count if captures else 0


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:100]}…")


VALIDATION_CPU_SECONDS = 2.0  # of one value; 1 MB of small objects takes half of it
CALLS_BETWEEN_LOOKS = 64  # at the clock

Keyword = Callable[[Any, Any, Any, Any], Any]  # validator, the keyword's value, instance, schema


class _Budget(threading.local):
    end_seconds: float = 0.0
    _calls: int = 0

    def begin(self) -> None:
        self.end_seconds = time.thread_time() + VALIDATION_CPU_SECONDS

    def spend(self) -> None:
        self._calls += 1
        if self._calls % CALLS_BETWEEN_LOOKS == 0 and time.thread_time() > self.end_seconds:
            raise _too_long()

    def search(self, pattern: str, text: str) -> bool:
        left_seconds = self.end_seconds - time.thread_time()
        try:
            if left_seconds > 0:
                return compiled(pattern).search(text, left_seconds)
        except TimeoutError as exc:
            raise _too_long() from exc
        raise _too_long()


_budget = _Budget()


def _too_long() -> DecodeError:
    return DecodeError(f"to hold it to its writer schema takes more than {VALIDATION_CPU_SECONDS:g} s")


def make_validator(contents: Any, registry: Any) -> Any:
    """Make the validator of a schema. registry: of `referencing`, with its references.

    Raises jsonschema's errors, DecodeError.
    """
    if _has_key(contents, "unevaluatedProperties") and _has_key(contents, "patternProperties"):
        raise DecodeError("unevaluatedProperties beside patternProperties can't be validated within bounds")
    kind = jsonschema.validators.validator_for(contents, default=jsonschema.Draft7Validator)
    kind.check_schema(contents, format_checker=jsonschema.FormatChecker(formats=()))  # patterns may be JavaScript's
    return _bounded(kind)(contents, registry=registry)


def validate(validator: Any, value: Any) -> None:
    """Raise DecodeError if a value is invalid, or can't be checked in time."""
    _budget.begin()
    try:
        validator.validate(value)
    except jsonschema.ValidationError as exc:
        raise DecodeError(f"not valid by its writer schema: {exc.json_path}: {exc.message}") from exc


def _has_key(contents: Any, key: str) -> bool:
    pending = [contents]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if key in node:
                return True
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return False


@lru_cache
def _bounded(kind: Any) -> Any:
    """Return a bounded class of validators, also for inner schemas of another draft."""
    keywords = {name: _within_budget(_OWN.get(name, keyword)) for name, keyword in kind.VALIDATORS.items()}
    bounded = jsonschema.validators.extend(kind, keywords)
    fields = [(field.alias, field.name) for field in attrs.fields(bounded) if field.init]

    def evolve(validator: Any, **changes: Any) -> Any:
        made, schema = bounded, changes.get("schema", validator.schema)
        if isinstance(schema, dict) and "$schema" in schema:
            made = _bounded(jsonschema.validators.validator_for(schema, default=kind))
        for alias, name in fields:
            if alias not in changes:
                changes[alias] = getattr(validator, name)
        return made(**changes)

    bounded.evolve = evolve
    return bounded


def _within_budget(keyword: Keyword) -> Keyword:
    def call(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _budget.spend()
        return keyword(validator, value, instance, schema)

    return call


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "string") and not _budget.search(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, schema in patterns.items():
            for name, value in instance.items():
                if _budget.search(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in instance:
        if name in known or any(_budget.search(pattern, name) for pattern in patterns):
            continue
        if validator.is_type(allowed, "object"):
            yield from validator.descend(instance[name], allowed, path=name)
        elif not allowed:
            yield jsonschema.ValidationError(f"additional properties are not allowed, and there is {name!r}")


def _unique_items(validator: Any, is_asked: Any, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    if is_asked and validator.is_type(instance, "array") and len(set(map(_hashable, instance))) < len(instance):
        yield jsonschema.ValidationError("two of its items are the same")


def _hashable(value: Any) -> Any:
    """Return an equal key for values that JSON Schema takes for equal: 1 and 1.0, not 1 and true."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    if isinstance(value, dict):
        return "object", frozenset((name, _hashable(member)) for name, member in value.items())
    return value


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
