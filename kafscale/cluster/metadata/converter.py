"""Values of the metadata store: attrs objects to JSON and back, by one cattrs converter; and random ids.

A reader ignores unknown keys, and a field with a default may be absent, so that values of earlier and later versions
can be read. A class that is `keeping_others` keeps the unknown keys. Bytes are base85 text.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs
from cattrs import override
from cattrs.errors import BaseValidationError, StructureHandlerNotFoundError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.preconf.json import make_converter

from kafscale.errors import DamagedObject

T = TypeVar("T")
C = TypeVar("C", bound=attrs.AttrsInstance)

NO_OTHERS: Mapping[str, object] = MappingProxyType({})

_converter = make_converter()


def encode(obj: object) -> bytes:
    """Encode an attrs object, or a plain list, mapping, text or number, as UTF-8 JSON."""
    return _converter.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()


def others_field() -> Any:
    """Declare the field `others` of a class that is `keeping_others`; it does not count for equality."""
    return attrs.field(default=NO_OTHERS, kw_only=True, eq=False)


def keeping_others(cls: type[C]) -> type[C]:
    """Decorate an attrs class so that its values keep the fields of later versions in `others` (`others_field`).

    A broker that changes another field writes them back as they were.
    """
    names = {field.name for field in attrs.fields(attrs.resolve_types(cls))}
    read = make_dict_structure_fn(cls, _converter, others=override(omit=True))
    write = make_dict_unstructure_fn(cls, _converter, others=override(omit=True))

    def structure(value: Mapping[str, object], _: type[C]) -> C:
        found: Any = read(value, cls)
        others = {name: other for name, other in value.items() if name not in names}
        kept: C = attrs.evolve(found, others=others) if others else found
        return kept

    def unstructure(value: Any) -> Mapping[str, object]:
        return {**value.others, **write(value)}

    _converter.register_structure_hook(cls, structure)
    _converter.register_unstructure_hook(cls, unstructure)
    return cls


def decode(cls: type[T], data: bytes) -> T:
    """Decode an object that `encode` wrote. Raises DamagedObject."""
    try:
        return _converter.loads(data, cls)
    except (BaseValidationError, StructureHandlerNotFoundError, ValueError, TypeError, AttributeError) as exc:
        raise DamagedObject(f"the metadata store holds a value that is no {cls.__name__}: {data[:200]!r}") from exc


def random_uuid() -> bytes:
    """Return a random UUID, except those that Kafka reserves (0 to 99) or whose base64 text begins with a dash."""
    while True:
        value = uuid.uuid4().bytes
        if int.from_bytes(value) >= 100 and not uuid_text(value).startswith("-"):
            return value


def uuid_text(value: bytes) -> str:
    """Return 16 bytes as Kafka writes them: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
