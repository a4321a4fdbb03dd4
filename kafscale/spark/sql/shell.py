"""Statements from a terminal: over several lines until a semicolon, with a history."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from kafscale.errors import KafScaleError
from kafscale.spark.sql.tokens import split_statements, tokenize

PROMPT, CONTINUATION = "kafscale> ", "       -> "
WELCOME = (
    "SHOW TOPICS; lists topics, DESCRIBE a topic; shows its columns. A semicolon ends a statement, Ctrl-D the shell."
)
HISTORY_MAX_COUNT = 10_000
LEAVING = ("EXIT", "QUIT")


def history_path() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kafscale" / "sql_history"


@attrs.frozen(kw_only=True)
class Shell:
    """Reads statements by `read`, which takes a prompt, and runs them by `execute`."""

    read: Callable[[str], str]
    write: Callable[[str], None]
    execute: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def run(self) -> None:
        """Run until the end of input, EXIT or QUIT. An error, or Ctrl-C, ends the statement and not the shell."""
        self.write(WELCOME)
        pending = ""
        while True:
            try:
                pending += self.read(CONTINUATION if pending.strip() else PROMPT) + "\n"
            except EOFError:
                self.write("")
                return
            except KeyboardInterrupt:
                self.write("")
                pending = ""
                continue
            statements, pending = split_statements(pending)
            if _is_leaving(pending) or any(map(_is_leaving, statements)):
                return
            for statement in statements:
                self._execute(statement)

    def _execute(self, statement: str) -> None:
        began = self.clock()
        try:
            self.execute(statement)
        except KafScaleError as exc:
            self.write(f"error: {exc}")
        except KeyboardInterrupt:
            self.write("interrupted")
        else:
            self.write(f"({self.clock() - began:.1f} s)")


def _is_leaving(statement: str) -> bool:
    return [token.word for token in tokenize(statement)] in [[word] for word in LEAVING]


@contextmanager
def history(path: Path) -> Iterator[None]:
    """Edit lines with readline and keep them in this file, as far as both are possible."""
    try:
        import readline
    except ImportError:  # as in Pythons on Windows
        yield
        return
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_MAX_COUNT)
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
