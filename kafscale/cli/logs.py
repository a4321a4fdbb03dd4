"""The broker's own log: on stderr, one record a line, as text or JSON.

Only `kafscale.*` follows `--log-level`; libraries log warnings and above, since httpx tells of each request at `info`.
Times are UTC. Control characters in a message are escaped in the text format: a client chooses its client id, and must
not be able to write lines of its own into the log.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from kafscale.config import LogFormat, LogLevel

_CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO  kafscale.broker: message`, then the traceback if there is one."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    @staticmethod
    def converter(seconds: float | None) -> time.struct_time:
        return time.gmtime(seconds)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = record.message.translate(_CONTROL_CHARACTERS)
        return super().formatMessage(record)


class JsonFormatter(TextFormatter):
    """One JSON object a line: time, level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send the log to stderr. Called once, before the broker starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("kafscale").setLevel(str(level).upper())
