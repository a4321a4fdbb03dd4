"""All brokers of this machine: `kafscale serve --processes N`, with N above 1.

    serve
    └─ admin HTTP, signals, certificates     as long as there is a broker
       └─ a task per broker                  which starts it, and starts it again

On a signal each broker drains and ends, within its shutdown timeout; a late one is killed. A second signal kills.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

import attrs
import trio

from kafscale import service_manager
from kafscale.concurrency.process import Process
from kafscale.config import Address, Loaded, Settings
from kafscale.console_process import ConsoleProcess
from kafscale.errors import StartupError
from kafscale.security.secret_keys import make_key_file
from kafscale.server.http.access import AdminAccess, AdminToken
from kafscale.server.kafka.binding import bind
from kafscale.server.tls.contexts import Tls
from kafscale.server.watched_files import FileWatch, Watched
from kafscale.supervisor.admin import SupervisorAdmin
from kafscale.supervisor.child import Child
from kafscale.supervisor.plans import BrokerPlan, environment_of_brokers, key_file_of, plan_brokers

logger = logging.getLogger(__name__)

BROKER_COMMAND = (sys.executable, "-m", "kafscale")
SPARE_SECONDS = (
    3.0  # past the shutdown timeout, for what a broker does after it: its connections to the store, its exit
)
LATE_CODE = 1


async def serve(loaded: Loaded, count: int, command: Sequence[str] = BROKER_COMMAND) -> int:
    """Run `count` brokers until a signal. Returns the exit code. Raises ConfigError, StartupError."""
    plans = plan_brokers(loaded, count)
    _ensure_key_file(loaded.settings)
    environment = environment_of_brokers(os.environ, os.getpid())

    def launch(plan: BrokerPlan) -> Process:
        return Process.start([*command, *plan.arguments()], environment)

    return await Supervisor(loaded.settings, [Child(plan, launch) for plan in plans]).run()


@attrs.define(eq=False, repr=False)
class Supervisor:
    """The brokers and their common parts. `settings` are those of all of them."""

    settings: Settings
    children: Sequence[Child]
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)
    _code: int = attrs.field(default=0, init=False)

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            logger.info("shutting down")
            service_manager.tell(service_manager.STOPPING)
            for child in self.children:
                child.stop()

    async def run(self) -> int:
        """Keep the brokers running until `stop`, or a refused start. Returns the exit code. Raises StartupError."""
        watched: list[Watched] = []
        access = _open_access(self.settings, watched)
        watch = FileWatch(watched, self.settings.ssl.ssl_reload_interval_seconds)
        admin = await bind("ADMIN", self.settings.admin_listen, option="--admin-listen")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SupervisorAdmin(self.children, access=access).server.accept, admin.sockets)
            nursery.start_soon(watch.run)
            nursery.start_soon(self._tell_ready, Address(admin.host, admin.port))
            nursery.start_soon(self._kill_late)
            await nursery.start(self._heed_signals, watch)
            async with trio.open_nursery() as brokers:
                for child in self.children:
                    brokers.start_soon(self._run, child)
            nursery.cancel_scope.cancel()
        return self._code

    async def _run(self, child: Child) -> None:
        code = await child.run()
        if code not in (0, -signal.SIGTERM):  # that of one that had hardly begun
            self._code = self._code or (code if code > 0 else LATE_CODE)
        self.stop()

    async def _tell_ready(self, admin: Address) -> None:
        for child in self.children:
            await child.was_ready.wait()
        first, *others = (
            ",".join(map(str, addresses))
            for addresses in zip(*(child.plan.addresses for child in self.children), strict=True)
        )
        print(f"kafscale is ready: kafka {first} admin {admin}", *others, flush=True)
        service_manager.tell(service_manager.READY)
        listeners = [listener for child in self.children for listener in child.plan.settings.listeners]
        console = ConsoleProcess.open(self.settings, listeners, admin)
        if console is not None:
            print(f"kafscale console: {console.url}", flush=True)
            await console.run()

    async def _kill_late(self) -> None:
        await self._stopping.wait()
        await trio.sleep(self.settings.shutdown_timeout_seconds + SPARE_SECONDS)
        for child in self.children:
            if child.is_running:
                logger.error("broker %d has not ended in time, and is killed", child.broker_id)
                child.send_signal(signal.SIGKILL)

    async def _heed_signals(self, watch: FileWatch, *, task_status: trio.TaskStatus[None]) -> None:
        """Drain on the first signal, end everything on the second, and reload files on SIGHUP, if there are any."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP and self.settings.names_watched_files:
                    for child in self.children:
                        if child.reached is not None:  # others read them at their start, and could not heed it yet
                            child.send_signal(signal.SIGHUP)
                    await watch.reload()
                elif self._stopping.is_set():
                    for child in self.children:
                        child.send_signal(signal.SIGKILL)
                    os._exit(128 + number)
                else:
                    self.stop()


def _ensure_key_file(settings: Settings) -> None:
    """Make the keys of passwords if they are missing, as each broker would make its own. Raises StartupError."""
    path = key_file_of(settings)
    if settings.sasl.secret_key_file is None and not path.exists():
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise StartupError(f"cannot make the data directory {path.parent}: {exc.strerror}") from exc
        make_key_file(path)


def _open_access(settings: Settings, watched: list[Watched]) -> AdminAccess:
    """Read the files of the admin server, and add them to the watched ones. Raises StartupError."""
    token = None if settings.admin_token_file is None else AdminToken.open(settings.admin_token_file)
    tls = Tls.open(settings.ssl) if settings.admin_ssl else None
    watched.extend(file for file in (token, tls) if file is not None)
    return AdminAccess.of(settings, token, tls)
