"""The admin server: probes are answered beside connections that say nothing, and no page of a browser has it flush."""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack, suppress

import pytest
import trio

from kafscale.config import Address
from tests.devtools.processes.process import BrokerProcess
from tests.hostile.hostile import bystander, raw_connections

PROBE_MAX_SECONDS = 2.0
BUSY_PROBE_MAX_SECONDS = 10.0  # beside those who have the broker write very many pages; they had it for 30 s
HALF_OPEN_COUNT = 100  # more than there may be
PIPELINED = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 400


async def _ask(address: Address, head: str) -> bytes:
    """What is answered, up to the end of the head."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    async with stream:
        await stream.send_all(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer and (data := await stream.receive_some()):
            answer += data
        return answer


async def _probe(address: Address, most_seconds: float = PROBE_MAX_SECONDS) -> None:
    with trio.fail_after(most_seconds):
        assert (await _ask(address, "GET /healthz HTTP/1.1\nHost: probe")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "said", [b"", b"GET /healthz HT", b"POST /flush HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
async def test_probes_are_answered_beside_half_open_connections(broker: BrokerProcess, said: bytes) -> None:
    """64 of them kept /healthz from being answered for 29 s."""
    async with raw_connections(broker.admin, HALF_OPEN_COUNT) as attackers:
        for attacker in attackers:
            with trio.move_on_after(1):  # those that had to give way are reset
                try:
                    await attacker.send_all(said)
                except trio.BrokenResourceError:
                    continue
        await _probe(broker.admin)


async def test_probes_are_answered_beside_connections_that_take_no_answers(broker: BrokerProcess) -> None:
    async with raw_connections(broker.admin, HALF_OPEN_COUNT) as attackers, AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())

        async def send(attacker: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await attacker.send_all(PIPELINED)

        for attacker in attackers:
            nursery.start_soon(send, attacker)
        await trio.sleep(0.5)
        await _probe(broker.admin, BUSY_PROBE_MAX_SECONDS)
        nursery.cancel_scope.cancel()


async def test_a_half_open_connection_ends_by_itself(broker: BrokerProcess) -> None:
    """Bytes that trickle in put that off no further."""
    stream = await trio.open_tcp_stream(broker.admin.host, broker.admin.port)
    async with stream:
        with trio.fail_after(10):
            try:
                while True:
                    await stream.send_all(b"G")
                    with trio.move_on_after(0.5):
                        assert await stream.receive_some() == b""
                        break
            except trio.BrokenResourceError:
                pass


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: 127.0.0.1:{port}", 200),
        ("Host: localhost:{port}", 200),
        ("Host: [::1]:{port}", 200),
        ("Host: 127.0.0.1:{port}\nOrigin: http://127.0.0.1:{port}", 200),
        ("Host: 127.0.0.1:{port}\nOrigin: http://evil.example", 403),
        ("Host: 127.0.0.1:{port}\nOrigin: null", 403),
        ("Host: evil.example\nOrigin: http://evil.example", 403),
        ("Host: evil.example", 403),
        ("Host: evil.example:{port}", 403),
        ("Host: [::1", 403),
    ],
)
@pytest.mark.parametrize("request_line", ["POST /flush", "GET /metrics"])
async def test_foreign_host_and_origin_headers_are_refused_except_for_probes(
    broker: BrokerProcess, request_line: str, headers: str, status: int
) -> None:
    """A page in a browser could have the broker flush, by any Origin and Host, and read its metrics."""
    headers = headers.format(port=broker.admin.port)
    answer = await _ask(broker.admin, f"{request_line} HTTP/1.1\n{headers}")
    assert answer.startswith(f"HTTP/1.1 {status}".encode())
    assert (await _ask(broker.admin, f"GET /healthz HTTP/1.1\n{headers}")).startswith(b"HTTP/1.1 200")


async def test_pipelined_scrapes_hold_up_no_other_client(broker: BrokerProcess) -> None:
    """60 connections had another client wait 263 ms for a round that takes 1 ms."""
    scrape = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1_000

    async def read(attacker: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await attacker.send_all(scrape)
            while await attacker.receive_some(1 << 20):
                pass

    async with bystander(broker) as seen, raw_connections(broker.admin, 60) as attackers:
        async with trio.open_nursery() as nursery:
            for attacker in attackers:
                nursery.start_soon(read, attacker)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    median = statistics.median(seen.round_seconds)
    print(f"{len(seen.round_seconds)} rounds, a median of {1_000 * median:.1f} ms")
    assert seen.problems() == []
    assert median < 0.1
