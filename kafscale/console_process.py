"""The console of `kafscale serve`: a child process, started by the first request of a browser.

The listening socket is open from the start and the child inherits it, so an unused console costs nothing, and a
browser that comes early waits in the socket's backlog.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Iterable, Sequence

import attrs
import trio

from kafscale.backoff import Backoff
from kafscale.config import BUCKET_OPTIONS, Address, SecurityProtocol, Settings, flags_of
from kafscale.config.values import WILDCARD_HOSTS, Listener
from kafscale.process_variables import SUPERVISOR_VARIABLE

logger = logging.getLogger(__name__)

LIBRARIES = ("hypercorn", "starlette", "jinja2", "python_multipart")
BACKLOG = 128
BACKOFF = Backoff(0.5, 30.0)  # after a child that ended by itself


def open_listener(address: Address) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)


@attrs.define(eq=False, repr=False)
class ConsoleProcess:
    """Serves the console on a listening socket. `run` it once the brokers are ready."""

    listener: socket.socket
    arguments: Sequence[str]

    @classmethod
    def open(cls, settings: Settings, listeners: Iterable[Listener], admin: Address) -> ConsoleProcess | None:
        """Listen at `--console`; return None, with a reason in the log, if that fails."""
        if settings.console is None:
            return None
        missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
        if missing:
            from kafscale.extras import install_command

            command = install_command("console")
            logger.info("no console: it needs the extra `console` (missing: %s): %s", ", ".join(missing), command)
            return None
        arguments = _arguments(settings, list(listeners), admin)
        if arguments is None:
            logger.info("no console: every listener has TLS; run `kafscale console --command-config FILE`")
            return None
        try:
            listener = open_listener(settings.console)
        except OSError as exc:
            logger.warning(
                "no console: cannot listen on %s: %s; choose another address with --console HOST:PORT, or none",
                settings.console,
                os.strerror(exc.errno) if exc.errno else exc,
            )
            return None
        return cls(listener, arguments)

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"http://{Address(host, port)}"

    async def run(self) -> None:
        """Start the child when a browser connects, and again after it has ended. Close the socket at the end."""
        ended_count = 0
        with self.listener:
            while True:
                await trio.lowlevel.wait_readable(self.listener)
                began_at = trio.current_time()
                try:
                    await self._live()
                except OSError as exc:
                    logger.error("cannot start the console: %s", exc)
                ended_count = 0 if trio.current_time() - began_at > BACKOFF.longest_seconds else ended_count + 1
                await trio.sleep(BACKOFF.seconds(ended_count))

    async def _live(self) -> None:
        """Run the child once. Raises OSError."""
        from kafscale.concurrency.process import Process  # a start of the broker needs no processes

        descriptor = self.listener.fileno()
        command = [sys.executable, "-m", "kafscale", "console", "--fd", str(descriptor), *self.arguments]
        environment = {**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())}
        process = Process.start(command, environment, pass_fds=[descriptor])
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, process.output)
                nursery.start_soon(_pass_on, process.errors)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            await process.aclose()
        logger.warning("the console has ended with exit code %d; the next request of a browser starts it again", code)


async def _pass_on(stream: trio.abc.ReceiveStream) -> None:
    """Write the child's output to our log."""
    async for data in stream:
        sys.stderr.write(bytes(data).decode(errors="backslashreplace"))
        sys.stderr.flush()


def _arguments(settings: Settings, listeners: Sequence[Listener], admin: Address) -> list[str] | None:
    """Return the options of `kafscale console`; None if all listeners have TLS.

    A listener with logins is preferred, so that the users of the console have their own rights.
    """
    usable = [listener for listener in listeners if not settings.protocol_of(listener).uses_tls]
    if not usable:
        return None
    chosen = max(usable, key=lambda listener: settings.protocol_of(listener).uses_sasl)
    bootstrap = ",".join(str(_reachable(listener)) for listener in usable if listener.name == chosen.name)
    arguments = ["--bootstrap", bootstrap, "--admin", str(_reachable(admin))]
    if settings.protocol_of(chosen).uses_sasl:
        arguments += ["--setting", f"security.protocol={SecurityProtocol.SASL_PLAINTEXT}"]
        arguments += ["--setting", f"sasl.mechanism={','.join(settings.sasl.sasl_mechanisms)}"]
    if settings.admin_token_file is not None:
        arguments += ["--admin-token-file", str(settings.admin_token_file)]
    return arguments + flags_of(settings, ("data_dir", *BUCKET_OPTIONS))


def _reachable(listener: Listener | Address) -> Address:
    """Return an address that a process of this machine can connect to."""
    if listener.host not in WILDCARD_HOSTS:
        return Address(listener.host, listener.port)
    return Address("::1" if ":" in listener.host else "127.0.0.1", listener.port)
