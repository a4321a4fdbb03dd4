"""A broker as a process of its own, as users run it: `python -m kafscale serve` on free ports. It can be stopped,
killed and started again on the same ports and data.

The ports stay reserved while it is down, since the kernel gives free ports to outgoing connections too.

Blocking, without trio: a trio caller runs `start` and `stop` in a thread. Variables named KAFSCALE_… do not reach the
process unless they are given.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import attrs

import kafscale
from kafscale.config import Address

START_TIMEOUT_SECONDS = 120.0  # it takes two where nothing else runs
STOP_TIMEOUT_SECONDS = 20.0  # above the broker's own --shutdown-timeout
EXIT_AFTER_EOF_SECONDS = 0.5  # its stdout is closed a moment before it has ended
SHOWN_LOG_BYTES = 4000
KAFSCALE = ("-m", "kafscale")

_READY = re.compile(r"kafscale is ready: kafka (\S+):(\d+) admin (\S+):(\d+)(.*)")
_ANY_PORT = Address("127.0.0.1", 0)


class ProcessFailed(Exception):
    """The broker did not become ready, or did not stop; the message ends with the end of its stderr."""


@attrs.define(kw_only=True, eq=False)
class BrokerProcess:
    """One broker and its data directory; not running until `start`.

    `options` are further flags of `kafscale serve`, `environ` further variables, `program` the arguments of Python;
    they may be changed between starts. `package` is the directory whose `kafscale` runs, by default that under test.
    From the first start on `kafka` and `admin` are the addresses, and later starts use the same ones. `protocol` is
    that of the listener of `kafka`, and `client_settings` are a client's further settings there, by Kafka's names.
    """

    directory: Path
    options: Sequence[str] = ()
    environ: Mapping[str, str] = attrs.field(factory=dict)
    program: Sequence[str] = KAFSCALE
    package: Path | None = None
    kafka: Address = _ANY_PORT
    admin: Address = _ANY_PORT
    protocol: str = "PLAINTEXT"
    client_settings: Mapping[str, str] = attrs.field(factory=dict)
    further_listeners: Sequence[str] = attrs.field(default=(), init=False)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for a client's `bootstrap.servers`."""
        return str(self.kafka)

    @property
    def broker_ids(self) -> Sequence[int]:
        """Return the ids of all brokers that this is."""
        return [0]

    def settle(self) -> None:
        """Return when a confirmed change holds at each of the brokers."""

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Raises ProcessFailed when it is not running."""
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Run it until it is ready. Raises ProcessFailed, and then no process is left."""
        process = self.launch()
        ready = _READY.match(_first_line(process, time.monotonic() + timeout_seconds))
        if ready is None:
            raise self._not_ready(process, timeout_seconds)
        self.kafka = Address(ready[1], int(ready[2]))
        self.admin = Address(ready[3], int(ready[4]))
        self.further_listeners = ready[5].split()

    def _not_ready(self, process: subprocess.Popen[str], timeout_seconds: float) -> ProcessFailed:
        try:
            code = process.wait(EXIT_AFTER_EOF_SECONDS)
        except subprocess.TimeoutExpired:
            why = f"the broker was not ready in {timeout_seconds:g} s"
        else:
            why = f"the broker ended with {code} before it was ready"
        self.kill()
        return ProcessFailed(f"{why}: {self._end_of_log()}")

    def launch(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            raise ProcessFailed("the broker runs already")
        self.kill()  # one that has ended by itself, whose output is open still
        if self.kafka.port == 0:
            self.kafka, self.admin = self._reserved_kafka(), self._reserved()
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), env=self._environ(), stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self._process

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> int:
        """End it in order (SIGTERM) and return its exit code. Raises ProcessFailed when it hangs, and kills it."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as exc:
            raise ProcessFailed(f"the broker did not stop in {timeout_seconds:g} s: {self._end_of_log()}") from exc
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), if it runs, as kill -9 or the kernel's out-of-memory killer does."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def suspend(self) -> None:
        """Stop it until `resume` or `kill` (SIGSTOP); the kernel keeps its connections open."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> None:
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def _reserved_kafka(self) -> Address:
        return self._reserved()

    def _reserved(self) -> Address:
        """Return a free port, bound as long as this object lives; a broker that reuses addresses may listen on it."""
        reservation = socket.socket()
        weakref.finalize(self, reservation.close)
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((_ANY_PORT.host, _ANY_PORT.port))
        return Address(*reservation.getsockname())

    @property
    def _log_file(self) -> Path:
        return self.directory / "stderr.log"

    def _command(self) -> list[str]:
        interpreter = [
            sys.executable,
            *([] if self.package is None else ["-P"]),
        ]  # not what is in the directory it is in
        serve = [*interpreter, *self.program, "serve", "--data-dir", str(self.data_dir)]
        return [*serve, "--listen", f"{self.protocol}={self.kafka}", "--admin-listen", str(self.admin), *self.options]

    def _environ(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFSCALE_")}
        package = str(self.package or Path(kafscale.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, [package, inherited.get("PYTHONPATH")]))
        console = {"KAFSCALE_CONSOLE": "none"} if self.package is None else {}  # earlier versions have no such option
        return {**inherited, **console, "PYTHONPATH": paths, **self.environ}

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            raise ProcessFailed(f"the broker does not run: {self._end_of_log()}")
        return self._process

    def _end_of_log(self) -> str:
        return self.log[-SHOWN_LOG_BYTES:].strip() or "(nothing on stderr)"


@contextmanager
def broker_process(
    *options: str,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    program: Sequence[str] = KAFSCALE,
) -> Iterator[BrokerProcess]:
    """Run a broker for the block, in a temporary directory by default; it is killed at the end."""
    with nullcontext(directory) if directory is not None else TemporaryDirectory(prefix="kafscale-") as used:
        with BrokerProcess(directory=Path(used), options=options, environ=environ or {}, program=program) as broker:
            yield broker


def is_there(pid: int) -> bool:
    """Tell whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def interruptible() -> None:
    """Let SIGINT end a process; its `preexec_fn`.

    A shell's background process ignores SIGINT, and so would its children.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _first_line(process: subprocess.Popen[str], deadline: float) -> str:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    written = b""
    while not written.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            break
        read = os.read(descriptor, 4096)
        if not read:
            break
        written += read
    return written.decode(errors="replace")


PROC = Path("/proc")
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs: VmHWM becomes VmRSS


def rss_mib(pid: int) -> float:
    return _status_mib(pid, "VmRSS:")


def peak_rss_mib(pid: int) -> float:
    """Return the peak of resident memory since the start, or since `reset_peak_rss`."""
    return _status_mib(pid, "VmHWM:")


def reset_peak_rss(pid: int) -> None:
    """Reset `peak_rss_mib`. Raises OSError for a process of another user."""
    (PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)


def main_thread_seconds(pid: int) -> float:
    """Return the CPU time of the main thread, which runs a broker's event loop. Raises OSError if the process has
    gone.
    """
    on_cpu_ns, *_ = (PROC / str(pid) / "task" / str(pid) / "schedstat").read_text().split()
    return int(on_cpu_ns) / 1e9


def _status_mib(pid: int, name: str) -> float:
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0
