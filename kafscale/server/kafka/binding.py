"""Listening sockets, opened by the settings."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address

import attrs
import trio

from kafscale.config import Address, Listener, SaslMechanism, SecurityProtocol, Settings, SslClientAuth
from kafscale.errors import StartupError
from kafscale.network_errors import why_unreachable
from kafscale.security.certificates import ParsedCertificate
from kafscale.security.principals import ANONYMOUS, Principal, SslPrincipalMapper
from kafscale.server.tls.contexts import Tls


@attrs.frozen(eq=False, repr=False)
class BoundListener:
    """A listener with open sockets; `port` is the real one."""

    name: str
    host: str
    port: int
    sockets: Sequence[trio.SocketListener]
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def is_loopback(self) -> bool:
        """Tell whether only programs of this machine reach it."""
        return all(
            ip_address(listener.socket.getsockname()[0].partition("%")[0]).is_loopback for listener in self.sockets
        )


async def bind(
    name: str,
    address: Address,
    *,
    option: str,
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
    receive_buffer_bytes: int = 0,
) -> BoundListener:
    """Open the sockets; `option` names the setting in errors. Raises StartupError.

    receive_buffer_bytes: of each connection; 0 for the kernel's default.
    """
    try:
        sockets = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as exc:
        raise StartupError(f"{option} {address}: {_why(exc)}") from exc
    if receive_buffer_bytes:
        for listener in sockets:  # those that come in have it from the one that listens
            listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return BoundListener(name, address.host, sockets[0].socket.getsockname()[1], sockets, protocol)


def _why(exc: OSError) -> str:
    number = exc.errno if exc.errno is not None else getattr(exc.__cause__, "errno", None)
    causes = [exc, *getattr(exc.__cause__, "exceptions", ())]
    if any(getattr(cause, "errno", number) == errno.EADDRINUSE for cause in causes):
        return "another program listens there; stop it, or choose another port (0 picks a free one)"
    if any(getattr(cause, "errno", number) == errno.EACCES for cause in causes):
        return "not allowed to listen there; choose a port above 1023"
    return f"can't listen there: {why_unreachable(exc)}; choose an address of this machine"


logger = logging.getLogger(__name__)

SENT_AS_THEY_ARE = (SaslMechanism.PLAIN, SaslMechanism.OAUTHBEARER)  # the passwords and tokens of these


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ListenerTls:
    """The broker's certificate, and the rules that map clients' certificates to principals."""

    files: Tls
    principals: SslPrincipalMapper

    def principal_of(self, secured: ssl.SSLObject) -> Principal:
        shown = secured.getpeercert(binary_form=True)
        return ANONYMOUS if shown is None else self.principals.principal(ParsedCertificate.parse(shown).subject)


def open_listener_tls(settings: Settings) -> ListenerTls | None:
    """Read the files of TLS; None if the settings name none. Raises StartupError."""
    if settings.ssl.ssl_certificate_file is None:
        return None
    try:
        principals = SslPrincipalMapper(settings.ssl.ssl_principal_mapping_rules)
    except ValueError as exc:
        raise StartupError(f"--ssl-principal-mapping-rules: {exc}") from exc
    return ListenerTls(files=Tls.open(settings.ssl), principals=principals)


async def open_listener(listener: Listener, settings: Settings) -> BoundListener:
    protocol = settings.protocol_of(listener)
    return await bind(
        listener.name,
        listener.address,
        option="--listen",
        protocol=protocol,
        receive_buffer_bytes=settings.ssl.ssl_receive_buffer_bytes if protocol.uses_tls else 0,
    )


async def open_listeners(settings: Settings) -> Sequence[BoundListener]:
    """Bind the listeners of the settings, and warn of exposed ones. Raises StartupError."""
    listeners = [await open_listener(listener, settings) for listener in settings.listeners]
    warn_of_listeners(listeners, settings.ssl.ssl_client_auth, settings.sasl.sasl_mechanisms)
    return listeners


def warn_of_listeners(
    listeners: Sequence[BoundListener], client_auth: SslClientAuth, mechanisms: Sequence[SaslMechanism]
) -> None:
    """Warn of listeners that other machines reach without authentication, or with plain-text passwords."""
    exposed = [listener for listener in listeners if not listener.is_loopback]
    by_certificate = client_auth is SslClientAuth.REQUIRED
    authenticating = [one for one in SecurityProtocol if one.uses_sasl or (one.uses_tls and by_certificate)]
    if open_ := [listener for listener in exposed if listener.protocol not in authenticating]:
        logger.warning(
            "anyone who reaches %s may read, write and delete all topics: clients do not authenticate there; listen "
            "on 127.0.0.1, or with --ssl-client-auth required or SASL",
            _shown(open_),
        )
    in_the_clear = [listener for listener in exposed if listener.protocol is SecurityProtocol.SASL_PLAINTEXT]
    readable = [mechanism for mechanism in mechanisms if mechanism in SENT_AS_THEY_ARE]
    if in_the_clear and readable:
        logger.warning(
            "the network can read what clients of %s log in with by %s; make it SASL_SSL, or let "
            "--sasl-mechanisms be SCRAM alone",
            _shown(in_the_clear),
            " or ".join(readable),
        )


def _shown(listeners: Sequence[BoundListener]) -> str:
    return " and ".join(f"{listener.name}={listener.host}:{listener.port}" for listener in listeners)
