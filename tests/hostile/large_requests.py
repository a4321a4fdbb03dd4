"""Requests with one large array each, made from the schemas of all APIs: a new API is covered on the day it is added.

    for large in large_requests(API, 100_000): large.path, large.message

Strings of the array are `low-0`, `low-1` and so on, integers count, ids are those numbers, but for the first entry,
which is about what there is: the topic, group and transactional id `low-0`. Everything else is at its default, or says
the least that makes a request valid (`VALUES`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from kafscale.api.handling.calls import Api
from kafscale.wire.schema import FIXED, STRING_MAX_BYTES, Array, Field, FieldType, Nullable, fields_of

PREFIX = "low-"  # of all names that the client has rights to
NAME = f"{PREFIX}0"
# By name of the field: what is refused at once otherwise, or would end the connection, in any API.
VALUES: Mapping[str, Any] = {
    "acks": -1,
    "committed_offset": 1,
    "coordinator_type": 0,
    "fetch_offset": 0,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "key_type": 0,
    "leader_epoch": 0,
    "max_bytes": 1 << 20,
    "num_partitions": 1,
    "operation": 3,
    "partition_max_bytes": 1 << 20,
    "pattern_type": 3,
    "permission_type": 3,
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 60_000,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_type": 2,
    "session_timeout_ms": 45_000,
    "timeout_ms": 1000,
    "transaction_timeout_ms": 60_000,
    "validate_only": True,
}
ID_BYTES = 16


@attrs.frozen(kw_only=True)
class LargeRequest:
    """A request whose array at `path` has many entries, or whose strings are as long as they can be (`path` is "")."""

    path: str
    message: Any


def large_requests(api: Api, count: int, topic_id: bytes = bytes(ID_BYTES)) -> Iterator[LargeRequest]:
    """Return one request for each array of the API's newest version, with `count` entries in it."""
    for path in _array_paths(api.request, api.max_version):
        maker = _Maker(version=api.max_version, topic_id=topic_id, path=path, count=count)
        yield LargeRequest(path=".".join(path), message=maker.struct(api.request, ()))
    maker = _Maker(version=api.max_version, topic_id=topic_id, string_length=STRING_MAX_BYTES)
    yield LargeRequest(path="", message=maker.struct(api.request, ()))


def _array_paths(cls: type, version: int, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in _fields(cls, version):
        of = field.type
        if isinstance(of, Array):
            yield (*before, field.name)
            of = of.of
        if isinstance(of, Nullable):
            of = of.of
        if isinstance(of, type):
            yield from _array_paths(of, version, (*before, field.name))


def _fields(cls: type, version: int) -> Sequence[Field]:
    return [field for field in fields_of(cls) if field.is_in(version)]


@attrs.define(kw_only=True)
class _Maker:
    version: int
    topic_id: bytes
    path: tuple[str, ...] = ()
    count: int = 1
    string_length: int = 0

    def struct(self, cls: type, at: tuple[str, ...], number: int = 0) -> Any:
        return cls(**{field.name: self._value(field, at, number) for field in _fields(cls, self.version)})

    def _value(self, field: Field, at: tuple[str, ...], number: int) -> Any:
        name, of = field.name, field.type
        path = (*at, name)
        if isinstance(of, Array):
            if not self._is_on_the_way(path) and (field.tag is not None or field.nullable):
                return field.default if field.tag is not None else []
            count = self.count if path == self.path else 1
            return [self._element(of.of, path, number) for number in range(count)]
        if isinstance(of, Nullable):
            return self.struct(of.of, path, number) if self._is_on_the_way(path) else None
        if name in VALUES and not (self.string_length and isinstance(VALUES[name], str)):
            return VALUES[name]
        if field.tag is not None:
            return field.default
        is_varied = at == self.path
        if field.default is not attrs.NOTHING and not is_varied and of not in ("string", "uuid"):
            return field.default
        if field.nullable and not is_varied and not self.string_length:
            return field.default if field.default is not attrs.NOTHING else None
        return self._scalar(of, number if is_varied else 0)

    def _is_on_the_way(self, path: tuple[str, ...]) -> bool:
        return self.path[: len(path)] == path

    def _element(self, of: FieldType, path: tuple[str, ...], number: int) -> Any:
        return self.struct(of, path, number) if isinstance(of, type) else self._scalar(of, number)

    def _scalar(self, of: FieldType, number: int) -> Any:
        match of:
            case "string":
                return f"{PREFIX}{number}".ljust(self.string_length, "x")
            case "bytes" | "records":
                return b"%d" % number
            case "uuid":
                return number.to_bytes(ID_BYTES) if number else self.topic_id
            case "bool":
                return False
            case "float64":
                return float(number)
            case "int8" | "int16" | "uint16":
                return number % 100
        assert of in FIXED
        return number
