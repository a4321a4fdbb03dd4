"""Files that commands print to: a failed write to one of them is an error of its own, told in one line.

An OSError does not say which file it is about, so that a full disk below stdout could not be told from a bug.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import IO, Any, TextIO

from kafscale.errors import KafScaleError


class OutputLost(KafScaleError):
    """Output of a command can't be written. The message names the file and says why."""


class ReaderGone(OutputLost):
    """The reader of a pipe has closed it, as `head` does, and wants no more."""


class Output(io.FileIO):
    """A file that a command prints to. Writing raises OutputLost instead of OSError."""

    def __init__(self, file: int | Path, shown: str) -> None:
        super().__init__(file, "w", closefd=not isinstance(file, int))
        self._shown = shown

    def write(self, data: Any, /) -> int:
        """See io. Raises OutputLost."""
        try:
            return super().write(data)
        except BrokenPipeError as exc:
            raise ReaderGone(f"the reader of {self._shown} has gone") from exc
        except OSError as exc:
            raise OutputLost(f"can't write to {self._shown}: {exc.strerror or exc}") from exc


def open_output(path: Path) -> IO[str]:
    """Open a file for text that a command prints. Raises OSError."""
    return io.TextIOWrapper(io.BufferedWriter(Output(path, f"'{path}'")), encoding="utf-8")


def open_standard_files() -> None:
    """Make stdout an `Output`, and open what the caller has closed, so that nothing is read and all is discarded.

    Python has None for a closed standard file. The next file to be opened would get its number, and what is printed,
    in child processes too.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    sys.stdout = _as_output(sys.stdout)


def _as_output(stdout: TextIO) -> TextIO:
    assert isinstance(stdout, io.TextIOWrapper)
    raw = Output(stdout.fileno(), "stdout")
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


def discard_stdout() -> None:
    """Discard what is still printed, or waits in a buffer, so that the interpreter does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
