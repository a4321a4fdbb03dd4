"""Keys and values as text for pages: JSON, values of a schema registry, text or hexadecimal bytes.

All of it blocks, so it runs in threads. A registry that does not answer is left alone for a while: records are shown
undecoded then, with its error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import attrs

from kafscale.console.messages.reading import TopicMessage
from kafscale.errors import DecodeError, KafScaleError, RegistryError, UnknownSchema
from kafscale.values.decoding import KEY_ID_HEADER, PREFIX_BYTES, VALUE_ID_HEADER, RegistryDecoder, parse_json, to_json

CUT_COUNT = 1_000  # characters in a list
JSON_MAX_BYTES = 4 << 20
HEX_LINE_BYTES = 32
REGISTRY_SECONDS = 3.0  # for one request: a page waits for it
REGISTRY_REST_SECONDS = 30.0  # after a failure


class Form(StrEnum):
    """A form to show bytes in; AUTO takes the first of registry, JSON, text and hexadecimal that fits."""

    AUTO = "auto"
    REGISTRY = "registry"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"


@attrs.frozen(kw_only=True)
class Shown:
    """Text of a key or value. `form` is the one that fitted; `problem` says why the wished one did not."""

    text: str
    form: Form
    problem: str = ""

    @property
    def is_cut(self) -> bool:
        return len(self.text) > CUT_COUNT

    @property
    def cut(self) -> str:
        return self.text[:CUT_COUNT]


@attrs.define(eq=False, repr=False)
class Shower:
    """Makes text of keys and values. `registry` is the URL of a schema registry, None without one."""

    registry: str | None = None
    clock: Callable[[], float] = time.monotonic
    _decoder: RegistryDecoder | None = attrs.field(default=None, init=False)
    _rests_until: float = attrs.field(default=0.0, init=False)
    _failure: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        if self.registry is not None:
            self._decoder = RegistryDecoder(self.registry, timeout_seconds=REGISTRY_SECONDS)

    @property
    def has_registry(self) -> bool:
        return self._decoder is not None

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()

    def show(self, message: TopicMessage, form: Form, *, is_key: bool, indent: int | None = None) -> Shown:
        """Return the text of a key or value that is not null; `indent` is that of JSON."""
        data = (message.record.key if is_key else message.record.value) or b""
        is_plain = form is Form.AUTO and self._id_of(message, data, is_key=is_key) is None
        if form in (Form.TEXT, Form.HEX) or (is_plain and indent is None):
            return _plain(data, form)
        try:
            value, fitted = self._decoded(message, form, is_key=is_key)
            return Shown(text=json.dumps(value, ensure_ascii=False, indent=indent), form=fitted)
        except ValueError as exc:
            shown = _plain(data, form)
            return shown if is_plain else attrs.evolve(shown, problem=str(exc))

    def json(self, message: TopicMessage, form: Form) -> Any:
        """Return the value for JSON. Raises ValueError."""
        return self._decoded(message, form if form in (Form.REGISTRY, Form.JSON) else Form.AUTO, is_key=False)[0]

    def _id_of(self, message: TopicMessage, data: bytes, *, is_key: bool) -> bytes | None:
        """Return the header with the schema's id, empty if bytes begin with it, None for bytes of no registry."""
        name = KEY_ID_HEADER if is_key else VALUE_ID_HEADER
        header = next((value for header, value in message.record.headers if header == name), None)
        return b"" if header is None and self.has_registry and len(data) >= PREFIX_BYTES and data[0] == 0 else header

    def _decoded(self, message: TopicMessage, form: Form, *, is_key: bool) -> tuple[Any, Form]:
        data = (message.record.key if is_key else message.record.value) or b""
        id_header = self._id_of(message, data, is_key=is_key)
        if form is Form.REGISTRY or (form is Form.AUTO and id_header is not None):
            return self._by_registry(data, id_header or None), Form.REGISTRY
        if len(data) > JSON_MAX_BYTES:
            raise ValueError(f"{len(data)} bytes are too many to be read as JSON here")
        try:
            return to_json(parse_json(data)), Form.JSON
        except (RecursionError, DecodeError) as exc:
            raise ValueError("this JSON is nested too deep") from exc

    def _by_registry(self, data: bytes, id_header: bytes | None) -> Any:
        if self._decoder is None:
            raise ValueError("start the console with --registry to decode this")
        if self.clock() < self._rests_until:
            raise ValueError(self._failure)
        try:
            return self._decoder.decode(data, id_header)
        except (DecodeError, UnknownSchema) as exc:
            raise ValueError(str(exc)) from exc
        except RegistryError as exc:
            self._failure, self._rests_until = str(exc), self.clock() + REGISTRY_REST_SECONDS
            raise ValueError(str(exc)) from exc
        except KafScaleError as exc:  # a missing extra
            raise ValueError(str(exc)) from exc


def _plain(data: bytes, form: Form) -> Shown:
    if form is not Form.HEX:
        try:
            return Shown(text=data.decode(), form=Form.TEXT)
        except UnicodeDecodeError:
            if form is Form.TEXT:
                return Shown(text=data.decode(errors="backslashreplace"), form=Form.TEXT)
    lines = (data[start : start + HEX_LINE_BYTES].hex(" ") for start in range(0, len(data), HEX_LINE_BYTES))
    return Shown(text="\n".join(lines), form=Form.HEX)
