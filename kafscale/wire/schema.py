"""Declarations of message classes: the layout of each attribute on the wire, and its versions.

    class HeartbeatRequest(Message, key=12, versions=(0, 4), flexible=4):
        group_id: str = wire("string")
        generation_id: int = wire("int32")
        member_id: str = wire("string")
        group_instance_id: str | None = wire("string", since=3, default=None)

Attributes are laid out in the order of the class. A nested struct is a `Struct`. Types are the fixed ones below,
"string", "bytes", "records", `Array(of)`, a struct class, or `Nullable(struct)`. Null is accepted, in every version,
where the annotation ends with `| None`, and refused elsewhere. Elements of arrays are never null.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar, cast

import attrs

MAX: Final = 0x7FFF  # `until` of a field that is in every later version: the greatest int16

NEVER: Final = MAX + 1  # `FLEXIBLE_SINCE` of a message that has no flexible version (KIP-482)

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
}  # types of fixed size and their `struct` codes

VARIABLE: Final = ("string", "bytes", "records")
"""Types with a length in front. "records" is decoded to a memoryview, without a copy, and "bytes" to `bytes`."""

STRING_MAX_BYTES: Final = 0x7FFF
"""Of any version, as in Kafka: what came in one whose lengths have room for more goes out in others."""


@attrs.frozen
class Array:
    """A sequence of one type, decoded to a list. If it `may_be_encoded`, an `EncodedArray` may take its place."""

    of: FieldType
    may_be_encoded: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen(eq=False, repr=False)
class EncodedArray:
    """An array that is encoded already, with its length, for the version that is sent. It iterates over nothing."""

    data: bytes

    def __iter__(self) -> Iterator[Any]:
        return iter(())


T = TypeVar("T")
U = TypeVar("U")


@attrs.define(eq=False, repr=False)
class Mapped(Generic[T, U]):
    """An array whose elements are made, and given to `on_made`, while they are encoded: it is never held whole."""

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
    """Return a `Mapped`, typed as its list. `of` must not change until the message is encoded."""
    return cast("list[U]", Mapped(make, of))


@attrs.frozen
class Nullable:
    """A struct that may be null: an int8 in front of it is -1 for null and 1 for a struct (KIP-893).

    In a tagged field it is an unsigned varint, which is 0 for null and 1 for a struct.
    """

    of: type


FieldType: TypeAlias = "str | type | Array | Nullable"


@attrs.frozen(kw_only=True)
class Field:
    """An attribute of a message class. `default` is `attrs.NOTHING` if it must be given."""

    name: str
    type: FieldType
    since: int
    until: int
    tag: int | None
    always: bool
    nullable: bool
    default: Any

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until


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

    A field that a version lacks is skipped on encode, and keeps its default on decode. A tagged field (KIP-482) is
    encoded if it differs from its default, or `always`. Raises TypeError for an unknown type, or a tagged field without
    a default.
    """
    _check_type(type)
    if tag is not None and default is attrs.NOTHING and factory is None:
        raise TypeError("a tagged field needs a default")
    metadata = {"wire": {"type": type, "since": since, "until": until, "tag": tag, "always": always}}
    if factory is not None:
        return attrs.field(factory=factory, metadata=metadata)
    return attrs.field(default=default, metadata=metadata)


@typing.dataclass_transform(kw_only_default=True, field_specifiers=(wire,))
class _StructType(type):
    """Makes its classes attrs classes, with slots and keywords for all attributes."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **arguments: Any) -> Any:
        made = super().__new__(mcs, name, bases, namespace, **arguments)
        # A class with slots is made a second time.
        return made if "__attrs_attrs__" in namespace else attrs.define(made, kw_only=True)


class Struct(metaclass=_StructType):
    def evolve(self, **changes: Any) -> Self:
        return attrs.evolve(self, **changes)  # type: ignore[misc] # mypy sees no attrs class


class Message(Struct):
    """Base of messages: the key of their API, their versions, and the first flexible one (KIP-482).

    A request that names topics only up to some version declares that one as NEWEST_WITH_NAMES.
    """

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]

    def __init_subclass__(
        cls,
        *,
        key: int | None = None,
        versions: tuple[int, int] | None = None,
        flexible: int = NEVER,
        answers: type[Message] | None = None,
    ) -> None:
        if answers is not None:
            key, flexible = answers.API_KEY, answers.FLEXIBLE_SINCE
            versions = answers.MIN_VERSION, answers.MAX_VERSION
        if key is not None:
            cls.API_KEY = key
        if versions is not None:  # a class with slots is made a second time, without these arguments
            cls.MIN_VERSION, cls.MAX_VERSION = versions
            cls.FLEXIBLE_SINCE = flexible


def _fields_of(cls: type) -> Sequence[Field]:
    return tuple(
        Field(
            name=attribute.name,
            nullable=str(attribute.type).endswith("| None"),
            default=attribute.default.factory() if isinstance(attribute.default, attrs.Factory) else attribute.default,  # type: ignore[arg-type]
            **attribute.metadata["wire"],
        )
        for attribute in attrs.fields(cls)
        if "wire" in attribute.metadata
    )


fields_of: Callable[[type], Sequence[Field]] = cache(_fields_of)  # each version of a class asks several times


def untagged_fields(cls: type, version: int) -> list[Field]:
    """Return the untagged fields of a version. Raises TypeError if an absent field has no default."""
    present = []
    for field in fields_of(cls):
        if not field.is_in(version):
            if field.default is attrs.NOTHING:
                raise TypeError(f"{cls.__name__}.{field.name} is not in version {version} and needs a default")
        elif field.tag is None:
            present.append(field)
    return present


def tagged_fields(cls: type, version: int) -> dict[int, Field]:
    by_tag = {field.tag: field for field in fields_of(cls) if field.tag is not None and field.is_in(version)}
    return dict(sorted(by_tag.items()))


def is_fixed(type_: FieldType) -> typing.TypeGuard[str]:
    return isinstance(type_, str) and type_ in FIXED


def _check_type(type_: FieldType) -> None:
    if isinstance(type_, Array | Nullable):
        _check_type(type_.of)
    elif isinstance(type_, str) and type_ not in FIXED and type_ not in VARIABLE:
        raise TypeError(f"no such wire type: {type_!r}")
    elif isinstance(type_, type) and not attrs.has(type_):
        raise TypeError(f"{type_.__name__} is not an attrs class")
