"""The shell of `kafscale sql` on a terminal: keys are pressed, and what it shows is waited for."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import pytest

from tests.cli.sql_processes import write_orders
from tests.devtools.external.spark import environ_of

pytestmark = pytest.mark.timeout(900)

CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT, CONTINUATION = "kafscale> ", "       -> "
TIMEOUT_SECONDS = 240.0


@attrs.define
class Terminal:
    """`shown` is what came since it was last waited for."""

    process_id: int
    file: int
    shown: str = ""

    def press(self, keys: str) -> None:
        os.write(self.file, keys.encode())

    def wait_for(self, *texts: str) -> None:
        """In this order. What is behind the last one is kept for the next call."""
        for text in texts:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while text not in self.shown:
                assert self._read(deadline - time.monotonic()), f"no {text!r} in {self.shown!r}"
            self.shown = self.shown.partition(text)[2]

    def interrupt(self, keys: str) -> None:
        """Press Ctrl-C behind these keys, until another prompt comes.

        Behind their echo, as a person does: a terminal forgets keys at Ctrl-C, and readline would wait for one that
        it saw coming. Until there is a prompt: CPython's readline misses a signal just before it waits.
        """
        self.press(keys)
        self.wait_for(keys)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while PROMPT not in self.shown:
            assert time.monotonic() < deadline, f"no {PROMPT!r} in {self.shown!r}"
            self.press(CTRL_C)
            while PROMPT not in self.shown and self._read(5.0):
                pass
        self.shown = self.shown.partition(PROMPT)[2]

    def exit_code(self) -> int:
        with suppress(OSError):  # EIO: nobody has the other end any more
            while self._read(TIMEOUT_SECONDS):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.process_id, 0)[1])

    def _read(self, timeout_seconds: float) -> bool:
        ready, _, _ = select.select([self.file], [], [], max(timeout_seconds, 0))
        data = os.read(self.file, 65536) if ready else b""
        self.shown += data.decode(errors="replace")
        return bool(data)


@contextmanager
def shell(*options: str, **variables: str) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "kafscale", "sql", *options]
    environ = environ_of(TERM="dumb", **variables)
    process_id, file = pty.fork()
    if process_id == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a command behind `&` has it: Ctrl-C is to work all the same
        os.execve(command[0], command, environ)
    terminal = Terminal(process_id, file)
    try:
        yield terminal
    finally:
        os.close(file)  # hangs up, which ends what still runs there
        with suppress(ChildProcessError):
            os.waitpid(process_id, 0)


def ask_and_err(terminal):
    """A statement on two lines that is answered, and one of a topic that there is not."""
    terminal.wait_for("SHOW TOPICS; lists topics", PROMPT)
    terminal.press("select count(*) as n,\n")
    terminal.wait_for(CONTINUATION)
    terminal.press("max(offset) as last from orders;\n")
    terminal.wait_for("60", "59", " s)", PROMPT)
    terminal.press("select * from ordrs;\n")
    terminal.wait_for("error: there is no topic, table or view 'ordrs' (topics: orders)", PROMPT)


@pytest.mark.spark
def test_a_session(tmp_path):
    store = write_orders(tmp_path / "bucket")
    progress = ("--conf", "spark.ui.showConsoleProgress=true")  # tells that a statement runs
    with shell("--store", store, *progress, XDG_STATE_HOME=str(tmp_path)) as terminal:
        ask_and_err(terminal)
        terminal.press("select count(*) from range(100000000000000) where hash(id) = 7;\n")
        terminal.wait_for("[Stage")
        terminal.press(CTRL_C)
        terminal.wait_for("interrupted", PROMPT)
        terminal.interrupt("select 'never")
        terminal.press("select min(offset) + 42 as sum from orders;\n")
        terminal.wait_for("42", " s)", PROMPT)
        terminal.press(CTRL_D)
        assert terminal.exit_code() == 0
    history = Path(tmp_path, "kafscale", "sql_history").read_text().splitlines()
    assert history[:2] == ["select count(*) as n,", "max(offset) as last from orders;"]
    assert history[-1] == "select min(offset) + 42 as sum from orders;"


def test_a_session_without_spark(tmp_path):
    store = write_orders(tmp_path / "bucket")
    with shell("--store", store, "--engine", "duckdb", XDG_STATE_HOME=str(tmp_path)) as terminal:
        ask_and_err(terminal)
        terminal.press("select upper('a') from orders;\n")
        terminal.wait_for("error: --engine duckdb can't answer this, because upper() is Spark's", PROMPT)
        terminal.interrupt("select 'never")
        terminal.press("select min(offset) + 42 as sum from orders;\n")
        terminal.wait_for("42", " s)", PROMPT)
        terminal.press(CTRL_D)
        assert terminal.exit_code() == 0
