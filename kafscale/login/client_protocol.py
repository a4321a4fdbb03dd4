"""The client's side of a connection, sans-IO: requests to bytes, and bytes to replies in order.

    protocol = ClientProtocol(peer="127.0.0.1:9092", client_id="kafscale")
    buffers = protocol.send(reply := PendingReply(call), body)      send these
    protocol.receive_data(data)                                     until reply.body is there

After an exception the connection can't be used any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar

import attrs

from kafscale import __version__
from kafscale.buffers import Buffer
from kafscale.errors import KafkaError, ProtocolError
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import FrameReader, RequestHeader, parse_response_header, request_frame
from kafscale.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from kafscale.wire.schema import Message

RESPONSE_MAX_BYTES = 256 << 20  # Kafka's consumer: fetch.max.bytes 50 MiB, but a single batch may be larger

R = TypeVar("R")


@attrs.frozen
class ApiCall(Generic[R]):
    api_key: int
    version: int
    response_class: type[R]
    flexible: bool

    @classmethod
    def of(cls, request_class: type[Message], response_class: type[R], version: int) -> ApiCall[R]:
        return cls(request_class.API_KEY, version, response_class, codec.is_flexible(request_class, version))


@attrs.define(eq=False, repr=False)
class PendingReply(Generic[R]):
    """A reply under way. Its body, and records in the response, are views of the received frame."""

    call: ApiCall[R]
    correlation_id: int = attrs.field(default=-1, init=False)
    body: memoryview | None = attrs.field(default=None, init=False)

    def decode(self) -> R:
        """Return the response of the received body. Raises ProtocolError."""
        assert self.body is not None
        return codec.decode(self.call.response_class, self.call.version, self.body)


@attrs.define(eq=False, kw_only=True, repr=False)
class ClientProtocol:
    """The requests under way on one connection. `peer` names the broker in errors."""

    peer: str
    client_id: str
    _versions: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)  # of the broker, by API key
    _frames: FrameReader = attrs.field(factory=lambda: FrameReader(RESPONSE_MAX_BYTES), init=False)
    _awaited: deque[PendingReply[Any]] = attrs.field(factory=deque, init=False)
    _next_correlation_id: int = attrs.field(default=0, init=False)

    def call(self, request_class: type[Message], response_class: type[R], *, version: int | None = None) -> ApiCall[R]:
        """Return the call, by default at the newest common version that names topics. Raises KafkaError without one."""
        if version is None:
            least, most = self._versions.get(request_class.API_KEY, (0, -1))
            version = min(most, getattr(request_class, "NEWEST_WITH_NAMES", request_class.MAX_VERSION))
            if version < max(least, request_class.MIN_VERSION):
                api = request_class.__name__.removesuffix("Request")
                message = f"the broker at {self.peer} has no version of {api} that this client speaks"
                raise KafkaError(error_codes.UNSUPPORTED_VERSION, message)
        return ApiCall.of(request_class, response_class, version)

    def send(self, reply: PendingReply[Any], body: Sequence[Buffer], *, has_reply: bool = True) -> list[Buffer]:
        """Return the buffers of a request; a Produce with acks=0 has no reply."""
        call = reply.call
        reply.correlation_id = self._next_correlation_id
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        if has_reply:
            self._awaited.append(reply)
        header = RequestHeader(call.api_key, call.version, reply.correlation_id, self.client_id)
        return request_frame(header, body, flexible_header=call.flexible)

    def receive_data(self, data: Buffer) -> None:
        """Take received bytes, and set the bodies of complete replies. Raises ProtocolError."""
        self._frames.receive_data(data)
        for frame in self._frames.next_frames():
            self._accept(frame)

    def _accept(self, frame: memoryview) -> None:
        if not self._awaited:
            raise ProtocolError(f"the broker at {self.peer} sent an answer to nothing")
        reply = self._awaited.popleft()
        # KIP-511: the reply to ApiVersions never has a flexible header, so that any client can read it.
        flexible_header = reply.call.flexible and reply.call.api_key != ApiVersionsRequest.API_KEY
        correlation_id, body_offset = parse_response_header(frame, flexible_header=flexible_header)
        if correlation_id != reply.correlation_id:
            raise ProtocolError(f"the broker at {self.peer} answered {correlation_id} for {reply.correlation_id}")
        reply.body = frame[body_offset:]

    def negotiate(self) -> Generator[tuple[ApiCall[ApiVersionsResponse], Sequence[Buffer]], memoryview, None]:
        """Yield ApiVersions requests, the newest first, and be sent their replies. Raises KafkaError, ProtocolError."""
        version = ApiVersionsRequest.MAX_VERSION
        response = yield from self._ask_versions(version)
        if response.error_code == error_codes.UNSUPPORTED_VERSION:
            theirs = [api.max_version for api in response.api_keys if api.api_key == ApiVersionsRequest.API_KEY]
            response = yield from self._ask_versions(min(version, *theirs) if theirs else 0)
        if response.error_code != error_codes.NONE:
            message = f"ApiVersions of {self.peer}: {error_codes.name(response.error_code)}"
            raise KafkaError(response.error_code, message)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def _ask_versions(
        self, version: int
    ) -> Generator[tuple[ApiCall[ApiVersionsResponse], Sequence[Buffer]], memoryview, ApiVersionsResponse]:
        message = ApiVersionsRequest(client_software_name="kafscale", client_software_version=__version__)
        body = yield ApiCall.of(ApiVersionsRequest, ApiVersionsResponse, version), codec.encode(message, version)
        refused = int.from_bytes(body[:2], "big") == error_codes.UNSUPPORTED_VERSION
        return codec.decode(ApiVersionsResponse, 0 if refused else version, body)
