"""Listening sockets, opened as the settings say, and told of if strangers reach them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import attrs
import trio

from kafscale.config import Address, SecurityProtocol
from kafscale.errors import StartupError
from kafscale.network_errors import why_unreachable


@attrs.frozen(eq=False, repr=False)
class BoundListener:
    """A listener with its sockets open; `port` is the real one."""

    name: str
    host: str
    port: int
    sockets: Sequence[trio.SocketListener]
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def is_loopback(self) -> bool:
        """Tell whether only programs of this machine reach it."""
        return all(ip_address(each.socket.getsockname()[0].partition("%")[0]).is_loopback for each in self.sockets)


async def bind(
    name: str,
    address: Address,
    *,
    option: str,
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
    receive_buffer_bytes: int = 0,
) -> BoundListener:
    """Open the sockets. `option` names the setting in the error. Raises StartupError.

    receive_buffer_bytes: of each connection; 0 for what the kernel finds right.
    """
    try:
        sockets = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as exc:
        raise StartupError(f"{option} {address}: {_why(exc)}") from exc
    if receive_buffer_bytes:
        for each in sockets:  # those that come in have it from the one that listens
            each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return BoundListener(name, address.host, sockets[0].socket.getsockname()[1], sockets, protocol)


def _why(exc: OSError) -> str:
    number = exc.errno if exc.errno is not None else getattr(exc.__cause__, "errno", None)
    causes = [exc, *getattr(exc.__cause__, "exceptions", ())]
    if any(getattr(cause, "errno", number) == errno.EADDRINUSE for cause in causes):
        return "another program listens there; stop it, or choose another port (0 picks a free one)"
    if any(getattr(cause, "errno", number) == errno.EACCES for cause in causes):
        return "not allowed to listen there; choose a port above 1023"
    return f"can't listen there: {why_unreachable(exc)}; choose an address of this machine"
