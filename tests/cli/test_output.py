"""Tables on a terminal, plain columns in a pipe, JSON for programs."""

from __future__ import annotations

import io
import json
import sys

import attrs
import pytest

from kafscale.cli.output import show


@attrs.frozen(kw_only=True)
class Row:
    topic: str
    end_offset: int | None
    replicas: list[int]
    ok: bool


ROWS = [
    Row(topic="[red]a", end_offset=1, replicas=[1, 2], ok=True),
    Row(topic="bb", end_offset=None, replicas=[], ok=False),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show(Row, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC   END OFFSET  REPLICAS  OK",
        "[red]a  1           1,2       yes",
        "bb      -                     no",
    ]


def test_a_program_gets_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(Row, ROWS, as_json=True)
    assert json.loads(capsys.readouterr().out)[0] == {
        "topic": "[red]a",
        "end_offset": 1,
        "replicas": [1, 2],
        "ok": True,
    }


def test_no_rows_are_still_a_header_and_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    show(Row, [])
    assert capsys.readouterr().out == "TOPIC  END OFFSET  REPLICAS  OK\n"
    show(Row, [], as_json=True)
    assert capsys.readouterr().out == "[]\n"


def test_a_terminal_gets_a_table_in_which_names_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show(Row, ROWS)
    assert "[red]a" in terminal.getvalue()
    assert "─" in terminal.getvalue()
