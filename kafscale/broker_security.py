"""Opens a broker's certificates, tokens and logins, which are read again when they change."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from kafscale.cluster.membership.peers.peer_connections import InterBrokerLogin
from kafscale.cluster.registries.scram_users import key_file_of
from kafscale.config import Settings
from kafscale.metrics import Metrics
from kafscale.server.http.access import AdminAccess, AdminToken
from kafscale.server.kafka.binding import ListenerTls, open_listener_tls
from kafscale.server.secret_files import warn_of_readable
from kafscale.server.watched_files import FileWatch, Watched


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BrokerSecurity:
    tls: ListenerTls | None = None
    between: InterBrokerLogin | None = None
    access: AdminAccess
    watch: FileWatch

    def register(self, metrics: Metrics) -> None:
        self.watch.register(metrics)
        if self.tls is not None:
            self.tls.files.register(metrics)

    async def run(self) -> None:
        if self.watch.watched:
            await self.watch.run()


def open_security(settings: Settings) -> BrokerSecurity:
    warn_of_readable(settings, key_file=key_file_of(settings))
    tls = open_listener_tls(settings)
    token = None if settings.admin_token_file is None else AdminToken.open(settings.admin_token_file)
    between = InterBrokerLogin.open(settings)
    files = None if tls is None else tls.files
    admin_tls = files if settings.admin_ssl else None
    read_again: Sequence[Watched | None] = (files, token, between)
    return BrokerSecurity(
        tls=tls,
        between=between,
        access=AdminAccess.of(settings, token, admin_tls),
        watch=FileWatch(
            [watched for watched in read_again if watched is not None], settings.ssl.ssl_reload_interval_seconds
        ),
    )


async def reload_on_signal(settings: Settings, reload: Callable[[], Awaitable[None]]) -> None:
    """Read all files again on SIGHUP. If the settings name none, SIGHUP ends the process, as usual."""
    if not settings.names_watched_files:
        return
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await reload()
