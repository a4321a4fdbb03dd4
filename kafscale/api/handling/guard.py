"""Makes the checks of an API before its handler sees the request, where there is an authorizer.

What may be refused without knowing more than the request is refused here, for all APIs alike, by the table of
operations. Elements of an array that the client has no right to are taken out, and come back in the answer with their
error, after the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.operations import OPERATIONS, Check
from kafscale.api.handling.partitions import name_of
from kafscale.api.handling.refusals import error_arrays, refusal
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.security.acls import CLUSTER_NAME, ResourceType
from kafscale.security.rights import ERRORS
from kafscale.wire.schema import mapped


async def handle_guarded(services: Services, api: Api, call: Call, request: Any) -> Any:
    """Answer a request by the API's handler, as far as the client may."""
    checks = [each for each in OPERATIONS[api.name] if not each.by_handler and call.version in each.versions]
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


async def _split(services: Services, call: Call, check: Check, elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the elements that the client has the right to, and those that it has not."""
    allowed: list[Any] = []
    denied: list[Any] = []
    async for element in in_turns(elements):
        name = _name(services, check, element)
        may = name is None or services.access.allows(call, check.right, name)
        (allowed if may else denied).append(element)
    return allowed, denied


def _name(services: Services, check: Check, element: Any) -> str | None:
    """The name of what an element is about; None if it is of a topic by an id that no topic has: nothing is told."""
    name: str = element if check.name is None else getattr(element, check.name)
    if not name and check.right.resource_type is ResourceType.TOPIC and hasattr(element, "topic_id"):
        return name_of(services, element.topic_id) or None
    return name


def _append(response: Any, refused: Any) -> None:
    """Put what was refused behind what was answered, of which either may be made only while it is encoded."""
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
