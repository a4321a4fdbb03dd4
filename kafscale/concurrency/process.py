"""A watched process, whose output comes as lines, and whose end is waited for without a thread.

The thread that runs trio starts it, as the kernel ends it with that thread (`end_with`); trio would start it in a
worker thread. It has its own process group: Ctrl-C reaches only the supervisor. May not import anything of KafScale.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence

import attrs
import trio

RECEIVE_BYTES = 64 << 10
LINE_MAX_BYTES = 256 << 10  # a longer one is handed on in pieces
REAP_SECONDS = 5.0


@attrs.define(eq=False, repr=False)
class Process:
    pid: int
    output: trio.abc.ReceiveStream
    errors: trio.abc.ReceiveStream
    _process: subprocess.Popen[bytes]
    _pidfd: int

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], *, pass_fds: Sequence[int] = ()) -> Process:
        """Start the process, which inherits `pass_fds`. It blocks for a millisecond. Raises OSError."""
        output, errors = os.pipe(), os.pipe()
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output[1],
                stderr=errors[1],
                process_group=0,
                pass_fds=pass_fds,
            )
        except BaseException:
            os.close(output[0])
            os.close(errors[0])
            raise
        finally:
            os.close(output[1])
            os.close(errors[1])
        streams = trio.lowlevel.FdStream(output[0]), trio.lowlevel.FdStream(errors[0])
        return cls(process.pid, *streams, process, os.pidfd_open(process.pid))

    async def wait(self) -> int:
        await trio.lowlevel.wait_readable(self._pidfd)
        return self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    async def aclose(self) -> None:
        self._process.kill()
        with trio.move_on_after(REAP_SECONDS, shield=True):
            await self.wait()
        trio.lowlevel.notify_closing(self._pidfd)
        os.close(self._pidfd)
        await trio.aclose_forcefully(self.output)
        await trio.aclose_forcefully(self.errors)


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    pending = b""
    while data := bytes(await stream.receive_some(RECEIVE_BYTES)):
        *whole, pending = (pending + data).split(b"\n")
        if len(pending) > LINE_MAX_BYTES:
            whole.append(pending)
            pending = b""
        for line in whole:
            yield line.decode(errors="backslashreplace")
    if pending:
        yield pending.decode(errors="backslashreplace")


PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends, and end now if it has ended: all is durable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)
