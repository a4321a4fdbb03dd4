"""Taking a feature away: a component replaced by a subclass that does without."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

T = TypeVar("T")


def replaced(component: Any, subclass: type[T], **further: Any) -> T:
    """An instance of a subclass with the fields of a component that has not been used yet."""
    fields = [field for field in attrs.fields(type(component)) if field.init]
    return subclass(**{field.alias: getattr(component, field.name) for field in fields}, **further)
