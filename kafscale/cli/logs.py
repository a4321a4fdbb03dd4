"""The broker's own log: on stderr, one record a line, as text or JSON, in UTC.

`--log-level` is for `kafscale.*`; libraries log warnings and above. Clients choose names and ids, so line ends and
control characters are escaped, and lines have a maximum length.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from types import TracebackType

from kafscale.config import LogFormat, LogLevel
from kafscale.escaping import bounded, escaped, escaped_json, escaped_lines

MESSAGE_MAX_COUNT = 4_000  # characters
TRACEBACK_MAX_COUNT = 40_000
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


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
        record.message = escaped(bounded(record.message, MESSAGE_MAX_COUNT))
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 (logging's name)
        return escaped_lines(bounded(super().formatException(ei), TRACEBACK_MAX_COUNT))


class JsonFormatter(TextFormatter):
    """A JSON object a line: time, level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": bounded(record.getMessage(), MESSAGE_MAX_COUNT),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(fields, ensure_ascii=False))


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send the log to stderr. Called once, before the broker starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("kafscale").setLevel(str(level).upper())
