"""The HTTP server over streams in memory: what is answered, and what no peer can do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kafscale.errors import StorageFailed
from kafscale.server.http.loop import (
    CONNECTIONS_MAX_COUNT,
    HEAD_MAX_BYTES,
    IDLE_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    SEND_TIMEOUT_SECONDS,
    HttpExchange,
    HttpServer,
    Page,
    Route,
    text_page,
)

HELLO = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
Stream = trio.StapledStream


def hello() -> Page:
    return text_page(HTTPStatus.OK, "hello")


def page_route(path: str, make: Callable[[], Page]) -> Route:
    async def answer(exchange: HttpExchange) -> None:
        await exchange.send_page(make())

    return Route(path, answer)


class Site:
    """A server with some routes, and connections to it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.held = trio.Event()
        routes = [
            page_route("/hello", hello),
            page_route("/bug", lambda: text_page(HTTPStatus.OK, {}["nothing"])),
            page_route("/broken", self._broken),
            Route("/held", self._hold, methods=("POST",), keeps_place=True),
        ]
        self.server = HttpServer("the test server", routes)

    def _broken(self) -> Page:
        raise StorageFailed("no disk")

    async def _hold(self, exchange: HttpExchange) -> None:
        await exchange.begin("text/plain")
        await exchange.send(" and ".join(exchange.arguments("word")).encode())
        await self.held.wait()
        await exchange.end()

    def connect(self) -> Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.server.serve, theirs)
        return ours

    async def ask(self, request: bytes) -> bytes:
        return await answer_of(self.connect(), request)


async def answer_of(stream: Stream, request: bytes) -> bytes:
    """All that is answered until nothing more comes."""
    await stream.send_all(request)
    return await rest_of(stream)


async def rest_of(stream: Stream) -> bytes:
    answer = b""
    with trio.move_on_after(0.1):
        while data := await stream.receive_some():
            answer += data
    return answer


async def seconds_until_closed(stream: Stream) -> float:
    began = trio.current_time()
    while await stream.receive_some():
        pass
    return trio.current_time() - began


