"""Every log call of the broker has an event whose name stays, and names for its arguments."""

from __future__ import annotations

import json
import logging
import re

import attrs
import pytest

from kafscale.cli.log_events import EVENTS, OWN_FIELDS, UNLISTED
from kafscale.cli.serve import configure_logging
from kafscale.config import LogFormat, LogLevel
from tests.docs.log_calls import log_calls

pytestmark = pytest.mark.usefixtures("_restored_logging")
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FIELD = re.compile(r"[a-z]+(?:_[a-z]+)*")


def test_each_message_is_literal_since_its_event_is_found_by_it() -> None:
    assert [call for call in log_calls() if not call.is_literal] == []


def test_each_call_has_an_event() -> None:
    """If it fails, add the message to `kafscale/cli/log_events.py`, or change the key of the event's old message."""
    assert [call for call in log_calls() if call.message not in EVENTS] == []


def test_each_argument_of_a_message_has_a_name() -> None:
    assert [call for call in log_calls() if len(EVENTS[call.message].split()) - 1 != call.argument_count] == []


def test_the_table_has_no_event_of_a_message_that_is_gone() -> None:
    assert set(EVENTS) - {call.message for call in log_calls()} == set()


def test_names_are_unique_and_fields_do_not_hide_others() -> None:
    events = [listed.split() for listed in EVENTS.values()]
    names = [event for event, *_ in events]
    assert sorted(names) == sorted(set(names))
    assert all(_NAME.fullmatch(name) for name in names)
    for _, *fields in events:
        assert len(set(fields)) == len(fields)
        assert all(_FIELD.fullmatch(field) for field in fields)
        assert not set(fields) & set(OWN_FIELDS)
        assert not ("partition" in fields and {"topic", "index"} & set(fields))


@attrs.frozen
class Partition:
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


def logged(capsys: pytest.CaptureFixture[str], name: str, message: str, *arguments: object) -> dict[str, object]:
    configure_logging(LogLevel.INFO, LogFormat.JSON)
    logging.getLogger(name).warning(message, *arguments)
    (line,) = capsys.readouterr().err.splitlines()
    fields: dict[str, object] = json.loads(line)
    del fields["time"]
    return fields


def test_a_line_has_the_event_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    message = "flush of %s failed and is tried again: %s"
    assert logged(capsys, "kafscale.log.flush.flusher", message, Partition("orders", 3), ValueError("no")) == {
        "level": "warning",
        "logger": "kafscale.log.flush.flusher",
        "event": "flush-failed",
        "partition": "orders-3",
        "topic": "orders",
        "index": 3,
        "error": "no",
        "message": "flush of orders-3 failed and is tried again: no",
    }


def test_audit_lines_are_objects_and_other_lines_are_unlisted(capsys: pytest.CaptureFixture[str]) -> None:
    line = json.dumps({"event": "denied", "principal": "User:a"})
    fields = logged(capsys, "kafscale.audit", "%s", line)
    assert (fields["event"], fields["audit"]) == ("audit", {"event": "denied", "principal": "User:a"})
    assert logged(capsys, "httpx", "flush of %s failed and is tried again: %s", "a", "b")["event"] == UNLISTED
    assert logged(capsys, "kafscale.log", "100%") == {
        "level": "warning",
        "logger": "kafscale.log",
        "event": UNLISTED,
        "message": "100%",
    }


def test_fields_are_bounded_and_hold_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b\u202e" + "x" * 100_000
    fields = logged(capsys, "kafscale.server", "closing the connection of %s: %s", "peer", hostile)
    assert len(str(fields["reason"])) < 5_000
    assert fields["peer"] == "peer"
