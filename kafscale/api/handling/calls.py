"""Requests as handlers get them, and the registration of handlers.

A handler runs in the writer task of its connection, at its turn: it sees the effect of every earlier request of the
connection. It may await, as only later replies of this connection wait behind it, and is cancelled when the peer goes
away. It returns the response, with any error that has a Kafka code. Produce is different: see `kafscale.api.produce`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import attrs

from kafscale.config import SecurityProtocol
from kafscale.errors import KafkaError
from kafscale.security.principals import ANONYMOUS, Principal
from kafscale.security.session import SaslSession
from kafscale.wire.error_codes import POLICY_VIOLATION
from kafscale.wire.schema import Message


@attrs.define(eq=False, repr=False)
class Peer:
    host: str
    port: int
    listener_name: str
    reached_host: str  # local address of the connection, which a wildcard listener advertises
    reached_port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    principal: Principal = ANONYMOUS
    sasl: SaslSession | None = None  # on a listener with SASL: decides what the client may send
    software_name: str = ""
    software_version: str = ""

    @property
    def address(self) -> str:
        """HOST:PORT, for the log. Group members have only `host`, as in Kafka."""
        return f"{self.host}:{self.port}"


@attrs.frozen(eq=False, repr=False)
class Call:
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    peer: Peer


Handler = Callable[..., Any | Awaitable[Any]]  # (services, call, request) -> response


@attrs.frozen(eq=False, repr=False)
class Api:
    """One API, as its module defines it. The versions are those advertised; the message classes know at least these."""

    key: int
    name: str
    min_version: int
    max_version: int
    request: type[Message]
    response: type[Message]
    handle: Handler

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


@attrs.frozen(eq=False, repr=False)
class ListedApi:
    """A row of the table of APIs (`kafscale.api.table`). The module is in the package `room` and has the API's name."""

    key: int
    name: str
    min_version: int
    max_version: int
    room: ModuleType

    def load(self) -> Api:
        """Return the API; the first call imports its module."""
        module = re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()
        api: Api = import_module(f"{self.room.__name__}.{module}").API
        return api


CHANGES_MAX_COUNT: Final = 10_000  # as in Kafka's controller (MAX_RECORDS_PER_USER_OP)


def check_batch_size(change_count: int) -> None:
    """Raise KafkaError POLICY_VIOLATION for a request with more than CHANGES_MAX_COUNT changes."""
    if change_count > CHANGES_MAX_COUNT:
        raise KafkaError(POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
