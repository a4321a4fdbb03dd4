"""Requests as handlers get them, and the registration of handlers.

A handler runs in the writer task of its connection, at its turn: it sees the effect of every earlier request of that
connection, may await (only this connection's later replies wait behind it), and is cancelled when the peer goes away.
It is `def` unless it can block. It returns its API's response; an error that Kafka has a code for is put into that
response by the handler itself. Produce is the exception: see `kafscale.api.produce`.
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
    """The client at the other end of a connection."""

    host: str
    port: int
    listener_name: str
    reached_host: str  # the local address that the client reached: what a wildcard listener advertises
    reached_port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    principal: Principal = ANONYMOUS
    sasl: SaslSession | None = None  # of a listener with SASL: what it may send is decided there
    software_name: str = ""
    software_version: str = ""

    @property
    def address(self) -> str:
        """HOST:PORT, to tell connections apart in the log. Group members are shown by `host` alone, as in Kafka."""
        return f"{self.host}:{self.port}"


@attrs.frozen(eq=False, repr=False)
class Call:
    """One request's envelope: what its header said, and who sent it."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    peer: Peer


Handler = Callable[..., Any | Awaitable[Any]]  # (services, call, request) -> response


@attrs.frozen(eq=False, repr=False)
class Api:
    """One API: what its module tells of it.

    `min_version` and `max_version` are what is advertised; the message classes know the same range or more.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    request: type[Message]
    response: type[Message]
    handle: Handler

    def serves(self, version: int) -> bool:
        """Tell whether that version is advertised."""
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


CHANGES_MAX_COUNT: Final = 10_000  # as of Kafka's controller (MAX_RECORDS_PER_USER_OP)


def check_batch_size(change_count: int) -> None:
    """Raises KafkaError POLICY_VIOLATION, in Kafka's words, if a request asks for more than CHANGES_MAX_COUNT."""
    if change_count > CHANGES_MAX_COUNT:
        raise KafkaError(POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
