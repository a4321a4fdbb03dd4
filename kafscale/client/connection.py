"""One connection to one broker: versions negotiated once, requests pipelined, replies matched in order.

`send` returns when the request is written, with a `Reply` to wait for; many may be under way. Whoever waits reads from
the socket for everyone, in turn: replies come in request order, so the task that has waited longest has the next one.
A request that is cancelled while it is written leaves half a frame, so it breaks the connection; a cancelled wait
does not.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Self, TypeVar

import attrs
import trio

from kafscale import __version__
from kafscale.buffers import Buffer, size_of
from kafscale.client.authenticating import authenticate
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, FrameTooLarge, KafkaError, ProtocolError
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.login.steps import SESSION_FRACTION
from kafscale.network_errors import root_cause, why_unreachable
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import FrameReader, RequestHeader, parse_response_header, request_frame
from kafscale.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

MAX_RESPONSE_BYTES = 256 << 20  # Kafka's consumer: fetch.max.bytes 50 MiB, but a single batch may be larger
RECEIVE_BYTES = 256 << 10
JOIN_BELOW_BYTES = 256 << 10  # the parts of a larger request are written one by one instead of being copied together
TLS_ALERT = b"\x15\x03"  # what a server of TLS answers to other bytes
DEFAULT_TIMEOUT_SECONDS = 30.0  # Kafka: request.timeout.ms, 30 s

R = TypeVar("R")


@attrs.frozen
class Call(Generic[R]):
    """An API at one version, and the class of its reply."""

    api_key: int
    version: int
    response_class: type[R]
    flexible: bool


@attrs.define(eq=False, repr=False)
class Reply(Generic[R]):
    """A reply that is under way. Its body is a view of the received frame, and so are records in the response."""

    connection: Connection
    call: Call[R]
    correlation_id: int
    body: memoryview | None = None

    async def wait_body(self) -> memoryview:
        """Wait for the undecoded body. Raises BrokerUnavailable, ProtocolError."""
        await self.connection.receive_until(self)
        assert self.body is not None
        return self.body

    async def wait(self) -> R:
        """Wait for the decoded response. Raises BrokerUnavailable, ProtocolError."""
        return codec.decode(self.call.response_class, self.call.version, await self.wait_body())


@attrs.define(eq=False, kw_only=True, repr=False)
class Connection:
    """A connection that has negotiated its versions; made by `open_connection` or `Connection.over`."""

    stream: trio.abc.Stream
    address: Address
    client_id: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    _versions: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    _frames: FrameReader = attrs.field(factory=lambda: FrameReader(MAX_RESPONSE_BYTES), init=False)
    _awaited: deque[Reply[Any]] = attrs.field(factory=deque, init=False)
    _sending: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _receiving: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _next_correlation_id: int = attrs.field(default=0, init=False)
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
        """Negotiate versions over a stream that is connected already. Raises BrokerUnavailable, KafkaError."""
        connection = cls(stream=stream, address=address, client_id=client_id, timeout_seconds=timeout_seconds)
        await connection._negotiate()
        return connection

    @property
    def is_broken(self) -> bool:
        """Tell whether nothing more can be sent on it."""
        return bool(self._broken)

    @property
    def is_over(self) -> bool:
        """Tell whether another one had better be used, as this one is broken or its session ends soon."""
        return self.is_broken or trio.current_time() >= self._session_until

    def session_lasts(self, seconds: float | None) -> None:
        """The broker ends the session after this long."""
        if seconds is not None:
            self._session_until = trio.current_time() + SESSION_FRACTION * seconds

    def call(self, request_class: type, response_class: type[R], *, version: int | None = None) -> Call[R]:
        """The call at a given version, or at the newest that both sides have and that names topics.

        Raises:
            KafkaError: UNSUPPORTED_VERSION, there is none.
        """
        key: int = request_class.API_KEY  # type: ignore[attr-defined]
        if version is None:
            least, most = self._versions.get(key, (0, -1))
            version = min(most, _newest_version(request_class))
            if version < max(least, request_class.MIN_VERSION):  # type: ignore[attr-defined]
                api = request_class.__name__.removesuffix("Request")
                message = f"the broker at {self.address} has no version of {api} that this client speaks"
                raise KafkaError(error_codes.UNSUPPORTED_VERSION, message)
        return Call(key, version, response_class, codec.is_flexible(request_class, version))

    async def request(self, message: object, response_class: type[R]) -> R:
        """Send one request and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""
        return await (await self.send(message, response_class)).wait()

    async def send(self, message: object, response_class: type[R], *, version: int | None = None) -> Reply[R]:
        """Write one request, in the version that `call` takes. Raises BrokerUnavailable, KafkaError."""
        call = self.call(type(message), response_class, version=version)
        return await self.send_encoded(call, codec.encode(message, call.version))

    async def send_encoded(self, call: Call[R], body: Sequence[Buffer], *, has_reply: bool = True) -> Reply[R]:
        """Write one request whose body is encoded already; `has_reply` is false for Produce with acks=0."""
        return (await self.send_many(call, [body], has_reply=has_reply))[0]

    async def send_many(
        self, call: Call[R], bodies: Sequence[Sequence[Buffer]], *, has_reply: bool = True
    ) -> list[Reply[R]]:
        """Write several requests whose bodies are encoded already, small ones in one packet, for a load generator.

        Raises BrokerUnavailable.
        """
        async with self._sending:
            self._check_usable()
            parts: list[Buffer] = []
            replies = []
            for body in bodies:
                reply = Reply(self, call, self._next_correlation_id)
                self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
                header = RequestHeader(call.api_key, call.version, reply.correlation_id, self.client_id)
                parts += request_frame(header, body, flexible_header=call.flexible)
                replies.append(reply)
            if has_reply:
                self._awaited += replies
            await self._write(parts)
        return replies

    async def receive_until(self, reply: Reply[Any]) -> None:
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
        """Close it; what still waits for a reply gets BrokerUnavailable."""
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
        self._frames.receive_data(data)
        for frame in self._frames.next_frames():
            self._accept(frame)

    def _accept(self, frame: memoryview) -> None:
        if not self._awaited:
            self._break("sent an answer to nothing")
            raise ProtocolError(f"the broker at {self.address} sent an answer to nothing")
        reply = self._awaited.popleft()
        # KIP-511: the reply to ApiVersions never has a flexible header, so that anybody can read it.
        flexible_header = reply.call.flexible and reply.call.api_key != ApiVersionsRequest.API_KEY
        correlation_id, body_offset = parse_response_header(frame, flexible_header=flexible_header)
        if correlation_id != reply.correlation_id:
            self._break("answered out of order")
            raise ProtocolError(f"the broker at {self.address} answered {correlation_id} for {reply.correlation_id}")
        reply.body = frame[body_offset:]

    def _check_usable(self) -> None:
        if self._broken:
            raise BrokerUnavailable(f"the broker at {self.address} {self._broken}")

    def _break(self, reason: str) -> BrokerUnavailable:
        self._broken = self._broken or reason
        return BrokerUnavailable(f"the broker at {self.address} {self._broken}")

    async def _negotiate(self) -> None:
        """Ask for the versions as the newest client would; an older broker answers in version 0 and is asked again."""
        newest = ApiVersionsRequest.MAX_VERSION
        response = await self._ask_versions(newest)
        if response.error_code == error_codes.UNSUPPORTED_VERSION:
            theirs = [each.max_version for each in response.api_keys if each.api_key == ApiVersionsRequest.API_KEY]
            response = await self._ask_versions(min(newest, *theirs) if theirs else 0)
        if response.error_code != error_codes.NONE:
            message = f"ApiVersions of {self.address}: {error_codes.name(response.error_code)}"
            raise KafkaError(response.error_code, message)
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        message = ApiVersionsRequest(client_software_name="kafscale", client_software_version=__version__)
        call = self.call(ApiVersionsRequest, ApiVersionsResponse, version=version)
        body = await (await self.send_encoded(call, codec.encode(message, version))).wait_body()
        refused = int.from_bytes(body[:2], "big") == error_codes.UNSUPPORTED_VERSION
        return codec.decode(ApiVersionsResponse, 0 if refused else version, body)


