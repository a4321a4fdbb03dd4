"""`kafscale serve` runs the broker, or several.

The broker's log goes to stderr, one record a line, as text or JSON, in UTC. `--log-level` is for `kafscale.*`;
libraries log warnings and above. Clients choose names and ids, so line ends and control characters are escaped, and
lines have a maximum length.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import click

from kafscale.cli.options import settings_flags
from kafscale.config import LogFormat, LogLevel, Settings, load
from kafscale.errors import DeclaredDead
from kafscale.escaping import bounded, escaped, escaped_json, escaped_lines
from kafscale.process_variables import SUPERVISOR_VARIABLE

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
    """An object a line: time, level, logger, the event and its fields (`kafscale.cli.log_events`), and the message."""

    def __init__(self) -> None:
        super().__init__()
        from kafscale.cli.log_events import event_fields

        self._event_fields = event_fields

    def format(self, record: logging.LogRecord) -> str:
        found = self._event_fields(record).items()
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **{name: bounded(value, MESSAGE_MAX_COUNT) if isinstance(value, str) else value for name, value in found},
            "message": bounded(record.getMessage(), MESSAGE_MAX_COUNT),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(fields, ensure_ascii=False))


def configure_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send the log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("kafscale").setLevel(str(level).upper())


ANEW_CODE = 3  # exit code of a broker that its supervisor is to start again, on the same ports

logger = logging.getLogger(__name__)


@click.command("serve")
@settings_flags()
def command(config_file: str | None, **flags: Any) -> int:
    """Run a broker, or several with --processes. A broker that the others have declared dead starts again.

    Every option is also an environment variable (in brackets) and a key of the TOML file; a flag beats the environment,
    which beats the file. Sizes take units (64MiB, 1GB), durations need one (2ms, 10s, 5m).
    """
    supervisor_pid = os.environ.get(SUPERVISOR_VARIABLE)
    loaded = load(flags, os.environ, config_file)
    configure_logging(loaded.settings.log_level, loaded.settings.log_format)
    with _early_end():
        if loaded.settings.processes_count > 1:
            import trio

            from kafscale.supervisor import supervisor

            return trio.run(supervisor.serve, loaded, loaded.settings.processes_count)
        is_declared_dead = _run(loaded.settings)
    if is_declared_dead and supervisor_pid is None:
        os.execv(sys.executable, sys.orig_argv)  # the same process, for a service manager
    return ANEW_CODE if is_declared_dead else 0


@contextmanager
def _early_end() -> Iterator[None]:
    """End the process on a SIGTERM that comes before the broker watches for signals: nothing has begun yet.

    The kernel keeps a signal without a handler from the first process of a container, which would then be waited for.
    """
    earlier = signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _run(settings: Settings) -> bool:
    """Run the broker. Returns True if the others declared it dead, so that it must start again."""
    gc.disable()  # imports leave no garbage, and looking for it takes a tenth of the start
    # Imported only now, so that a wrong option is told at once.
    import trio

    from kafscale import serving
    from kafscale.concurrency.nurseries import leaves
    from kafscale.log.wal.data_directory import keep_files_private

    gc.enable()
    keep_files_private()
    is_declared_dead = False
    try:
        trio.run(serving.serve, settings)
    except* DeclaredDead as declared:
        logger.warning("%s; starting again", next(leaves(declared)))
        is_declared_dead = True
    return is_declared_dead
