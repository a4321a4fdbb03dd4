"""Answers of admin servers: content types, and the progress of a flush."""

from __future__ import annotations

import builtins
import json
from http import HTTPStatus

import attrs

from kafscale.server.http.loop import Page, text_page

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
JSON_LINES = "application/x-ndjson"
FLUSHES_MAX_COUNT = 8  # at once; each gets a line every second
FLUSH_PROGRESS_SECONDS = 1.0


@attrs.frozen(kw_only=True)
class FlushProgress:
    """A line of the answer to `POST /flush`. `wanted_bytes` are the unflushed bytes when it began."""

    done: bool
    segments: int
    bytes: int
    wanted_bytes: int
    seconds: float

    def encode(self) -> builtins.bytes:
        return json.dumps(attrs.asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: str) -> FlushProgress:
        """Read a line. Raises ValueError."""
        try:
            return cls(**json.loads(line))
        except TypeError as exc:
            raise ValueError(f"this is not the progress of a flush: {line}") from exc


def unavailable(reason: str) -> Page:
    return text_page(HTTPStatus.SERVICE_UNAVAILABLE, reason)
