"""Records as JSON objects, as `kafscale consume --json` and the console's downloads write them.

An object has `topic`, `partition`, `offset`, `timestamp` (ms), `key`, `value` and `headers`, a list of pairs, as names
may repeat. Bytes that are not UTF-8 are in `key_base64`, `value_base64`, or the third element of a pair.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from kafscale.wire.records import Record


def record_as_json(topic: str, partition: int, record: Record, decoded: Mapping[str, Any] | None = None) -> str:
    """Return the object on one line; fields of `decoded` replace or follow key and value."""
    decoded = decoded or {}
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **({} if "key" in decoded else _text_field("key", record.key)),
        **({} if "value" in decoded else _text_field("value", record.value)),
        **decoded,
        "headers": [_pair(name, value) for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False)


def _text_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _pair(name: str, value: bytes | None) -> list[str | None]:
    found = _text_field("value", value)
    return [name, found["value"]] if "value" in found else [name, None, found["value_base64"]]
