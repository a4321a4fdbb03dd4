"""Messages to systemd (sd_notify(3)), for a service of `Type=notify`. Imports nothing of KafScale."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY, STOPPING = "READY=1", "STOPPING=1"


def tell(state: str) -> None:
    """Send a state to the service manager that has started this process, if one has; ignore a socket that is gone."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract one
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notices:
        notices.sendto(state.encode(), address)
