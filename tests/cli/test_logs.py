"""The log: one record a line, whatever is in it."""

from __future__ import annotations

import json
import logging

import pytest

from kafscale.cli.serve import configure_logging
from kafscale.config import LogFormat, LogLevel

pytestmark = pytest.mark.usefixtures("_restored_logging")


def test_a_client_cannot_inject_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogLevel.INFO, LogFormat.TEXT)
    logging.getLogger("kafscale.server").info("client %s connected", "evil\nERROR fake\x1b[31m")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.endswith("INFO    kafscale.server: client evil\\x0aERROR fake\\x1b[31m connected\n")


def test_json_has_one_object_a_line_with_the_traceback_inside(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogLevel.DEBUG, LogFormat.JSON)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("kafscale.log").exception("a\nb")
    (line,) = capsys.readouterr().err.splitlines()
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("error", "kafscale.log", "a\nb")
    assert "ValueError: broken" in fields["exception"]
    assert fields["time"].endswith("Z")


def test_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogLevel.DEBUG, LogFormat.TEXT)
    logging.getLogger("httpx").info("HTTP Request: GET")
    logging.getLogger("kafscale.store").debug("shown")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == ["DEBUG   kafscale.store: shown"]


@pytest.mark.parametrize("log_format", LogFormat)
def test_log_lines_are_bounded_and_escape_terminal_controls(
    capsys: pytest.CaptureFixture[str], log_format: LogFormat
) -> None:
    """C1 and bidi characters came through, in JSON also a line of any length, and in tracebacks everything."""
    configure_logging(LogLevel.INFO, log_format)
    hostile = "\x9b\u202e\u2066\u2028\x7f\x1b"
    try:
        raise ValueError(hostile)
    except ValueError:
        logging.getLogger("kafscale.server").exception("client %s connected", hostile + "x" * 1_000_000)
    written = capsys.readouterr().err
    assert not [each for each in hostile if each in written]
    assert len(written) < 20_000
