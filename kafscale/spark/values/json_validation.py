"""JSON values held to their writer schemas, each within a bound of time: schemas and values may both be a stranger's.

jsonschema knows no bounds. A regular expression may take time that is exponential in the text, as may choices within
choices, and unique items their square. So its keywords are called through a budget of CPU time for each value; regular
expressions are bounded by `kafscale.spark.values.json_patterns`, whose library ends a search after a given time, and
knows more of JavaScript's than `re` does; unique items are compared by their hashes. A value that takes too long is an
error, as one that is not valid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import attrs
import jsonschema

from kafscale.errors import DecodeError
from kafscale.spark.values.json_patterns import compiled

VALIDATION_CPU_SECONDS = 2.0  # of one value; 1 MB of small objects takes half of it
CALLS_BETWEEN_LOOKS = 64  # at the clock

Keyword = Callable[[Any, Any, Any, Any], Any]  # validator, the keyword's value, instance, schema


class _Budget(threading.local):
    """The time and calls that are left for the value which this thread validates."""

    end_seconds: float = 0.0
    _calls: int = 0

    def begin(self) -> None:
        self.end_seconds = time.thread_time() + VALIDATION_CPU_SECONDS

    def spend(self) -> None:
        """Raises DecodeError when it is spent."""
        self._calls += 1
        if self._calls % CALLS_BETWEEN_LOOKS == 0 and time.thread_time() > self.end_seconds:
            raise _too_long()

    def search(self, pattern: str, text: str) -> bool:
        """Tell whether a regular expression is found. Raises DecodeError."""
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
    """Make the validator of a schema. registry: of `referencing`, with what it references.

    Raises what jsonschema does, DecodeError.
    """
    if _has_key(contents, "unevaluatedProperties") and _has_key(contents, "patternProperties"):
        raise DecodeError("unevaluatedProperties beside patternProperties can't be validated within bounds")
    kind = jsonschema.validators.validator_for(contents, default=jsonschema.Draft7Validator)
    kind.check_schema(contents, format_checker=jsonschema.FormatChecker(formats=()))  # patterns may be JavaScript's
    return _bounded(kind)(contents, registry=registry)


def validate(validator: Any, value: Any) -> None:
    """Raises DecodeError if a value is not valid, or that can't be told in time."""
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
    """A class of validators as one of jsonschema's, and for schemas within a schema that are of another draft too."""
    keywords = {name: _within_budget(_OWN.get(name, keyword)) for name, keyword in kind.VALIDATORS.items()}
    bounded = jsonschema.validators.extend(kind, keywords)
    fields = [(each.alias, each.name) for each in attrs.fields(bounded) if each.init]

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
    """Equal for what JSON Schema takes for equal: 1 and 1.0, not 1 and true."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    if isinstance(value, dict):
        return "object", frozenset((name, _hashable(each)) for name, each in value.items())
    return value


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
