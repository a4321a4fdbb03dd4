"""Values of the metadata store: attrs objects to JSON and back, by one cattrs converter.

A reader ignores keys that it does not know and a field with a default may be absent, so that values written by an
earlier or a later version of KafScale can be read. Bytes are base85 text.
"""

from __future__ import annotations

from typing import TypeVar

from cattrs.errors import BaseValidationError, StructureHandlerNotFoundError
from cattrs.preconf.json import make_converter

from kafscale.errors import DamagedObject

T = TypeVar("T")

_converter = make_converter()


def encode(obj: object) -> bytes:
    """An attrs object, or a plain list, mapping, text or number, as UTF-8 JSON."""
    return _converter.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()


def decode(cls: type[T], data: bytes) -> T:
    """The object that `encode` wrote. Raises DamagedObject."""
    try:
        return _converter.loads(data, cls)
    except (BaseValidationError, StructureHandlerNotFoundError, ValueError, TypeError, AttributeError) as exc:
        raise DamagedObject(f"the metadata store holds a value that is no {cls.__name__}: {data[:200]!r}") from exc
