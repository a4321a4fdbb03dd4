"""A broker that answers each request by a function of the test: for tests of clients, over any stream.

It speaks every version of the requests that it has a handler for, or those in `versions`. A handler returns None to
send no reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.config import Address
from kafscale.wire import codec, error_codes
from kafscale.wire.frames import FrameReader, RequestHeader, parse_request_header, response_frame
from kafscale.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

Handler = Callable[[Any], Any]
MAX_FRAME_BYTES = 64 << 20


@attrs.define(eq=False)
class ScriptedBroker:
    """`requests` are those that arrived, without ApiVersions; `seen` are the headers of all."""

    handlers: Mapping[type, Handler]
    versions: Mapping[type, tuple[int, int]] = attrs.field(factory=dict)
    requests: list[Any] = attrs.field(factory=list, init=False)
    seen: list[RequestHeader] = attrs.field(factory=list, init=False)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, self.serve, 0)
            yield Address("127.0.0.1", listeners[0].socket.getsockname()[1])
            nursery.cancel_scope.cancel()

    async def serve(self, stream: trio.abc.Stream) -> None:
        frames = FrameReader(MAX_FRAME_BYTES)
        try:
            while data := await stream.receive_some(65536):
                frames.receive_data(data)
                for frame in frames.next_frames():
                    if answer := b"".join(self.answer(frame)):
                        await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    def answer(self, frame: memoryview) -> list[Buffer]:
        """Return the frame that answers a frame; empty for no reply."""
        offered: list[Any] = [*self.handlers, ApiVersionsRequest]
        classes = {cls.API_KEY: cls for cls in offered}
        header = parse_request_header(frame, lambda key: classes[key].FLEXIBLE_SINCE)
        self.seen.append(header)
        cls = classes[header.api_key]
        least, most = self._range(cls)
        if cls is ApiVersionsRequest and not least <= header.api_version <= most:
            refusal = self._api_versions().evolve(error_code=error_codes.UNSUPPORTED_VERSION)
            return self._frame(header, refusal, 0)
        request: Any = codec.decode(cls, header.api_version, frame[header.body_offset :])
        if cls is ApiVersionsRequest:
            return self._frame(header, self._api_versions(), header.api_version)
        self.requests.append(request)
        response = self.handlers[cls](request)
        return [] if response is None else self._frame(header, response, header.api_version)

    def _frame(self, header: RequestHeader, response: object, version: int) -> list[Buffer]:
        is_versions = isinstance(response, ApiVersionsResponse)
        flexible = not is_versions and codec.is_flexible(type(response), version)
        return response_frame(header.correlation_id, codec.encode(response, version), flexible)

    def _range(self, cls: Any) -> tuple[int, int]:
        return self.versions.get(cls, (cls.MIN_VERSION, cls.MAX_VERSION))

    def _api_versions(self) -> ApiVersionsResponse:
        offered: list[Any] = [*self.handlers, ApiVersionsRequest]
        keys = [ApiVersion(api_key=cls.API_KEY, min_version=low, max_version=high)
                for cls in offered for low, high in [self._range(cls)]]  # fmt: skip
        return ApiVersionsResponse(api_keys=keys)
