"""Decodes keys and values of records for `kafscale consume`.

A decoded value is JSON. One that can't be decoded does not end the command: it is reported, and its bytes are written.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import attrs

from kafscale.errors import DecodeError, UnknownSchema
from kafscale.values.decoding import KEY_ID_HEADER, VALUE_ID_HEADER, RegistryDecoder
from kafscale.wire.records import Record

ID_HEADERS = {"key": KEY_ID_HEADER, "value": VALUE_ID_HEADER}


@attrs.define(eq=False, repr=False)
class RecordDecoder:
    """Decodes keys, values or both of records. `failures` has a text for each that failed, until it is taken."""

    _decoders: dict[str, RegistryDecoder]
    failures: list[str] = attrs.field(factory=list, init=False)
    failed_count: int = attrs.field(default=0, init=False)

    def fields(self, partition: int, record: Record) -> dict[str, Any]:
        """Return the decoded fields for a JSON object. Raises RegistryError if the registry does not answer."""
        found: dict[str, Any] = {}
        for name, decoder in self._decoders.items():
            data = getattr(record, name)
            try:
                found[name] = self._decoded(decoder, name, record)
            except (DecodeError, UnknownSchema) as exc:
                self._fail(f"partition {partition}, offset {record.offset}: the {name} is not decoded: {exc}")
                encoded = base64.b64encode(data).decode()
                found |= {name: None, f"{name}_base64": encoded, f"{name}_error": str(exc)}
        return found

    def text(self, partition: int, record: Record) -> Record:
        """Return the record with JSON in place of decoded bytes. Raises RegistryError."""
        found = self.fields(partition, record)
        changed = {
            name: json.dumps(found[name], ensure_ascii=False, separators=(",", ":")).encode()
            for name in self._decoders
            if getattr(record, name) is not None and f"{name}_error" not in found
        }
        return Record(
            key=changed.get("key", record.key),
            value=changed.get("value", record.value),
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
            offset=record.offset,
        )

    def take_failures(self) -> list[str]:
        failures, self.failures = self.failures, []
        return failures

    def close(self) -> None:
        for decoder in self._decoders.values():
            decoder.close()

    def _decoded(self, decoder: RegistryDecoder, name: str, record: Record) -> Any:
        data: bytes | None = getattr(record, name)
        if data is None:
            return None
        return decoder.decode(data, next((value for key, value in record.headers if key == ID_HEADERS[name]), None))

    def _fail(self, text: str) -> None:
        self.failed_count += 1
        self.failures.append(text)
