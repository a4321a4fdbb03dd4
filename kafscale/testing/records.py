"""Records as tests write and read them, and the text of a wait for some that did not come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypedDict

import attrs

from kafscale.wire.records import Record

SHOWN_COUNT = 10
SHOWN_BYTES = 60


@attrs.frozen(kw_only=True)
class StoredRecord:
    """A record in the log. Header names may repeat."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class RecordFields(TypedDict, total=False):
    """The optional fields of a new record; text is encoded as UTF-8."""

    key: bytes | str | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int
    partition: int


def new_record(value: bytes | str | None, fields: RecordFields) -> Record:
    return Record(
        key=_encoded(fields.get("key")),
        value=_encoded(value),
        headers=tuple(fields.get("headers", ())),
        timestamp_ms=fields.get("timestamp_ms", time.time_ns() // 1_000_000),
    )


def _encoded(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def stored(partition: int, record: Record) -> StoredRecord:
    return StoredRecord(
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )


def told_of(topic: str, found: Sequence[StoredRecord], wanted: str) -> str:
    """Return the number of records that a topic has, behind it `wanted`, and the first records."""
    lines = [f"topic '{topic}' has {len(found)} {wanted}"]
    for record in found[:SHOWN_COUNT]:
        place = f"partition {record.partition}, offset {record.offset}"
        lines.append(f"  {place}: key {_shown(record.key)}, value {_shown(record.value)}")
    if len(found) > SHOWN_COUNT:
        lines.append(f"  and {len(found) - SHOWN_COUNT} more")
    return "\n".join(lines)


def _shown(data: bytes | None) -> str:
    if data is None:
        return "None"
    return repr(data) if len(data) <= SHOWN_BYTES else f"{data[:SHOWN_BYTES]!r}… ({len(data)} bytes)"
