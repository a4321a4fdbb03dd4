"""One connection to one broker: versions negotiated once, requests pipelined, replies matched in order.

`send` returns a `Reply` to wait for; many may be under way. A waiting task reads from the socket for all: replies come
in order, so the task that has waited longest has the next one. A cancelled write leaves half a frame and breaks the
connection; a cancelled wait does not.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeVar

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, FrameTooLarge, ProtocolError
from kafscale.login.client_protocol import ApiCall, ClientProtocol, PendingReply
from kafscale.login.sasl import ClientSasl
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.login.steps import HANDSHAKE_VERSION, SESSION_FRACTION, LoginSteps
from kafscale.network_errors import root_cause, why_unreachable
from kafscale.wire import codec
from kafscale.wire.messages.security import SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse

RECEIVE_BYTES = 256 << 10
JOIN_BELOW_BYTES = 256 << 10  # the parts of a larger request are written one by one instead of being copied together
TLS_ALERT = b"\x15\x03"  # a server of TLS answers so to other bytes
DEFAULT_TIMEOUT_SECONDS = 30.0  # Kafka: request.timeout.ms, 30 s

R = TypeVar("R")


@attrs.define(eq=False, repr=False)
class Reply(PendingReply[R]):
    connection: Connection = attrs.field(kw_only=True)

    async def wait_body(self) -> memoryview:
        """Wait for the undecoded body. Raises BrokerUnavailable, ProtocolError."""
        await self.connection.receive_until(self)
        assert self.body is not None
        return self.body

    async def wait(self) -> R:
        """Wait for the decoded response. Raises BrokerUnavailable, ProtocolError."""
        await self.connection.receive_until(self)
        return self.decode()


@attrs.define(eq=False, kw_only=True, repr=False)
class Connection:
    """A connection with negotiated versions; made by `open_connection` or `Connection.over`."""

    stream: trio.abc.Stream
    address: Address
    _protocol: ClientProtocol
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    _sending: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _receiving: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _broken: str = attrs.field(default="", init=False)
    _session_until: float = attrs.field(default=math.inf, init=False)

    @classmethod
    async def over(
        cls,
        stream: trio.abc.Stream,
        address: Address,
        client_id: str = "kafscale",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Self:
        """Negotiate versions over a connected stream. Raises BrokerUnavailable, KafkaError."""
        protocol = ClientProtocol(peer=str(address), client_id=client_id)
        connection = cls(stream=stream, address=address, protocol=protocol, timeout_seconds=timeout_seconds)
        steps = protocol.negotiate()
        with suppress(StopIteration):
            call, body = next(steps)
            while True:
                call, body = steps.send(await (await connection.send_encoded(call, body)).wait_body())
        return connection

    @property
    def client_id(self) -> str:
        return self._protocol.client_id

    @client_id.setter
    def client_id(self, client_id: str) -> None:
        self._protocol.client_id = client_id

    @property
    def is_broken(self) -> bool:
        return bool(self._broken)

    @property
    def is_over(self) -> bool:
        """Tell whether the connection is broken or its session ends soon."""
        return self.is_broken or trio.current_time() >= self._session_until

    async def authenticate(self, sasl: ClientSasl) -> float | None:
        """Log in; return the session's seconds, None for no end. Raises BrokerUnavailable, KafkaError, ConfigError."""
        steps = LoginSteps(sasl, self.address)
        request = await trio.to_thread.run_sync(steps.next, None)
        while request is not None:
            if isinstance(request, SaslHandshakeRequest):
                reply: Reply[Any] = await self.send(request, SaslHandshakeResponse, version=HANDSHAKE_VERSION)
            else:
                reply = await self.send(request, SaslAuthenticateResponse)
            request = await trio.to_thread.run_sync(steps.next, await reply.wait())
        if steps.session_seconds is not None:
            self._session_until = trio.current_time() + SESSION_FRACTION * steps.session_seconds
        return steps.session_seconds

    def call(self, request_class: type, response_class: type[R], *, version: int | None = None) -> ApiCall[R]:
        """Return the call at a version, by default the newest of both sides. Raises KafkaError without a common one."""
        return self._protocol.call(request_class, response_class, version=version)

    async def request(self, message: object, response_class: type[R]) -> R:
        """Send one request and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""
        return await (await self.send(message, response_class)).wait()

    async def send(self, message: object, response_class: type[R], *, version: int | None = None) -> Reply[R]:
        """Write one request, in the version of `call`. Raises BrokerUnavailable, KafkaError."""
        call = self.call(type(message), response_class, version=version)
        return await self.send_encoded(call, codec.encode(message, call.version))

    async def send_encoded(self, call: ApiCall[R], body: Sequence[Buffer], *, has_reply: bool = True) -> Reply[R]:
        """Write one request with an encoded body; `has_reply` is false for Produce with acks=0."""
        return (await self.send_many(call, [body], has_reply=has_reply))[0]

    async def send_many(
        self, call: ApiCall[R], bodies: Sequence[Sequence[Buffer]], *, has_reply: bool = True
    ) -> list[Reply[R]]:
        """Write several requests with encoded bodies, small ones in one packet. Raises BrokerUnavailable."""
        async with self._sending:
            self._check_usable()
            parts: list[Buffer] = []
            replies = []
            for body in bodies:
                reply = Reply(call, connection=self)
                parts += self._protocol.send(reply, body, has_reply=has_reply)
                replies.append(reply)
            await self._write(parts)
        return replies

    async def receive_until(self, reply: PendingReply[Any]) -> None:
        """Read until a reply is here, without a checkpoint if it is. Raises BrokerUnavailable, ProtocolError."""
        if reply.body is not None:
            return  # one read often brings many replies: 25 µs less for each of the others
        try:
            with trio.fail_after(self.timeout_seconds):
                while reply.body is None:
                    async with self._receiving:
                        if reply.body is None:
                            await self._receive_some()
        except trio.TooSlowError as exc:
            raise BrokerUnavailable(f"no answer from {self.address} within {self.timeout_seconds:g} s") from exc

    async def aclose(self) -> None:
        """Close the connection; waiting tasks get BrokerUnavailable."""
        self._broken = self._broken or "is closed"
        await trio.aclose_forcefully(self.stream)

    async def _write(self, parts: Sequence[Buffer]) -> None:
        try:
            if size_of(parts) <= JOIN_BELOW_BYTES:
                await self.stream.send_all(b"".join(parts))
            else:
                for part in parts:
                    await self.stream.send_all(memoryview(part))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise self._break("closed the connection") from exc
        except BaseException:
            self._break("got half a request")
            raise

    async def _receive_some(self) -> None:
        self._check_usable()
        try:
            data = await self.stream.receive_some(RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise self._break("closed the connection") from exc
        if not data:
            raise self._break("closed the connection")
        try:
            self._protocol.receive_data(data)
        except ProtocolError:
            self._break("broke the protocol")
            raise

    def _check_usable(self) -> None:
        if self._broken:
            raise BrokerUnavailable(f"the broker at {self.address} {self._broken}")

    def _break(self, reason: str) -> BrokerUnavailable:
        self._broken = self._broken or reason
        return BrokerUnavailable(f"the broker at {self.address} {self._broken}")


@asynccontextmanager
async def open_connection(
    address: Address, client_id: str = "kafscale", *, security: ClientSecurity = PLAINTEXT
) -> AsyncIterator[Connection]:
    """Connect to a broker for the block. Raises BrokerUnavailable, KafkaError."""
    connection = await connect_to(address, client_id, security=security)
    try:
        yield connection
    finally:
        await connection.aclose()


async def connect_to(
    address: Address,
    client_id: str,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    *,
    security: ClientSecurity = PLAINTEXT,
) -> Connection:
    """Connect to a broker; the caller closes the connection. Raises BrokerUnavailable, KafkaError."""
    try:
        with trio.fail_after(timeout_seconds):
            stream: trio.abc.Stream = await trio.open_tcp_stream(address.host, address.port)
    except trio.TooSlowError as exc:
        raise BrokerUnavailable(
            f"can't connect to {address} within {timeout_seconds:g} s; check host, port and firewalls"
        ) from exc
    except OSError as exc:
        is_unknown = isinstance(root_cause(exc), socket.gaierror)
        advice = "check the name" if is_unknown else "is a broker listening there?"
        raise BrokerUnavailable(f"can't connect to {address}: {why_unreachable(exc)}; {advice}") from exc
    try:
        if security.context is not None:
            stream = await _secure(stream, address, security.context, timeout_seconds)
        connection = await _negotiated(
            stream, address, client_id, timeout_seconds, is_secured=security.context is not None
        )
        if security.sasl is not None:
            await connection.authenticate(security.sasl)
        return connection
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _negotiated(
    stream: trio.abc.Stream, address: Address, client_id: str, timeout_seconds: float, *, is_secured: bool
) -> Connection:
    """Negotiate versions; a listener with TLS hangs up here. Raises BrokerUnavailable, KafkaError."""
    try:
        return await Connection.over(stream, address, client_id, timeout_seconds)
    except FrameTooLarge as exc:
        raise BrokerUnavailable(f"{address} is not a Kafka listener: {_spoken_there(exc.prefix)}") from exc
    except BrokerUnavailable as exc:
        if is_secured:
            raise
        raise BrokerUnavailable(
            f"{exc}; is that a Kafka listener? Where it wants TLS, set security.protocol=SSL or SASL_SSL"
        ) from exc


def _spoken_there(prefix: bytes) -> str:
    if prefix.startswith(TLS_ALERT):
        return "it speaks TLS; set security.protocol=SSL or SASL_SSL"
    if prefix.startswith(b"HTTP"):
        return "an HTTP server answered; is it the port of --admin-listen, or of another server?"
    return f"it answered with {prefix!r}; check host and port"


async def _secure(
    stream: trio.abc.Stream, address: Address, context: ssl.SSLContext, timeout_seconds: float
) -> trio.abc.Stream:
    """Do the TLS handshake. Raises BrokerUnavailable."""
    secured = trio.SSLStream(stream, context, server_hostname=address.host)
    try:
        with trio.fail_after(timeout_seconds):
            await secured.do_handshake()
    except trio.TooSlowError as exc:
        raise BrokerUnavailable(f"no TLS handshake with {address} within {timeout_seconds:g} s") from exc
    except trio.BrokenResourceError as exc:
        cause = root_cause(exc)
        advice = "where that listener has no TLS, set security.protocol=PLAINTEXT or SASL_PLAINTEXT"
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = "does ssl.truststore.location or ssl.ca.location have its authority?"
        raise BrokerUnavailable(f"the TLS handshake with {address} failed: {why_unreachable(exc)}; {advice}") from exc
    return secured
