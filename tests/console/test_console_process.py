"""The console of `kafscale serve`: a child that begins with the first request."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kafscale.config import Address, Listener, ListenerProtocol, SecurityProtocol, Settings, SslSettings
from kafscale.console_process import ConsoleProcess
from tests.devtools.processes.process import is_there

DEADLINE_SECONDS = 30.0
FREE = Address("127.0.0.1", 0)


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `kafscale serve` and give its process and the URL of its console."""
    command = [sys.executable, "-m", "kafscale", "serve", "--data-dir", str(directory), "--admin-listen", str(FREE)]
    with subprocess.Popen(
        [*command, "--listen", str(FREE), "--console", str(FREE), *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready, console = process.stdout.readline(), process.stdout.readline()
            assert ready.startswith("kafscale is ready: ")
            assert console.startswith("kafscale console: http://127.0.0.1:")
            yield process, console.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_SECONDS) == 0


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_the_console_starts_with_the_first_request_and_ends_with_the_broker(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with serving(tmp_path, *options) as (process, url):
        brokers = children(process.pid)
        assert len(brokers) == (2 if options else 0)
        page = httpx.get(url, timeout=DEADLINE_SECONDS).text
        assert f'<dt>Brokers</dt><dd><a href="/brokers">{len(brokers) or 1}</a></dd>' in page
        (console,) = set(children(process.pid)) - set(brokers)
    assert not is_there(console)


def test_a_killed_console_starts_again_with_the_next_request(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, url):
        assert httpx.get(url, timeout=DEADLINE_SECONDS).status_code == 200
        os.kill(children(process.pid)[0], signal.SIGKILL)
        assert httpx.get(url, timeout=DEADLINE_SECONDS).status_code == 200


def test_an_address_in_use_leaves_the_broker_without_a_console(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        settings = Settings(console=address)
        assert ConsoleProcess.open(settings, settings.listeners, FREE) is None
    assert f"no console: cannot listen on {address}: Address already in use; choose another address" in caplog.text


def test_a_broker_whose_listeners_have_tls_has_no_console() -> None:
    listener = Listener("OUT", "127.0.0.1", 9092)
    settings = Settings(
        listeners=(listener,),
        listener_security_protocols=(ListenerProtocol("OUT", SecurityProtocol.SSL),),
        ssl=SslSettings(ssl_certificate_file=Path("chain.pem"), ssl_key_file=Path("key.pem")),
        console=FREE,
    )
    assert ConsoleProcess.open(settings, [listener], FREE) is None


def test_users_of_the_console_log_in_where_a_listener_has_logins() -> None:
    listeners = (Listener("PLAINTEXT", "0.0.0.0", 9092), Listener("SASL_PLAINTEXT", "0.0.0.0", 9093))
    settings = Settings(listeners=listeners, console=FREE)
    console = ConsoleProcess.open(settings, listeners, FREE)
    assert console is not None
    with console.listener:
        arguments = " ".join(console.arguments)
    assert "--bootstrap 127.0.0.1:9093" in arguments
    assert "--setting security.protocol=SASL_PLAINTEXT --setting sasl.mechanism=SCRAM-SHA-512" in arguments
