"""The shell, with a script in place of the terminal."""

from collections.abc import Iterable

import pytest

from kafscale.errors import QueryError
from kafscale.spark.sql.shell import CONTINUATION, PROMPT, Shell, history, history_path


class Terminal:
    """Gives its lines, of which exceptions are raised, and keeps what it was asked and shown."""

    def __init__(self, lines: Iterable[str | type[BaseException]]) -> None:
        self.lines = iter(lines)
        self.prompts: list[str] = []
        self.shown: list[str] = []
        self.executed: list[str] = []

    def read(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self.lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def execute(self, statement: str) -> None:
        self.executed.append(statement)
        if statement == "bad":
            raise QueryError("it is bad")
        if statement == "slow":
            raise KeyboardInterrupt

    def run(self) -> "Terminal":
        Shell(read=self.read, write=self.shown.append, execute=self.execute, clock=lambda: 0.0).run()
        return self


def test_a_statement_continues_until_its_semicolon():
    terminal = Terminal(["select ';'", "", "from orders; show topics;", "select 1"]).run()
    assert terminal.executed == ["select ';'\n\nfrom orders", "show topics"]
    assert terminal.prompts == [PROMPT, CONTINUATION, CONTINUATION, PROMPT, CONTINUATION]
    assert terminal.shown[1:] == ["(0.0 s)", "(0.0 s)", ""]


def test_the_shell_continues_after_an_error():
    terminal = Terminal(["bad; select 1;"]).run()
    assert terminal.executed == ["bad", "select 1"]
    assert terminal.shown[1:] == ["error: it is bad", "(0.0 s)", ""]


def test_an_interrupt_ends_a_statement_alone():
    terminal = Terminal(["slow;", "select 1", KeyboardInterrupt, "select 2;"]).run()
    assert terminal.executed == ["slow", "select 2"]
    assert terminal.shown[1:] == ["interrupted", "", "(0.0 s)", ""]


@pytest.mark.parametrize("line", ["exit", "QUIT;", " exit ; "])
def test_leaving(line):
    assert Terminal([line, "select 1;"]).run().executed == []


def test_the_history_is_kept(monkeypatch, tmp_path):
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    readline.clear_history()
    with history(history_path()):
        readline.add_history("select 1;")
    readline.clear_history()
    with history(history_path()):
        assert readline.get_history_item(1) == "select 1;"
    readline.clear_history()
    assert history_path().stat().st_mode & 0o077 == 0
