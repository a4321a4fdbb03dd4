"""Opens the listeners of Kafka clients and their acceptor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafscale.api.handling.calls import ListedApi
from kafscale.api.handling.services import Services
from kafscale.api.table import APIS
from kafscale.config import Settings
from kafscale.server.kafka.binding import BoundListener, ListenerTls, bind, open_listener, warn_of_listeners
from kafscale.server.kafka.connection import ConnectionMetrics
from kafscale.server.kafka.dispatch import Dispatcher
from kafscale.server.kafka.listener import Acceptor

__all__ = ["Acceptor", "BoundListener", "Dispatcher", "MakeDispatcher", "bind", "open_acceptor", "open_listeners"]

MakeDispatcher = Callable[[Services, Sequence[ListedApi]], Dispatcher]


async def open_listeners(settings: Settings) -> Sequence[BoundListener]:
    """Bind the listeners of the settings, and warn of exposed ones. Raises StartupError."""
    listeners = [await open_listener(listener, settings) for listener in settings.listeners]
    warn_of_listeners(listeners, settings.ssl.ssl_client_auth, settings.sasl.sasl_mechanisms)
    return listeners


def open_acceptor(services: Services, make_dispatcher: MakeDispatcher, tls: ListenerTls | None) -> Acceptor:
    """Make the acceptor for all APIs, which follows the limits."""
    acceptor = Acceptor(
        dispatcher=make_dispatcher(services, APIS),
        pool=services.log.pool,
        limits=services.settings.limits,
        metrics=ConnectionMetrics(),
        tls=tls,
    )
    acceptor.register(services.metrics)
    configs = services.broker_configs
    configs.follow(lambda: acceptor.use_limits(configs.settings.limits))
    return acceptor
