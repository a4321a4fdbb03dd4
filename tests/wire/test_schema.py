from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from kafscale.wire.schema import Array, Nullable, fields_of, tagged_fields, untagged_fields, wire


@attrs.define(kw_only=True)
class Annotated:
    plain: str = wire("string")
    union: str | None = wire("string")
    several: int | str | None = wire("string")
    inner: list[str | None] = wire(Array("string"))
    late: int = wire("int32", since=2, default=0)
    second: int = wire("int32", since=2, tag=1, default=0)
    first: list[int] = wire(Array("int32"), since=1, until=2, tag=0, factory=list)
    not_on_the_wire: int = 0


def test_a_field_is_nullable_only_by_the_top_level_of_its_annotation() -> None:
    nullable = {field.name for field in fields_of(Annotated) if field.nullable}
    assert nullable == {"union", "several"}


def test_annotations_need_not_be_text() -> None:
    cls = attrs.make_class("Made", {"a": attrs.field(type=str | None, metadata=wire("string").metadata)})
    assert [field.nullable for field in fields_of(cls)] == [True]


def test_fields_of_a_version() -> None:
    assert "late" not in [field.name for field in untagged_fields(Annotated, 1)]
    assert untagged_fields(Annotated, 2)[-1].name == "late"
    assert [(tag, field.name) for tag, field in tagged_fields(Annotated, 2).items()] == [(0, "first"), (1, "second")]
    assert list(tagged_fields(Annotated, 3)) == [1]
    assert tagged_fields(Annotated, 2)[0].default == []


@pytest.mark.parametrize(
    "declare",
    [lambda: wire("int31"), lambda: wire(Array(int)), lambda: wire(Nullable(dict)), lambda: wire("int8", tag=0)],
    ids=["no such type", "not a struct", "not a nullable struct", "tag without default"],
)
def test_a_declaration_that_can_not_work_is_refused(declare: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        declare()
