"""Counting the errors in responses, by API and error, for whatever shape a response has.

Where a response class keeps its error codes follows from its declaration, so no handler counts anything.
"""

from __future__ import annotations

import attrs

from kafscale.metrics import Counter, CounterFamily
from kafscale.wire.error_codes import name
from kafscale.wire.schema import Array, fields_of

ERROR_FIELD = "error_code"


@attrs.frozen(eq=False)
class _Shape:
    """A struct that has an error code of its own, or arrays of structs that do."""

    has_error: bool
    arrays: tuple[tuple[str, _Shape], ...]

    def collect(self, struct: object, codes: list[int]) -> None:
        """Add the struct's errors, and those inside of it. No generator: this is done for every response."""
        if self.has_error and (code := getattr(struct, ERROR_FIELD)):
            codes.append(code)
        for attribute, shape in self.arrays:
            for element in getattr(struct, attribute) or ():
                shape.collect(element, codes)


def _shape_of(cls: type) -> _Shape | None:
    has_error = False
    arrays = []
    for field in fields_of(cls):
        if field.name == ERROR_FIELD:
            has_error = True
        elif isinstance(field.wire.type, Array) and isinstance(field.wire.type.of, type):
            shape = _shape_of(field.wire.type.of)
            if shape is not None:
                arrays.append((field.name, shape))
    return _Shape(has_error, tuple(arrays)) if has_error or arrays else None


@attrs.define(eq=False)
class ErrorCounter:
    """The errors in the responses of one API."""

    api_name: str
    family: CounterFamily
    _shape: _Shape | None
    _counters: dict[int, Counter] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, api_name: str, response: type, family: CounterFamily) -> ErrorCounter:
        return cls(api_name, family, _shape_of(response))

    def count(self, response: object) -> None:
        if self._shape is None:
            return
        codes: list[int] = []
        self._shape.collect(response, codes)
        for code in codes:
            counter = self._counters.get(code)
            if counter is None:
                counter = self._counters[code] = self.family.of(self.api_name, name(code))
            counter.value += 1
