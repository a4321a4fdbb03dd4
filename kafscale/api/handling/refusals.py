"""Answers any request with an error, without its handler.

`handle_guarded` checks the rights of a request by the table of operations. Elements of an array that the client has no
right to are removed, and answered with their error after the others.

As in Kafka, a refusal names the topics, partitions, groups or resources of the request. Each gets the error, and so
does the response if it has a field for one. `refusal` derives this from the declarations of both messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import attrs

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.operations import OPERATIONS, RightCheck
from kafscale.api.handling.partitions import name_of
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.security.acls import CLUSTER_NAME, ERRORS, ResourceType
from kafscale.wire import error_codes
from kafscale.wire.messages.records import FetchResponse
from kafscale.wire.schema import Array, Field, FieldType, fields_of, mapped

Many = Callable[[Callable[[Any], Any], Sequence[object]], list[Any]]

ERROR_FIELD = "error_code"
# Field names that differ between a message and its answer.
_ALIASES = {"partition_index": ("partition",), "topic": ("name",), "name": ("topic",)}
_NOT_ASKED_FOR = frozenset({"forgotten_topics_data"})  # a fetch removes these from its session
_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": None, "bool": False, "uuid": bytes(16), "float64": 0.0}


def refusal(request: object, response_class: type, error_code: int, *, many: Many = mapped) -> Any:
    """Return the response that refuses all of a request. By default elements are made while they are encoded."""
    response = _answer(many, response_class, error_code, request)
    if isinstance(response, FetchResponse) and response.responses:
        response.error_code = error_codes.NONE  # only for fetch sessions; clients look at partitions first
    return response


def at_once(make: Callable[[Any], Any], of: Sequence[object]) -> list[Any]:
    return [make(source) for source in of]


def set_errors(struct: Any, error_code: int) -> None:
    for field in fields_of(type(struct)):
        if field.name == ERROR_FIELD:
            struct.error_code = error_code
        elif (element := _struct_of(field)) is not None and _has_errors(element):
            for inner in getattr(struct, field.name) or ():
                set_errors(inner, error_code)


def error_arrays(response_class: type) -> Sequence[str]:
    return [
        field.name
        for field in fields_of(response_class)
        if (element := _struct_of(field)) is not None and _has_errors(element)
    ]


def _answer(many: Many, answer_class: type, error_code: int, asked: object) -> Any:
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
            values[field.name] = None if field.nullable else _zero(field.type)
    return answer_class(**values)


def _elements(asked: object, name: str) -> Sequence[object]:
    """Return the array of the request for an array of the answer: with the same name, or the first one not empty."""
    if not attrs.has(type(asked)):
        return ()
    same: Sequence[object] | None = getattr(asked, name, None)
    if same:
        return same
    arrays = [field.name for field in fields_of(type(asked)) if isinstance(field.type, Array)]
    filled = (getattr(asked, array) for array in arrays if array not in _NOT_ASKED_FOR)
    return next(filter(None, filled), ())


def _asked_for(asked: object, name: str) -> Any:
    for alias in (name, *_ALIASES.get(name, ())):
        if (found := getattr(asked, alias, None)) is not None and not isinstance(found, list):
            return found
    return None


def _struct_of(field: Field) -> type | None:
    type_ = field.type
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


async def handle_guarded(services: Services, api: Api, call: Call, request: Any) -> Any:
    """Answer a request by the API's handler, as far as the client has the rights."""
    checks = [check for check in OPERATIONS[api.name] if not check.by_handler and call.version in check.versions]
    refused = None
    for check in checks:
        if check.unless is not None and services.access.allows(call, check.unless, tells=False):
            continue
        error_code = ERRORS[check.right.resource_type]
        if check.each is None:
            name = CLUSTER_NAME if check.name is None else getattr(request, check.name)
            if not services.access.allows(call, check.right, name or ""):
                return refusal(request, api.response, error_code)
            continue
        allowed, denied = await _split(services, call, check, getattr(request, check.each) or ())
        if denied:
            refused = refusal(attrs.evolve(request, **{check.each: denied}), api.response, error_code)
            if not allowed:
                return refused
            setattr(request, check.each, allowed)
    response = api.handle(services, call, request)
    if inspect.isawaitable(response):
        response = await response
    if refused is not None:
        _append(response, refused)
    return response


async def _split(
    services: Services, call: Call, check: RightCheck, elements: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    allowed: list[Any] = []
    denied: list[Any] = []
    async for element in in_turns(elements):
        name = _name(services, check, element)
        may = name is None or services.access.allows(call, check.right, name)
        (allowed if may else denied).append(element)
    return allowed, denied


def _name(services: Services, check: RightCheck, element: Any) -> str | None:
    """Return the name of an element's resource; None for an unknown topic id, which reveals nothing."""
    name: str = element if check.name is None else getattr(element, check.name)
    if not name and check.right.resource_type is ResourceType.TOPIC and hasattr(element, "topic_id"):
        return name_of(services, element.topic_id) or None
    return name


def _append(response: Any, refused: Any) -> None:
    """Append refused elements to the response. Both may be made only while they are encoded."""
    for name in error_arrays(type(response)):
        more = getattr(refused, name)
        if more:
            setattr(response, name, mapped(_itself, _Both(getattr(response, name) or (), more)))


@attrs.frozen(eq=False, repr=False)
class _Both(Collection[Any]):
    """Two arrays as one."""

    first: Collection[Any]
    second: Collection[Any]

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __iter__(self) -> Iterator[Any]:
        yield from self.first
        yield from self.second

    def __contains__(self, element: object) -> bool:
        return element in self.first or element in self.second


def _itself(element: Any) -> Any:
    return element
