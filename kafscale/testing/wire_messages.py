"""Every message class of the protocol, and Hypothesis strategies that fill one from its own declaration.

Needs hypothesis, a development dependency.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import struct
from typing import Any

from hypothesis import strategies as st

from kafscale.wire import messages as package
from kafscale.wire.schema import FIXED, Array, Field, FieldType, Nullable, fields_of

MAX_ITEMS = 3  # of an array; enough for none, one and several


def message_classes() -> list[type]:
    """The requests, responses and embedded messages of `kafscale.wire.messages`, without the structs inside them."""
    modules = [
        importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)
    ]
    return [
        cls
        for module in modules
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__ and hasattr(cls, "FLEXIBLE_SINCE")
    ]


def message_versions() -> list[tuple[type, int]]:
    """Each message class with each of its versions."""
    return [(cls, version) for cls in message_classes() for version in versions_of(cls)]


def versions_of(cls: Any) -> range:
    """The versions of one message class."""
    return range(cls.MIN_VERSION, cls.MAX_VERSION + 1)


@functools.cache
def messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Messages or structs of a class with every field of the version filled, the others left at their defaults."""
    return st.builds(
        cls, **{field.name: _field(field, version) for field in fields_of(cls) if field.wire.is_in(version)}
    )


def _field(field: Field, version: int) -> st.SearchStrategy[Any]:
    values = _values(field.wire.type, version)
    if field.nullable:
        values = st.none() | values
    if field.wire.tag is not None:
        values = st.just(field.default) | values
    return values


def _values(type_: FieldType, version: int) -> st.SearchStrategy[Any]:
    match type_:
        case Array(of=of):
            return st.lists(_values(of, version), max_size=MAX_ITEMS)
        case Nullable(of=of):
            return st.none() | messages(of, version)
        case type():
            return messages(type_, version)
        case "string":
            return st.text(max_size=8)
        case "bytes" | "records":
            return st.binary(max_size=16)
        case "uuid":
            return st.binary(min_size=16, max_size=16)
        case "bool":
            return st.booleans()
        case "float64":
            return st.floats(allow_nan=False)
    return _integers(FIXED[type_])


def _integers(code: str) -> st.SearchStrategy[int]:
    bits = struct.calcsize(f">{code}") * 8
    if code.isupper():
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