@asynccontextmanager
async def opened() -> AsyncIterator[Site]:
    async with trio.open_nursery() as nursery:
        yield Site(nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def site(autojump_clock: MockClock) -> AsyncIterator[Site]:
    async with opened() as made:
        yield made


async def test_requests_of_one_connection_are_answered_in_turn(autojump_clock: MockClock, site: Site) -> None:
    stream = site.connect()
    for _ in range(3):
        answer = await answer_of(stream, HELLO)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\nhello\n")
    assert (await answer_of(stream, HELLO * 2)).count(b"hello\n") == 2


async def test_a_request_that_arrives_byte_by_byte_is_answered(autojump_clock: MockClock, site: Site) -> None:
    stream = site.connect()
    for position in range(len(HELLO)):
        await stream.send_all(HELLO[position : position + 1])
    assert (await rest_of(stream)).endswith(b"hello\n")


async def test_a_body_is_thrown_away(autojump_clock: MockClock, site: Site) -> None:
    stream = site.connect()
    with_body = b"GET /hello HTTP/1.1\r\nhost: x\r\ncontent-length: 30000\r\n\r\n" + b"x" * 30000
    assert (await answer_of(stream, with_body)).endswith(b"hello\n")
    assert (await answer_of(stream, HELLO)).endswith(b"hello\n")


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"HEAD /hello", b"200", b""),
        (b"GET /hello?a=b", b"200", b"hello\n"),
        (b"GET /other", b"404", b"there are /hello, /bug, /broken and /held\n"),
        (b"POST /hello", b"405", b"GET and HEAD only\n"),
        (b"GET /held", b"405", b"POST only\n"),
        (b"HEAD /held", b"405", b""),
    ],
)
async def test_unknown_paths_are_refused(
    autojump_clock: MockClock, site: Site, request_line: bytes, status: bytes, body: bytes
) -> None:
    answer = await site.ask(request_line + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.partition(b"\r\n\r\n")[2] == body


async def test_a_streamed_response_continues_until_its_handler_ends(autojump_clock: MockClock, site: Site) -> None:
    stream = site.connect()
    begun = await answer_of(stream, b"POST /held?word=one&word=two HTTP/1.1\r\nhost: x\r\n\r\n")
    assert begun.endswith(b"b\r\none and two\r\n")
    site.held.set()
    assert await rest_of(stream) == b"0\r\n\r\n"
    assert (await answer_of(stream, HELLO)).endswith(b"hello\n")


@pytest.mark.parametrize(
    "said", [b"", b"GET /hello HT", b"POST /held HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"]
)
async def test_a_client_that_does_not_finish_its_request_is_disconnected(
    autojump_clock: MockClock, site: Site, said: bytes
) -> None:
    stream = site.connect()
    await stream.send_all(said)
    assert await seconds_until_closed(stream) == pytest.approx(REQUEST_TIMEOUT_SECONDS)


async def test_bytes_that_trickle_in_put_that_off_no_further(autojump_clock: MockClock, site: Site) -> None:
    stream = site.connect()
    began = trio.current_time()
    with suppress(trio.BrokenResourceError):
        while trio.current_time() < began + 2 * REQUEST_TIMEOUT_SECONDS:
            await stream.send_all(b"G")
            await trio.sleep(0.5)
    assert trio.current_time() - began <= REQUEST_TIMEOUT_SECONDS + 1


async def test_a_connection_between_requests_has_the_longer_idle_timeout(autojump_clock: MockClock, site: Site) -> None:
    stream = site.connect()
    await stream.send_all(HELLO)
    assert await seconds_until_closed(stream) == pytest.approx(IDLE_TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    "said",
    [
        b"no HTTP at all\r\n\r\n",
        b"GET /hello HTTP/1.1\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nhost: x\r\nname: " + b"x" * 2 * HEAD_MAX_BYTES,
    ],
    ids=["other", "no host", "long"],
)
async def test_a_malformed_request_ends_the_connection(autojump_clock: MockClock, site: Site, said: bytes) -> None:
    stream = site.connect()
    await stream.send_all(said)
    assert await seconds_until_closed(stream) == 0


async def test_a_client_that_does_not_read_its_answer_is_disconnected(autojump_clock: MockClock, site: Site) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    closed = trio.Event()

    async def serve() -> None:
        await site.server.serve(theirs)
        closed.set()

    site.nursery.start_soon(serve)
    await ours.send_all(HELLO)
    began = trio.current_time()
    await closed.wait()
    assert trio.current_time() - began == pytest.approx(SEND_TIMEOUT_SECONDS)


async def test_an_unexpected_exception_is_logged_and_closes_only_its_connection(
    autojump_clock: MockClock, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert await site.ask(b"GET /bug HTTP/1.1\r\nhost: x\r\n\r\n") == b""
    assert "closing a connection of the test server after a bug in the broker" in caplog.text
    assert "KeyError" in caplog.text
    assert (await site.ask(HELLO)).endswith(b"hello\n")


async def test_storage_failures_propagate_out_of_the_server(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(StorageFailed):
        async with opened() as site:
            await site.connect().send_all(b"GET /broken HTTP/1.1\r\nhost: x\r\n\r\n")
            await trio.sleep(1)


async def full(site: Site, first: Callable[[Stream], Awaitable[object]]) -> list[Stream]:
    """As many connections as may be; what the first one does comes before the others."""
    streams = [site.connect()]
    await first(streams[0])
    while len(streams) < CONNECTIONS_MAX_COUNT:
        streams.append(site.connect())
        await trio.testing.wait_all_tasks_blocked()  # tasks that are started together run in any order
    return streams


async def is_closed(stream: Stream) -> bool:
    await trio.testing.wait_all_tasks_blocked()
    with trio.move_on_after(0.01):
        return not await stream.receive_some()
    return False


async def test_a_connection_above_the_limit_replaces_the_oldest(autojump_clock: MockClock, site: Site) -> None:
    streams = await full(site, lambda stream: trio.testing.wait_all_tasks_blocked())
    assert (await site.ask(HELLO)).endswith(b"hello\n")
    assert await is_closed(streams[0])
    assert not await is_closed(streams[1])


async def test_a_request_makes_a_connection_the_newest(autojump_clock: MockClock, site: Site) -> None:
    streams = await full(site, lambda stream: trio.testing.wait_all_tasks_blocked())
    await answer_of(streams[0], HELLO)
    await site.ask(HELLO)
    assert not await is_closed(streams[0])
    assert await is_closed(streams[1])


async def test_a_route_that_keeps_its_place_does_not_give_way(autojump_clock: MockClock, site: Site) -> None:
    streams = await full(site, lambda stream: answer_of(stream, b"POST /held HTTP/1.1\r\nhost: x\r\n\r\n"))
    await site.ask(HELLO)
    assert await is_closed(streams[1])
    site.held.set()
    assert await rest_of(streams[0]) == b"0\r\n\r\n"
