"""Records as lines of text, which `produce` reads and `consume` writes.

A JSON line has the object of `kafscale.client.json_records`; of topic, partition, offset and timestamp, `produce` uses
the timestamp.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kafscale.cli.options import INT64_MAX
from kafscale.cli.output import iso_time
from kafscale.client.json_records import record_as_json
from kafscale.errors import ConfigError
from kafscale.escaping import escaped_bytes, escaped_json
from kafscale.wire.records import Record

if TYPE_CHECKING:
    from kafscale.cli.record_decoder import RecordDecoder

Header = tuple[str, bytes | None]
Formatter = Callable[[int, Record], bytes]

_ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}
_FORMAT = re.compile(rb"%([kvhpotT%])")
FORMAT_HELP = "%k key, %v value, %h headers, %p partition, %o offset, %t topic, %T time, %% a percent sign"


def unescape(text: str) -> str:
    r"""Read \n, \t, \0 and \\ in an option as the characters that they stand for."""
    return re.sub(r"\\([nt0\\])", lambda match: _ESCAPES[match[1]], text)


def parse_template(text: str) -> str:
    """Read a template with the letters of FORMAT_HELP and the escapes of `unescape`. Raises ValueError."""
    template = unescape(text)
    for found in re.finditer(r"%(.?)", template, re.DOTALL):
        if found[1].encode() not in _FIELDS:
            raise ValueError(f"'{text}' has {found[0]}, which is not known; allowed: {FORMAT_HELP}")
    return template


def record_of_line(line: bytes, separator: bytes | None, headers: Sequence[Header]) -> Record:
    """Read a value, or key and value around the first separator. Raises ConfigError."""
    key, value = None, line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            shown = line[:60].decode(errors="replace")
            raise ConfigError(f"--key-separator: line '{shown}' has no '{separator.decode()}' between KEY and VALUE")
    return Record(key=key, value=value, timestamp_ms=_now_ms(), headers=headers)


def record_of_json(line: bytes, headers: Sequence[Header]) -> Record:
    try:
        fields = json.loads(line)
        if not fields.keys() & {"value", "value_base64"}:
            raise ValueError("other JSON would become a record without a value, which deletes its key")
        own = [_header(pair) for pair in fields.get("headers", [])]
        key, value = _bytes_field(fields, "key"), _bytes_field(fields, "value")
        timestamp_ms = int(fields.get("timestamp", _now_ms()))
        if abs(timestamp_ms) > INT64_MAX:
            raise ValueError("a timestamp has 64 bits")
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as exc:
        shown = line[:60].decode(errors="replace")
        raise ConfigError(
            f"--json: line '{shown}' is not a record; allowed: as `kafscale consume --json` writes, such as "
            '{"key": "k", "value": "v"}, where the value is a string, or null to delete the key'
        ) from exc
    return Record(key=key, value=value, timestamp_ms=timestamp_ms, headers=[*own, *headers])


def json_formatter(topic: str, *, decoder: RecordDecoder | None = None, for_terminal: bool = False) -> Formatter:
    """Format a record as a JSON line; for a terminal, with escapes for control characters."""

    def render(partition: int, record: Record) -> bytes:
        decoded = None if decoder is None else decoder.fields(partition, record)
        document = record_as_json(topic, partition, record, decoded)
        return (escaped_json(document) if for_terminal else document).encode() + b"\n"

    return render


def text_formatter(
    topic: str, template: str, *, decoder: RecordDecoder | None = None, for_terminal: bool = False
) -> Formatter:
    """Format a record by a template with the letters of FORMAT_HELP; null is empty.

    For a terminal, control characters in a record are escaped, except for line ends and tabs.
    """
    encoded = template.encode()

    def render(partition: int, record: Record) -> bytes:
        if decoder is not None:
            record = decoder.text(partition, record)

        def field(match: re.Match[bytes]) -> bytes:
            data = _FIELDS[match[1]](topic, partition, record)
            return escaped_bytes(data) if for_terminal else data

        return _FORMAT.sub(field, encoded)

    return render


_FIELDS: dict[bytes, Callable[[str, int, Record], bytes]] = {
    b"k": lambda topic, partition, record: record.key or b"",
    b"v": lambda topic, partition, record: record.value or b"",
    b"h": lambda topic, partition, record: b",".join(b"%b=%b" % (n.encode(), v or b"") for n, v in record.headers),
    b"p": lambda topic, partition, record: b"%d" % partition,
    b"o": lambda topic, partition, record: b"%d" % record.offset,
    b"t": lambda topic, partition, record: topic.encode(),
    b"T": lambda topic, partition, record: iso_time(record.timestamp_ms).encode(),
    b"%": lambda topic, partition, record: b"%",
}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _bytes_field(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    text: str | None = fields.get(name)
    return None if text is None else text.encode()


def _header(pair: Sequence[Any]) -> Header:
    name, text, *encoded = pair
    if not isinstance(name, str):
        raise TypeError("a header's name is text")
    if encoded:
        return name, base64.b64decode(encoded[0], validate=True)
    return name, None if text is None else text.encode()
