"""A command in a pseudo-terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import attrs

_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")


@attrs.define(eq=False)
class Terminal:
    """The terminal's other end. `written` has all bytes that the command wrote."""

    descriptor: int
    pid: int
    written: bytes = b""
    code: int | None = None

    @property
    def text(self) -> str:
        return _ESCAPE.sub("", self.written.decode(errors="replace")).replace("\r", "")

    @property
    def screen(self) -> str:
        """Return the last frame of a program that begins each one at the top left."""
        return _ESCAPE.sub("", self.written.rpartition(b"\x1b[H")[2].decode(errors="replace")).replace("\r", "")

    def press(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def wait_for(self, *texts: str, seconds: float = 60) -> None:
        """Wait until the screen has these texts at once."""
        end = time.monotonic() + seconds
        while not all(text in self.screen for text in texts):
            assert time.monotonic() < end, f"no {texts!r} in {seconds} s:\n{self.screen}"
            assert self._read(), f"it ended without {texts!r}:\n{self.screen}"

    def wait(self) -> int:
        """Read until the command ends, and return its exit code."""
        while self._read():
            pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def _read(self) -> bool:
        if not select.select([self.descriptor], [], [], 0.2)[0]:
            return True
        with suppress(OSError):  # EIO: the command has closed its end
            if data := os.read(self.descriptor, 65536):
                self.written += data
                return True
        return False


@contextmanager
def in_terminal(
    arguments: Sequence[str], *, columns: int = 80, lines: int = 24, **environment: str
) -> Iterator[Terminal]:
    """Run `kafscale ARGUMENTS` in a terminal of this size for the block."""
    pid, descriptor = os.forkpty()
    if pid == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a run of the tests in the background ignores
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            changed = {**os.environ, "TERM": "xterm-256color", **environment}
            changed.pop("COLUMNS", None)
            os.execve(sys.executable, [sys.executable, "-m", "kafscale", *arguments], changed)
        finally:
            os._exit(127)
    terminal = Terminal(descriptor, pid)
    try:
        yield terminal
    finally:
        if terminal.code is None:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(descriptor)
