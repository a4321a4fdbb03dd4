"""Every message class of the protocol, and messages at random, made from each class's own declaration.

    for message in some_messages(FetchRequest, 12, 20): ...

They come from `random`, which `tests/conftest.py` seeds before each test. Values are often those at which an encoding
changes: zero, minus one, the least and the greatest of a type, nothing, and lengths that need a second byte.

Drawn value by value by Hypothesis a message costs more than ten times as much as its round trip, and the classes have
more than three hundred versions to be tried. `messages` is for tests that let Hypothesis draw something else too.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import random
import struct
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeAlias

from hypothesis import strategies as st

from kafscale.wire import messages as package
from kafscale.wire.schema import FIXED, Array, Field, FieldType, Nullable, fields_of

ARRAY_LENGTHS = (0, 1, 1, 2, 3)
MAX_BYTES = 16  # of most values
LONG_BYTES = 130  # of few: two bytes of length, where lengths are varints
LONG_ONE_IN = 50
UUID_BYTES = 16
CHARACTERS = "aZ0 .-\0\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"  # both ends of each UTF-8 length
FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-300, sys.float_info.max, sys.float_info.min, float("inf"), float("-inf"))

Make: TypeAlias = Callable[[Random], Any]


def message_classes() -> list[type]:
    """Kafka's requests, responses and embedded messages, without structs and without KafScale's extensions."""
    modules = [
        importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)
    ]
    return [
        cls
        for module in modules
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__ and "FLEXIBLE_SINCE" in vars(cls)
    ]


def message_versions() -> list[tuple[type, int]]:
    """Return each message class with each of its versions."""
    return [(cls, version) for cls in message_classes() for version in versions_of(cls)]


def versions_of(cls: Any) -> range:
    """The versions of one message class."""
    return range(cls.MIN_VERSION, cls.MAX_VERSION + 1)


def some_messages(cls: type, version: int, count: int) -> Iterator[Any]:
    """Messages or structs of a class with every field of the version filled, the others left at their defaults."""
    rng = Random(random.getrandbits(64))
    make = _maker(cls, version)
    for _ in range(count):
        yield make(rng)


def messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    """The same as a strategy of Hypothesis; it draws the seed of a message."""
    make = _maker(cls, version)
    return st.integers(0, 2**64 - 1).map(lambda seed: make(Random(seed)))


@functools.cache
def _maker(cls: type, version: int) -> Make:
    """Maker of messages of a class; each of its fields is looked at once."""
    makers = {field.name: _field_maker(field, version) for field in fields_of(cls) if field.is_in(version)}
    return lambda rng: cls(**{name: make(rng) for name, make in makers.items()})


def _field_maker(field: Field, version: int) -> Make:
    make = _value_maker(field.type, version)
    if field.nullable:
        make = _now_and_then(None, make)
    if field.tag is not None:
        make = _now_and_then(field.default, make)
    return make


def _now_and_then(value: Any, make: Make) -> Make:
    return lambda rng: value if rng.random() < 0.3 else make(rng)


def _value_maker(type_: FieldType, version: int) -> Make:
    match type_:
        case Array(of=of):
            make = _value_maker(of, version)
            return lambda rng: [make(rng) for _ in range(rng.choice(ARRAY_LENGTHS))]
        case Nullable(of=of):
            return _now_and_then(None, _maker(of, version))
        case type():
            return _maker(type_, version)
        case "string":
            return lambda rng: "".join(rng.choices(CHARACTERS, k=_length(rng) // 2))
        case "bytes" | "records":
            return lambda rng: rng.randbytes(_length(rng))
        case "uuid":
            return lambda rng: rng.randbytes(UUID_BYTES)
        case "bool":
            return lambda rng: rng.random() < 0.5
        case "float64":
            return lambda rng: rng.choice(FLOATS) if rng.random() < 0.5 else rng.uniform(-1e9, 1e9)
    return _integer_maker(FIXED[type_])


def _length(rng: Random) -> int:
    return LONG_BYTES * 2 if rng.random() < 1 / LONG_ONE_IN else rng.randrange(MAX_BYTES + 1)


def _integer_maker(code: str) -> Make:
    bits = struct.calcsize(f">{code}") * 8
    least = 0 if code.isupper() else -(2 ** (bits - 1))
    greatest = least + 2**bits - 1
    edges = [number for number in (0, 1, -1, least, greatest) if number >= least]
    return lambda rng: rng.choice(edges) if rng.random() < 0.5 else rng.randint(least, greatest)
