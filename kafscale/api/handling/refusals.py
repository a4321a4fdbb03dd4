"""An error as the answer to any request, without running it: for who may not, and for tests of clients.

The answer names what the request named, as Kafka's do: each topic, partition, group or resource gets the error, and so
does the answer as a whole where it has a place for one. It follows from the declarations of both messages, so no API
needs a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from kafscale.wire import error_codes
from kafscale.wire.messages.records import FetchResponse
from kafscale.wire.schema import Array, Field, FieldType, fields_of, mapped

Many = Callable[[Callable[[Any], Any], Sequence[object]], list[Any]]

ERROR_FIELD = "error_code"
# What one message calls differently from its answer.
_ALIASES = {"partition_index": ("partition",), "topic": ("name",), "name": ("topic",)}
_NOT_ASKED_FOR = frozenset({"forgotten_topics_data"})  # a fetch takes these out of its session
_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": None, "bool": False, "uuid": bytes(16), "float64": 0.0}


def refusal(request: object, response_class: type, error_code: int, *, many: Many = mapped) -> Any:
    """The answer that refuses everything that the request asks for.

    many: makes the elements of an array, by itself while they are encoded, as there may be a million.
    """
    response = _answer(many, response_class, error_code, request)
    if isinstance(response, FetchResponse) and response.responses:
        response.error_code = error_codes.NONE  # that one is for fetch sessions; clients look at partitions first
    return response


def at_once(make: Callable[[Any], Any], of: Sequence[object]) -> list[Any]:
    """Make the elements of an array now, for who wants to look at them."""
    return [make(each) for each in of]


def set_errors(struct: Any, error_code: int) -> None:
    """Put the error wherever a response, or what is inside of it, has a place for one."""
    for field in fields_of(type(struct)):
        if field.name == ERROR_FIELD:
            struct.error_code = error_code
        elif (element := _struct_of(field)) is not None and _has_errors(element):
            for each in getattr(struct, field.name) or ():
                set_errors(each, error_code)


def error_arrays(response_class: type) -> Sequence[str]:
    """Return the arrays of a response, by name, that have a place for an error for each of what was asked for."""
    return [
        field.name
        for field in fields_of(response_class)
        if (element := _struct_of(field)) is not None and _has_errors(element)
    ]


def _answer(many: Many, answer_class: type, error_code: int, asked: object) -> Any:
    """One struct of the answer for one element of the request: a struct, or a plain name or number."""
    values: dict[str, Any] = {}
    identity = asked if isinstance(asked, str | int) else None
    for field in fields_of(answer_class):
        element = _struct_of(field)
        if field.name == ERROR_FIELD:
            values[field.name] = error_code
        elif element is not None:
            if _has_errors(element):
                answer = partial(_answer, many, element, error_code)
                values[field.name] = many(answer, _elements(asked, field.name))
            elif field.default is attrs.NOTHING:
                values[field.name] = []
        elif identity is not None and field.default is attrs.NOTHING:
            values[field.name], identity = identity, None
        elif (found := _asked_for(asked, field.name)) is not None:
            values[field.name] = found
        elif field.default is attrs.NOTHING:
            values[field.name] = None if field.nullable else _zero(field.wire.type)
    return answer_class(**values)


def _elements(asked: object, name: str) -> Sequence[object]:
    """The array of the request that an array of the answer goes with: of the same name, or the first that is filled."""
    if not attrs.has(type(asked)):
        return ()
    same: Sequence[object] | None = getattr(asked, name, None)
    if same:
        return same
    arrays = [field.name for field in fields_of(type(asked)) if isinstance(field.wire.type, Array)]
    filled = (getattr(asked, each) for each in arrays if each not in _NOT_ASKED_FOR)
    return next(filter(None, filled), ())


def _asked_for(asked: object, name: str) -> Any:
    for each in (name, *_ALIASES.get(name, ())):
        if (found := getattr(asked, each, None)) is not None and not isinstance(found, list):
            return found
    return None


def _struct_of(field: Field) -> type | None:
    type_ = field.wire.type
    return type_.of if isinstance(type_, Array) and isinstance(type_.of, type) else None


def _has_errors(cls: type) -> bool:
    return any(
        field.name == ERROR_FIELD or ((element := _struct_of(field)) is not None and _has_errors(element))
        for field in fields_of(cls)
    )


def _zero(type_: FieldType) -> Any:
    if isinstance(type_, Array):
        return []
    return _ZEROS.get(type_, 0) if isinstance(type_, str) else None
