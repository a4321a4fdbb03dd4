"""The proxy: what passes, what does not, and what either end sees of it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kafscale.config import Address
from kafscale.testing.tcp_proxy import TcpProxy, Way


async def echo(stream: trio.SocketStream) -> None:
    """Send back what comes in, and end when that ends."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


@asynccontextmanager
async def proxied_echo() -> AsyncIterator[TcpProxy]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, echo, 0)
        proxy = TcpProxy(Address("127.0.0.1", listeners[0].socket.getsockname()[1]))
        await nursery.start(proxy.run)
        with trio.fail_after(20):
            yield proxy
        nursery.cancel_scope.cancel()


async def connected(proxy: TcpProxy) -> trio.SocketStream:
    """A client of which the server has heard."""
    stream = await trio.open_tcp_stream("127.0.0.1", proxy.port)
    await stream.send_all(b"hello")
    assert await receive_exactly(stream, 5) == b"hello"
    return stream


async def receive_exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await stream.receive_some()
        assert part, "the connection ended"
        data += part
    return data


async def test_passes_everything_in_order_and_then_the_end() -> None:
    sent = bytes(range(256)) * 4096
    async with proxied_echo() as proxy, await connected(proxy) as client, trio.open_nursery() as nursery:
        received = bytearray()

        async def send() -> None:
            await client.send_all(sent)
            await client.send_eof()

        nursery.start_soon(send)
        async for data in client:
            received += data
        assert received == sent


async def test_a_reset_breaks_every_connection_and_not_the_next_one() -> None:
    async with proxied_echo() as proxy, await connected(proxy) as first, await connected(proxy) as second:
        assert proxy.reset() == 2
        for client in (first, second):
            with pytest.raises(trio.BrokenResourceError):
                await client.receive_some()
        async with await connected(proxy):
            assert proxy.accepted_count == 3


async def test_refuses_new_connections_only() -> None:
    async with proxied_echo() as proxy, await connected(proxy) as old:
        proxy.refusing = True
        async with await trio.open_tcp_stream("127.0.0.1", proxy.port) as refused:
            with pytest.raises(trio.BrokenResourceError):
                await receive_exactly(refused, 1)
        await old.send_all(b"x")
        assert await receive_exactly(old, 1) == b"x"


async def test_a_server_that_is_down_resets_its_clients() -> None:
    async with proxied_echo() as proxy:
        with trio.socket.socket() as unused:  # bound and not listening: nobody else can take the port
            await unused.bind(("127.0.0.1", 0))
            proxy.upstream = Address("127.0.0.1", unused.getsockname()[1])
            async with await trio.open_tcp_stream("127.0.0.1", proxy.port) as client:
                with pytest.raises(trio.BrokenResourceError):
                    await receive_exactly(client, 1)


async def test_frozen_bytes_pass_after_the_thaw() -> None:
    async with proxied_echo() as proxy, await connected(proxy) as client:
        proxy.freeze()
        await client.send_all(b"late")
        with trio.move_on_after(0.05) as silence:
            await client.receive_some()
        assert silence.cancelled_caught
        proxy.thaw()
        assert await receive_exactly(client, 4) == b"late"


@pytest.mark.parametrize("way", Way)
async def test_one_way_is_frozen_and_the_other_is_not(way: Way) -> None:
    heard: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"hello")
        heard.append(await receive_exactly(stream, 4))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        proxy = TcpProxy(Address("127.0.0.1", listeners[0].socket.getsockname()[1]))
        await nursery.start(proxy.run)
        proxy.freeze(way)
        async with await trio.open_tcp_stream("127.0.0.1", proxy.port) as client:
            await client.send_all(b"ping")
            said = b""
            with trio.move_on_after(0.1):
                said = await receive_exactly(client, 5)
            assert (said, heard) == ((b"hello", []) if way is Way.TO_SERVER else (b"", [b"ping"]))
        nursery.cancel_scope.cancel()


async def test_a_half_open_connection_ends_for_the_server_alone() -> None:
    async with proxied_echo() as proxy, await connected(proxy) as client:
        assert proxy.half_open() == 1
        assert proxy.half_open() == 0
        await client.send_all(b"anybody?")
        with trio.move_on_after(0.05) as silence:
            await client.receive_some()
        assert silence.cancelled_caught
        assert proxy.connection_count == 1
        assert proxy.reset() == 1
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()


async def test_a_delay_is_added_each_way_and_does_not_limit_the_rate() -> None:
    async with proxied_echo() as proxy, await connected(proxy) as client:
        proxy.delay_seconds = 0.05
        began = trio.current_time()
        await client.send_all(b"x" * (1 << 20))  # 64 chunks: one after the other they would take 6.4 s
        await receive_exactly(client, 1 << 20)
        assert 0.1 <= trio.current_time() - began < 3.0


async def test_bandwidth_is_limited_until_the_limit_is_lifted() -> None:
    async with proxied_echo() as proxy, await connected(proxy) as client:
        proxy.set_bandwidth(200_000)
        began = trio.current_time()
        await client.send_all(b"x" * 20_000)
        await receive_exactly(client, 20_000)
        assert trio.current_time() - began >= 0.1
        proxy.set_bandwidth(math.inf)
        await client.send_all(b"x" * 1_000_000)  # 5 s at the limit
        with trio.fail_after(4):
            await receive_exactly(client, 1_000_000)
