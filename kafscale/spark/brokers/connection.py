"""One blocking connection to a broker.

Versions are fixed, each one that Kafka 3.0 to 4.x and KafScale have: with EndTxn before version 5 and Produce before 12
a transaction is of the first version of the protocol. Newer versions of EndTxn would raise the epoch, and answer
repeated requests otherwise.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final, TypeVar

import attrs

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, ConfigError, ProtocolError
from kafscale.login.client_protocol import ApiCall, ClientProtocol, PendingReply
from kafscale.login.sasl import ClientSasl
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.login.steps import HANDSHAKE_VERSION, SESSION_FRACTION, LoginSteps
from kafscale.network_errors import why_unreachable
from kafscale.wire import codec
from kafscale.wire.messages.cluster import FindCoordinatorRequest
from kafscale.wire.messages.records import FetchRequest, ListOffsetsRequest, ProduceRequest
from kafscale.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafscale.wire.messages.topics import CreateTopicsRequest, MetadataRequest
from kafscale.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

VERSIONS: Final[dict[type, int]] = {
    ProduceRequest: 9,
    FetchRequest: 12,  # the last one with names of topics; `ask` is told another one where it is by id
    ListOffsetsRequest: 6,
    MetadataRequest: 10,  # the first one with ids of topics; Kafka has it since 2.8
    FindCoordinatorRequest: 4,
    CreateTopicsRequest: 5,
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    EndTxnRequest: 3,
    DescribeTransactionsRequest: 0,
    ListTransactionsRequest: 0,
    SaslHandshakeRequest: HANDSHAKE_VERSION,
    SaslAuthenticateRequest: 1,  # the first one that says how long the session lasts
}
CLIENT_ID: Final = "kafscale-spark"
RECEIVE_BYTES: Final = 1 << 20

R = TypeVar("R")


@attrs.define(eq=False, kw_only=True, repr=False)
class BrokerConnection:
    """Asks one thing at a time, or several with `send`. Made by `open`; not to be used after an exception."""

    address: Address
    _socket: socket.socket
    _protocol: ClientProtocol = attrs.field(init=False)
    _replies: deque[PendingReply[Any]] = attrs.field(factory=deque, init=False)
    _session_until: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._protocol = ClientProtocol(peer=str(self.address), client_id=CLIENT_ID)

    @classmethod
    def open(
        cls, address: Address, timeout_seconds: float, *, security: ClientSecurity = PLAINTEXT
    ) -> BrokerConnection:
        """Connect, and log in; each request may take as long. Raises BrokerUnavailable, ConfigError, KafkaError."""
        try:
            connected = socket.create_connection((address.host, address.port), timeout_seconds)
        except OSError as exc:
            raise BrokerUnavailable(f"can't connect to {address}: {why_unreachable(exc)}") from exc
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if security.context is not None:
                connected = _secured(connected, address, security.context)
            connection = cls(address=address, socket=connected)
            if security.sasl is not None:
                connection._log_in(security.sasl)
        except BaseException:
            connected.close()
            raise
        return connection

    @property
    def is_over(self) -> bool:
        """Tell whether the session ends soon, so that another connection is needed."""
        return time.monotonic() >= self._session_until

    def ask(self, request: object, response_class: type[R], *, version: int | None = None) -> R:
        """Send a request and wait for its answer. Raises BrokerUnavailable, ProtocolError."""
        self.send(request, response_class, version=version)
        return self.answer(response_class)

    def send(self, request: object, response_class: type, *, version: int | None = None) -> None:
        """Send a request, which is answered after those before. Raises BrokerUnavailable."""
        request_class: type = type(request)
        call: ApiCall[Any] = ApiCall.of(
            request_class, response_class, VERSIONS[request_class] if version is None else version
        )
        reply = PendingReply(call)
        frame = b"".join(self._protocol.send(reply, codec.encode(request, call.version)))
        try:
            self._socket.sendall(frame)
        except OSError as exc:
            raise BrokerUnavailable(f"the broker at {self.address} took no request: {exc}") from exc
        self._replies.append(reply)

    def answer(self, response_class: type[R]) -> R:
        """Wait for the answer to the first unanswered request. Raises BrokerUnavailable, ProtocolError."""
        reply: PendingReply[R] = self._replies.popleft()
        assert reply.call.response_class is response_class
        while reply.body is None:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError as exc:
                raise BrokerUnavailable(f"the broker at {self.address} gave no answer: {exc}") from exc
            if not data:
                raise BrokerUnavailable(f"the broker at {self.address} closed the connection")
            try:
                self._protocol.receive_data(data)
            except ProtocolError as exc:
                raise BrokerUnavailable(str(exc)) from exc
        return reply.decode()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _log_in(self, sasl: ClientSasl) -> None:
        steps = LoginSteps(sasl, self.address)
        request = steps.next(None)
        while request is not None:
            by_handshake = isinstance(request, SaslHandshakeRequest)
            answer: Any = self.ask(request, SaslHandshakeResponse if by_handshake else SaslAuthenticateResponse)
            request = steps.next(answer)
        if steps.session_seconds is not None:
            self._session_until = time.monotonic() + SESSION_FRACTION * steps.session_seconds


def _secured(connected: socket.socket, address: Address, context: ssl.SSLContext) -> socket.socket:
    try:
        return context.wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as exc:  # which no other try would change
        raise ConfigError(
            f"the TLS handshake with {address} failed: {why_unreachable(exc)}; does ssl.truststore.location or "
            "ssl.ca.location have its authority?"
        ) from exc
    except OSError as exc:
        raise BrokerUnavailable(
            f"the TLS handshake with {address} failed: {why_unreachable(exc)}; is that a listener with TLS?"
        ) from exc
