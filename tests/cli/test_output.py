"""Tables on a terminal, plain columns in a pipe, JSON for programs."""

from __future__ import annotations

import io
import json
import re
import sys

import attrs
import pytest

from kafscale.cli.output import fit, say, show


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


def test_a_terminal_table_does_not_interpret_names_as_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show(Row, ROWS)
    assert "[red]a" in terminal.getvalue()
    assert "─" in terminal.getvalue()


@attrs.frozen(kw_only=True)
class Described:
    topic: str
    replication_factor: int
    id: str
    found: str


WIDE = Described(
    topic="__consumer_offsets", replication_factor=1, id="mpUe_4EORP2G5clriVdsuQ", found="all of it is there"
)


@pytest.mark.parametrize("width", range(10, 130, 7))
@pytest.mark.parametrize("rows", [[WIDE], [WIDE, WIDE], []], ids=len)
def test_a_narrow_terminal_split_words(monkeypatch: pytest.MonkeyPatch, width: int, rows: list[Described]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    show(Described, rows)
    words = [*(word for row in rows for cell in attrs.astuple(row) for word in str(cell).split()), "replication", "id"]
    assert [word for word in words if word not in terminal.getvalue()] == []
    if "─" in terminal.getvalue():
        lines = re.sub(r"\x1b\[[0-9]*m", "", terminal.getvalue()).splitlines()
        assert max(map(len, lines)) <= width
    assert ("─" in terminal.getvalue()) == (width > 70 or (not rows and width > 33))


HOSTILE = "a\x1b[2J\x9b31m\u202eb"


@pytest.mark.parametrize("as_json", [False, True])
def test_names_do_not_act_on_a_terminal(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show(Row, [Row(topic=HOSTILE, end_offset=1, replicas=[], ok=True)], as_json=as_json)
    say(HOSTILE)
    assert not [each for each in "\x9b\u202e" if each in terminal.getvalue()]
    assert "\x1b[2J" not in terminal.getvalue()


def test_a_pipe_gets_text_unescaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x9b31m\u202eb")
    assert capsys.readouterr().out == "\x9b31m\u202eb\n"


def test_lines_are_fit_for_where_they_go() -> None:
    assert list(fit([HOSTILE + "\n"], Terminal())) == ["a\\x1b[2J\\x9b31m\\u202eb\n"]
    assert list(fit([HOSTILE + "\n"], io.StringIO())) == [HOSTILE + "\n"]
