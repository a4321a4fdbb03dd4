"""What consumer groups write as records of `__consumer_offsets`, and back.

The values of `consumer.records` and of `kafscale.wire.internal_topics` have the same fields by the same names; the
former hold tuples, and can't be changed. An encoder asks for fields by name only, so it is given these as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from kafscale.buffers import Buffer
from kafscale.cluster.groups.consumer import records
from kafscale.cluster.groups.consumer.records import CoordinatorKey, CoordinatorRecord, CoordinatorValue
from kafscale.errors import DecodeError
from kafscale.wire.codec import encoder
from kafscale.wire.internal_topics import consumer_groups, decode_value
from kafscale.wire.records import Record

KEYS: dict[type, type] = {
    getattr(records, wire_key.__name__): wire_key
    for wire_key in (
        consumer_groups.ConsumerGroupMetadataKey,
        consumer_groups.ConsumerGroupPartitionMetadataKey,
        consumer_groups.ConsumerGroupMemberMetadataKey,
        consumer_groups.ConsumerGroupTargetAssignmentMetadataKey,
        consumer_groups.ConsumerGroupTargetAssignmentMemberKey,
        consumer_groups.ConsumerGroupCurrentMemberAssignmentKey,
        consumer_groups.ConsumerGroupRegularExpressionKey,
    )
}
_WIRE_KEYS = frozenset(KEYS.values())
TYPE_BYTES = 2  # in front of a key, and of a value its version


def log_record(record: CoordinatorRecord, *, timestamp_ms: int = 0) -> Record:
    """Return a record as it is written."""
    wire_key: Any = KEYS[type(record.key)]
    key = _encode(record.key, wire_key, 0, prefix=wire_key.RECORD_TYPE)
    if record.value is None:
        return Record(key, None, timestamp_ms)
    version = wire_key.VALUE.WRITTEN_VERSION
    return Record(key, _encode(record.value, wire_key.VALUE, version, prefix=version), timestamp_ms)


def log_records(written: Sequence[CoordinatorRecord], *, timestamp_ms: int = 0) -> list[Record]:
    """Return records as they are written."""
    return [log_record(each, timestamp_ms=timestamp_ms) for each in written]


def is_consumer_group_key(wire_key: object) -> bool:
    """Tell whether a key that was read is one of a consumer group."""
    return type(wire_key) in _WIRE_KEYS


def read_log_record(wire_key: Any, value: Buffer | None) -> CoordinatorRecord:
    """Return what a record says whose key has been read. Raises DecodeError."""
    key: CoordinatorKey = _own(wire_key)
    read: CoordinatorValue | None = None if value is None else _own(decode_value(wire_key.VALUE, value))
    return CoordinatorRecord(key, read)


def _encode(value: object, wire_class: Any, version: int, *, prefix: int) -> bytes:
    parts: list[Buffer] = [prefix.to_bytes(TYPE_BYTES)]
    encode: Any = encoder(wire_class, version)
    encode(value, parts.append)
    return b"".join(parts)


def _own(read: Any) -> Any:
    """Return what was read as the class of the same name in `consumer.records`."""
    make = _MAKERS.get(type(read))
    if make is None:
        raise DecodeError(f"{type(read).__name__} is not of a consumer group")
    return make(read)


def _make(own_class: type, names: Sequence[str], read: Any) -> Any:
    return own_class(**{name: _own_field(getattr(read, name)) for name in names})


def _own_field(value: Any) -> Any:
    if type(value) is list:
        return tuple(map(_own_field, value))
    return _own(value) if type(value) in _MAKERS else value


_MAKERS = {
    wire_class: partial(_make, own_class, [field.name for field in attrs.fields(wire_class)])
    for wire_class in vars(consumer_groups).values()
    if isinstance(wire_class, type) and attrs.has(wire_class) and (own_class := vars(records).get(wire_class.__name__))
}
