"""The stand-in S3 without a network, for tests with an autojump clock."""

from __future__ import annotations

from collections import Counter, deque

import attrs
import httpx
import trio

from kafscale.http.connection import BufferStream
from tests.devtools.fakes.s3_server import CREDENTIALS, Drop, ErrorReply, Fault, Hang
from tests.devtools.fakes.s3_service import S3Answer, S3Call, S3Service


@attrs.define(eq=False, kw_only=True, repr=False)
class ServiceTransport(httpx.AsyncBaseTransport):
    """An httpx transport to an `S3Service` without a network, for tests with an autojump clock."""

    service: S3Service = attrs.field(
        factory=lambda: S3Service(credentials={CREDENTIALS.access_key_id: CREDENTIALS}, least_part_bytes=0)
    )
    latency_seconds: float = 0.02
    requests: Counter[str] = attrs.field(factory=Counter, init=False)
    in_flight: Counter[str] = attrs.field(factory=Counter, init=False)
    max_in_flight: Counter[str] = attrs.field(factory=Counter, init=False)
    _faults: deque[tuple[str, Fault]] = attrs.field(factory=deque, init=False)

    def inject(self, fault: Fault, *, operation: str, count: int = 1) -> None:
        """Let the next `count` calls of an operation (by S3's name) meet the fault."""
        self._faults.extend([(operation, fault)] * count)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Perform the request as the service does. Raises httpx.ReadError for a dropped connection."""
        assert isinstance(request.stream, BufferStream)
        call = S3Call.of(
            request.method,
            request.url.raw_path.decode(),
            {name.lower(): value for name, value in request.headers.items()},
            body=b"".join(request.stream.parts),
            domain=self.service.domain,
            base_path=self.service.base_path,
        )
        self.requests[call.operation] += 1
        self.in_flight[call.operation] += 1
        self.max_in_flight[call.operation] = max(self.max_in_flight[call.operation], self.in_flight[call.operation])
        try:
            await trio.sleep(self.latency_seconds)
            answer = await self._answer(call)
        finally:
            self.in_flight[call.operation] -= 1
        return httpx.Response(answer.status, headers=dict(answer.headers), content=bytes(answer.body))

    async def _answer(self, call: S3Call) -> S3Answer:
        fault = next((fault for operation, fault in self._faults if operation == call.operation), None)
        if fault is None:
            return self.service.handle(call)
        self._faults.remove((call.operation, fault))
        if isinstance(fault, ErrorReply):
            return S3Answer.error(fault.status, fault.code, "a fault was injected")
        assert isinstance(fault, Drop | Hang), fault
        if fault.after_effect:
            self.service.handle(call)
        if isinstance(fault, Hang):
            await trio.sleep_forever()
        raise httpx.ReadError("the connection was dropped")
