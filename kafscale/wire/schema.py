"""Declarations of message classes: the layout of each attribute on the wire, and its versions.

A message is an attrs class whose attributes are made by `wire`:

    @attrs.define(kw_only=True)
    class HeartbeatRequest:
        API_KEY: ClassVar = 12
        MIN_VERSION: ClassVar = 0
        MAX_VERSION: ClassVar = 4
        FLEXIBLE_SINCE: ClassVar = 4

        group_id: str = wire("string")
        generation_id: int = wire("int32")
        member_id: str = wire("string")
        group_instance_id: str | None = wire("string", since=3, default=None)

Attributes are laid out in the order of the class. A nested struct is a plain attrs class without the class variables.
Types are the fixed ones below, "string", "bytes", "records", `Array(of)`, a struct class, or `Nullable(struct)`.

Null is accepted, in every version, where the annotation allows it (`str | None`); elsewhere decoding refuses it, so
that the annotation holds for whatever a peer sends. Elements of arrays are never null.

A request of which a later version knows topics by id alone says as `NEWEST_WITH_NAMES` which is the last with names.

`codec` compiles these declarations; this module imports nothing of it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import attrs

MAX: Final = 0x7FFF
"""`until` of a field that is in every later version: the greatest int16."""

NEVER: Final = MAX + 1
"""`FLEXIBLE_SINCE` of a message that has no flexible version (KIP-482)."""

OWN_TAG: Final = 10_000
"""First tag of fields that are KafScale's own, far from Kafka's. Peers that do not know them skip them (KIP-482), so a
sender must work with an answer that lacks them."""

FIXED: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "bool": "?",
    "float64": "d",
    "uuid": "16s",  # the 16 raw bytes
}
"""Types of fixed size and their `struct` codes."""

VARIABLE: Final = ("string", "bytes", "records")
"""Types with a length in front. "records" is decoded to a memoryview, without a copy, and "bytes" to `bytes`."""

STRING_MAX_BYTES: Final = 0x7FFF
"""Of any version, as in Kafka: what came in one whose lengths have room for more goes out in others."""


@attrs.frozen
class Array:
    """A sequence of one type; decoded to a list. Where it `may_be_encoded`, an `EncodedArray` may stand for one."""

    of: FieldType
    may_be_encoded: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen(eq=False, repr=False)
class EncodedArray:
    """An array that was encoded before, for the version that it goes out in, with its length in front.

    It iterates over nothing: there is nothing to look at in it any more.
    """

    data: bytes

    def __iter__(self) -> Iterator[Any]:
        return iter(())


T = TypeVar("T")
U = TypeVar("U")


@attrs.define(eq=False, repr=False)
class Mapped(Generic[T, U]):
    """An array whose elements are made one by one while they are encoded, so that a long answer is never all objects.

    Made by `mapped`. `on_made`, if set, is shown each element.
    """

    make: Callable[[T], U]
    of: Collection[T]
    on_made: Callable[[U], object] | None = None

    def __len__(self) -> int:
        return len(self.of)

    def __iter__(self) -> Iterator[U]:
        on_made = self.on_made
        for source in self.of:
            element = self.make(source)
            if on_made is not None:
                on_made(element)
            yield element


def mapped(make: Callable[[T], U], of: Collection[T]) -> list[U]:
    """A `Mapped`, typed as the list that it stands for. `of` must not change until the message has been encoded."""
    return cast("list[U]", Mapped(make, of))


@attrs.frozen
class Nullable:
    """A struct that may be null: an int8 in front of it is -1 for null and 1 for a struct (KIP-893).

    In a tagged field it is an unsigned varint, which is 0 for null and 1 for a struct.
    """

    of: type


FieldType: TypeAlias = "str | type | Array | Nullable"


@attrs.frozen
class Wire:
    """Layout of one attribute, and its versions."""

    type: FieldType
    since: int = 0
    until: int = MAX
    tag: int | None = None
    always: bool = False

    def is_in(self, version: int) -> bool:
        """Tell whether the version has this field."""
        return self.since <= version <= self.until


@attrs.frozen
class Field:
    """An attribute of a message class together with its layout."""

    name: str
    wire: Wire
    nullable: bool
    default: Any
    """`attrs.NOTHING` if the attribute must be given."""


def wire(
    type: FieldType,
    *,
    since: int = 0,
    until: int = MAX,
    tag: int | None = None,
    always: bool = False,
    default: Any = attrs.NOTHING,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """Declare an attribute of a message.

    A field that a version does not have keeps its default on decode and is left out on encode. A tagged field (KIP-482)
    is encoded only when it differs from its default, or `always`.

    Raises:
        TypeError: the type is unknown, or a tagged field has no default.
    """
    _check_type(type)
    if tag is not None and default is attrs.NOTHING and factory is None:
        raise TypeError("a tagged field needs a default")
    metadata = {"wire": Wire(type=type, since=since, until=until, tag=tag, always=always)}
    if factory is not None:
        return attrs.field(factory=factory, metadata=metadata)
    return attrs.field(default=default, metadata=metadata)


def fields_of(cls: type) -> Sequence[Field]:
    """Every wire attribute of a message or struct class, in order."""
    return _fields_of(cls)


@cache  # annotations are parsed for it, and each version of a class asks several times
def _fields_of(cls: type) -> Sequence[Field]:
    return tuple(
        Field(
            name=attribute.name,
            wire=attribute.metadata["wire"],
            nullable=_allows_none(attribute.type),
            default=_default_value(attribute.default),
        )
        for attribute in attrs.fields(cls)
        if "wire" in attribute.metadata
    )


def untagged_fields(cls: type, version: int) -> list[Field]:
    """The fields of this version that have a place of their own.

    Raises:
        TypeError: a field that the version does not have has no default either, so it could never be decoded.
    """
    present = []
    for field in fields_of(cls):
        if not field.wire.is_in(version):
            if field.default is attrs.NOTHING:
                raise TypeError(f"{cls.__name__}.{field.name} is not in version {version} and needs a default")
        elif field.wire.tag is None:
            present.append(field)
    return present


def tagged_fields(cls: type, version: int) -> dict[int, Field]:
    """The tagged fields of this version by tag, ascending."""
    by_tag = {
        field.wire.tag: field for field in fields_of(cls) if field.wire.tag is not None and field.wire.is_in(version)
    }
    return dict(sorted(by_tag.items()))


def is_fixed(type_: FieldType) -> typing.TypeGuard[str]:
    """Tell whether values of the type all have one size."""
    return isinstance(type_, str) and type_ in FIXED


def _check_type(type_: FieldType) -> None:
    if isinstance(type_, Array | Nullable):
        _check_type(type_.of)
    elif isinstance(type_, str) and type_ not in FIXED and type_ not in VARIABLE:
        raise TypeError(f"no such wire type: {type_!r}")
    elif isinstance(type_, type) and not attrs.has(type_):
        raise TypeError(f"{type_.__name__} is not an attrs class")


def _default_value(default: Any) -> Any:
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _allows_none(annotation: Any) -> bool:
    """Tell whether `... | None` is at the top of an annotation, which is text where annotations are postponed."""
    if isinstance(annotation, str):
        return any(
            alternative in ("None", "Any") or alternative.startswith("Optional[")
            for alternative in _alternatives(annotation)
        )
    return annotation is None or annotation is Any or type(None) in typing.get_args(annotation)


def _alternatives(annotation: str) -> Iterator[str]:
    """Return what `|` separates outside of brackets.

    By hand: classes are looked at while other threads run, and Python's `ast` may fail in two threads at once
    (SystemError, "AST constructor recursion depth mismatch").
    """
    depth = start = 0
    for end, character in enumerate(annotation):
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            yield annotation[start:end].strip()
            start = end + 1
    yield annotation[start:].strip()
