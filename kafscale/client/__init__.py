"""A small Kafka client on trio and the project's own codec, for the command line, tests and benchmarks.

It speaks to any Kafka broker. `client` finds leaders and coordinators and has a `connection` to each broker. A task
that waits for a reply reads it itself, so there is no background task and no nursery to keep.
"""

from __future__ import annotations

from kafscale.client.client import Client, connect
from kafscale.client.connection import Connection, Reply, open_connection
from kafscale.client.consumer import Consumed, Consumer, IsolationLevel
from kafscale.client.producer import Producer
from kafscale.login.client_protocol import ApiCall
from kafscale.login.security import ClientSecurity, client_security

__all__ = [
    "ApiCall",
    "Client",
    "ClientSecurity",
    "Connection",
    "Consumed",
    "Consumer",
    "IsolationLevel",
    "Producer",
    "Reply",
    "client_security",
    "connect",
    "open_connection",
]