def _newest_version(request_class: type) -> int:
    """The newest version in which a request says what its attributes say without ids of topics."""
    newest: int = request_class.MAX_VERSION  # type: ignore[attr-defined]
    return getattr(request_class, "NEWEST_WITH_NAMES", newest)


@asynccontextmanager
async def open_connection(
    address: Address, client_id: str = "kafscale", *, security: ClientSecurity = PLAINTEXT
) -> AsyncIterator[Connection]:
    """Connect to a broker, and close the connection at the end. Raises BrokerUnavailable, KafkaError."""
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
            connection.session_lasts(await authenticate(connection, security.sasl))
        return connection
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _negotiated(
    stream: trio.abc.Stream, address: Address, client_id: str, timeout_seconds: float, *, is_secured: bool
) -> Connection:
    """Negotiate versions, which is where a listener that wants TLS hangs up. Raises BrokerUnavailable, KafkaError."""
    try:
        return await Connection.over(stream, address, client_id, timeout_seconds)
    except FrameTooLarge as exc:
        raise BrokerUnavailable(f"{address} is no Kafka listener: {_spoken_there(exc.prefix)}") from exc
    except BrokerUnavailable as exc:
        if is_secured:
            raise
        raise BrokerUnavailable(
            f"{exc}; is that a Kafka listener? Where it wants TLS, set security.protocol=SSL or SASL_SSL"
        ) from exc


def _spoken_there(prefix: bytes) -> str:
    """Say what it is by the first bytes of its answer, and what to do."""
    if prefix.startswith(TLS_ALERT):
        return "it speaks TLS; set security.protocol=SSL or SASL_SSL"
    if prefix.startswith(b"HTTP"):
        return "an HTTP server answered; is it the port of --admin-listen, or of another server?"
    return f"it answered with {prefix!r}; check host and port"


async def _secure(
    stream: trio.abc.Stream, address: Address, context: ssl.SSLContext, timeout_seconds: float
) -> trio.abc.Stream:
    """Do the handshake of TLS, in which the broker shows that it is who it should be. Raises BrokerUnavailable."""
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
