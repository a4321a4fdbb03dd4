"""Counts the errors in responses, by API and error, wherever the response's declaration has error codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import attrs

from kafscale.metrics import Counter, CounterFamily
from kafscale.wire.error_codes import name
from kafscale.wire.schema import Array, Mapped, fields_of

ERROR_FIELD = "error_code"


@attrs.frozen(eq=False, repr=False)
class _Shape:
    """A struct with an error code, or with arrays of such structs."""

    has_error: bool
    arrays: tuple[tuple[str, _Shape], ...]

    def count(self, count: Callable[[int], None], struct: object) -> None:
        """Count errors of a struct and its arrays, of a lazy array when it is made. Not a generator, for speed."""
        if self.has_error and (code := getattr(struct, ERROR_FIELD)):
            count(code)
        for attribute, shape in self.arrays:
            elements = getattr(struct, attribute)
            if elements.__class__ is Mapped:
                elements.on_made = partial(shape.count, count)
                continue
            for element in elements or ():
                shape.count(count, element)


@cache
def _shape_of(cls: type) -> _Shape | None:
    has_error = False
    arrays = []
    for field in fields_of(cls):
        if field.name == ERROR_FIELD:
            has_error = True
        elif isinstance(field.type, Array) and isinstance(field.type.of, type):
            shape = _shape_of(field.type.of)
            if shape is not None:
                arrays.append((field.name, shape))
    return _Shape(has_error, tuple(arrays)) if has_error or arrays else None


@attrs.define(eq=False, repr=False)
class ErrorCounter:
    api_name: str
    family: CounterFamily
    _shape: _Shape | None
    _counters: dict[int, Counter] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, api_name: str, response: type, family: CounterFamily) -> ErrorCounter:
        return cls(api_name, family, _shape_of(response))

    def count(self, response: object) -> None:
        if self._shape is not None:
            self._shape.count(self._count, response)

    def _count(self, code: int) -> None:
        counter = self._counters.get(code)
        if counter is None:
            counter = self._counters[code] = self.family.of(self.api_name, name(code))
        counter.value += 1
