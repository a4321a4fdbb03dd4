import contextlib
import os
import ssl
from functools import partial

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.http.client import TrioTransport
from kafscale.http.connection import BufferStream
from kafscale.testing.certificates import make_authority

SECONDS = {"connect": 5.0, "read": 5.0, "write": 5.0, "pool": 5.0}


@pytest.fixture
def patient_clock():
    """Time passes when nothing has happened for 50 ms: sockets, unlike memory, deliver a little later."""
    return MockClock(autojump_threshold=0.05)


class Server:
    """A server that plays a script: one handler per connection, given a `Peer`."""

    def __init__(self, script, ssl_context=None):
        self.script = script
        self.ssl_context = ssl_context
        self.connection_count = 0
        self.open_count = 0

    async def serve(self, tcp):
        stream = tcp
        if self.ssl_context is not None:
            stream = trio.SSLStream(tcp, self.ssl_context, server_side=True, https_compatible=True)
        self.connection_count += 1
        self.open_count += 1
        try:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self.script(Peer(stream, self.connection_count))
        finally:
            self.open_count -= 1
            await trio.aclose_forcefully(stream)


class Peer:
    def __init__(self, stream, number):
        self.stream = stream
        self.number = number
        self.buffer = bytearray()

    async def request(self):
        """The next request's head and body; None once the client has closed."""
        while b"\r\n\r\n" not in self.buffer:
            data = await self.stream.receive_some()
            if not data:
                return None
            self.buffer += data
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        self.buffer = bytearray(rest)
        while len(self.buffer) < length:
            data = await self.stream.receive_some()
            if not data:
                return None
            self.buffer += data
        body = bytes(self.buffer[:length])
        del self.buffer[:length]
        return head, body

    async def answer(self, body=b"ok", head=b"HTTP/1.1 200 OK"):
        await self.stream.send_all(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def echo(peer):
    """Answers each request with its body."""
    while (request := await peer.request()) is not None:
        await peer.answer(request[1])


@contextlib.asynccontextmanager
async def serving(script, *, tls=False, tmp_path=None, **options):
    """A server that plays the script, and a transport and the URL for it."""
    certificate = make_authority(tmp_path).issue("server") if tls else None
    server = Server(script, certificate.server_context() if tls else None)
    if tls:
        options["ssl_context"] = ssl.create_default_context(cafile=certificate.certificate_file)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/path?query"
        async with TrioTransport(**options) as transport:
            yield server, transport, url
        nursery.cancel_scope.cancel()


def make_request(url, *parts, method="GET", timeout=SECONDS, **extensions):
    length = sum(map(len, parts))
    headers = {"host": "server"} | ({"content-length": str(length)} if parts else {})
    return httpx.Request(
        method, url, headers=headers, stream=BufferStream(parts), extensions={"timeout": timeout, **extensions}
    )


async def send(transport, url, *parts, **options):
    response = await transport.handle_async_request(make_request(url, *parts, **options))
    return await response.aread()


async def test_requests_in_turn_share_one_connection():
    async with serving(echo) as (server, transport, url):
        for number in range(5):
            assert await send(transport, url, b"number ", b"%d" % number) == b"number %d" % number
        statistics = transport.statistics()
        assert server.connection_count == statistics.opened_count == statistics.idle_count == 1
        assert statistics.reused_count == 4
        assert statistics.in_use_count == statistics.waiting_count == 0


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_large_body_goes_and_comes_whole(tls, whole, tmp_path):
    data = os.urandom(3_000_001)
    parts = [data[:1], b"", bytearray(data[1:700_000]), memoryview(data)[700_000:]]
    async with serving(echo, tls=tls, tmp_path=tmp_path) as (_, transport, url):
        for _ in range(2):
            request = make_request(url, *parts, method="PUT", whole_body=whole)
            response = await transport.handle_async_request(request)
            got = [piece async for piece in response.stream]
            assert b"".join(got) == data
            assert (len(got) == 1) is whole
            assert all(len(piece) <= 65536 for piece in got) is not whole
        assert transport.statistics().opened_count == 1


async def test_httpx_clients_work_over_the_transport():
    async with serving(echo) as (_, transport, url):
        async with httpx.AsyncClient(transport=transport) as client:
            response = await client.post(url, content=b"hello")
            assert (response.status_code, response.content) == (200, b"hello")


async def test_a_body_that_could_not_be_sent_twice_is_refused():
    async def generate():
        yield b"once"

    async with serving(echo) as (_, transport, url):
        with pytest.raises(TypeError, match="sent twice"):
            await transport.handle_async_request(httpx.Request("PUT", url, content=generate()))
        wrong = httpx.Request("PUT", url, headers={"host": "h", "content-length": "3"}, stream=BufferStream([b"four"]))
        with pytest.raises(httpx.LocalProtocolError, match="Content-Length"):
            await transport.handle_async_request(wrong)
        assert transport.statistics().in_use_count == 0
        assert await send(transport, url) == b""


# --- the pool


async def test_the_warmest_connection_is_used_and_closed_ones_are_dropped():
    streams = {}
    used = []

    async def script(peer):
        streams[peer.number] = peer.stream
        while await peer.request() is not None:
            used.append(peer.number)
            await peer.answer()

    async with serving(script) as (server, transport, url):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(send, transport, url)
        assert transport.statistics().idle_count == 8
        used.clear()
        for _ in range(3):
            await send(transport, url)
        assert len(set(used)) == 1
        for number in streams.keys() - {used[-1]}:
            await trio.aclose_forcefully(streams[number])
        await wait_all_tasks_blocked(0.01)
        for _ in range(7):  # each return looks at the oldest
            await send(transport, url)
        assert transport.statistics().idle_count == server.open_count == 1
        assert transport.statistics().opened_count == 8


async def test_no_more_connections_than_allowed_and_waiters_are_served_in_order():
    go = trio.Event()
    order = []

    async def script(peer):
        while (request := await peer.request()) is not None:
            order.append(int(request[1]))
            await go.wait()
            await peer.answer()

    async with serving(script, max_connections=1) as (server, transport, url):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(partial(send, transport, url, b"%d" % number, method="PUT"))
                await wait_all_tasks_blocked(0.01)
            statistics = transport.statistics()
            assert (statistics.in_use_count, statistics.waiting_count) == (1, 5)
            go.set()
        assert order == list(range(6))
        assert server.connection_count == 1


async def test_a_request_without_reply_closes_all_idle_connections(monkeypatch):
    """After an outage each of them was tried, and hung, before a new one was opened."""
    monkeypatch.setattr("kafscale.http.client.DEAD_SECONDS", 0.0)
    is_dead = False

    async def script(peer):
        while await peer.request() is not None and not is_dead:
            await peer.answer()
        await trio.sleep_forever()

    async with serving(script) as (_, transport, url):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(send, transport, url)
        assert transport.statistics().idle_count == 8
        is_dead = True
        with trio.move_on_after(0.05):
            await send(transport, url)
        assert transport.statistics().idle_count == 0
        is_dead = False
        await send(transport, url)
        assert transport.statistics().opened_count == 9


async def test_closing_the_transport_closes_connections_as_soon_as_they_are_idle():
    go = trio.Event()

    async def script(peer):
        while (request := await peer.request()) is not None:
            if request[1] == b"wait":
                await go.wait()
            await peer.answer()

    async with serving(script) as (server, transport, url):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(send, transport, url, b"wait", method="PUT"))
            await wait_all_tasks_blocked(0.01)
            await send(transport, url)
            assert server.open_count == 2
            await transport.aclose()
            await wait_all_tasks_blocked(0.01)
            assert server.open_count == 1
            go.set()
        await wait_all_tasks_blocked(0.01)
        assert server.open_count == 0
        assert transport.statistics().idle_count == 0


async def test_a_response_that_is_left_unread_gives_up_its_connection():
    async def script(peer):
        while await peer.request() is not None:
            await peer.answer(b"x" * 1_000_000)

    async with serving(script, max_connections=1) as (server, transport, url):
        response = await transport.handle_async_request(make_request(url))
        async for _ in response.stream:
            break
        await response.aclose()
        assert transport.statistics().idle_count == transport.statistics().in_use_count == 0
        assert len(await send(transport, url)) == 1_000_000
        assert server.connection_count == 2


# --- connections that the server closes


async def test_an_idle_connection_closed_by_the_server_is_not_reused():
    heads = []

    async def script(peer):
        heads.append(await peer.request())
        await peer.answer()

    async with serving(script) as (server, transport, url):
        for _ in range(3):
            assert await send(transport, url, b"x", method="PUT", idempotent=False) == b"ok"
            await wait_all_tasks_blocked(0.01)
        assert server.connection_count == len(heads) == 3
        assert transport.statistics().reused_count == 0


async def drop_second(peer):
    """Closes the first connection when its second request has come, and answers everything else."""
    while await peer.request() is not None:
        await peer.answer()
        if peer.number == 1:
            await peer.request()
            return


async def test_a_request_that_met_a_closing_connection_is_sent_once_more():
    async with serving(drop_second) as (server, transport, url):
        assert await send(transport, url) == b"ok"
        assert await send(transport, url) == b"ok"
        assert server.connection_count == transport.statistics().opened_count == 2
        assert transport.statistics().reused_count == 1


@pytest.mark.parametrize("options", [{"method": "POST"}, {"method": "PUT", "idempotent": False}])
async def test_a_non_idempotent_request_is_not_retried_after_a_lost_reply(options):
    async with serving(drop_second) as (server, transport, url):
        await send(transport, url)
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await send(transport, url, b"body", **options)
        assert server.connection_count == 1
        assert transport.statistics().in_use_count == transport.statistics().idle_count == 0


async def test_a_partly_sent_request_is_retried_even_if_it_is_not_idempotent():
    async def script(peer):
        if peer.number > 1:
            return await echo(peer)
        await peer.request()
        await peer.answer()
        await peer.stream.receive_some(10)
        return None  # closes with most of the large body unread, which resets the connection

    async with serving(script) as (server, transport, url):
        await send(transport, url)
        data = os.urandom(20_000_000)
        assert await send(transport, url, data, method="PUT", idempotent=False, whole_body=True) == data
        assert server.connection_count == 2


async def test_a_new_connection_that_is_dropped_is_an_error():
    async def script(peer):
        await peer.request()

    async with serving(script) as (server, transport, url):
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await send(transport, url)
        assert server.connection_count == 1


async def test_the_answer_of_a_server_that_refuses_a_body_unread_is_heard():
    async def script(peer):
        await peer.stream.receive_some(10)
        await peer.answer(b"too large", b"HTTP/1.1 413 Too Large")
        await peer.stream.send_eof()
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(20):  # reads on for a while, as servers do, lest the reset overtake the answer
                await peer.stream.receive_some(65536)

    async with serving(script) as (server, transport, url):
        try:
            response = await transport.handle_async_request(make_request(url, os.urandom(30_000_000), method="PUT"))
        except httpx.WriteError:
            pass  # TCP may throw the answer away with the reset; then it is an error like another
        else:
            assert response.status_code == 413
            await response.aclose()
        assert transport.statistics().in_use_count == transport.statistics().idle_count == 0
        assert server.connection_count == 1


# --- replies of all kinds

REPLIES = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", b"ok", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
]


@pytest.mark.parametrize(("reply", "body", "keeps_alive"), REPLIES)
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_reply_in_pieces_of_any_size_is_read(reply, body, keeps_alive, step):
    async def script(peer):
        while await peer.request() is not None:
            for start in range(0, len(reply), step):
                await peer.stream.send_all(reply[start : start + step])

    async with serving(script) as (_, transport, url):
        for _ in range(2):
            assert await send(transport, url) == body
            await wait_all_tasks_blocked(0.001)
        assert transport.statistics().opened_count == (1 if keeps_alive else 2)


async def test_a_body_that_ends_with_the_connection():
    async def script(peer):
        await peer.request()
        await peer.stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with serving(script) as (_, transport, url):
        assert await send(transport, url) == b"all of it"
        assert transport.statistics().idle_count == 0


async def test_a_head_response_has_no_body_despite_its_content_length():
    async def script(peer):
        while await peer.request() is not None:
            await peer.stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")

    async with serving(script) as (_, transport, url):
        for _ in range(2):
            response = await transport.handle_async_request(make_request(url, method="HEAD"))
            assert response.headers["content-length"] == "1000"
            assert await response.aread() == b""
        assert transport.statistics().opened_count == 1


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nonly this",
        b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"",
    ],
)
async def test_a_reply_that_is_damaged_or_cut_off_is_an_error(reply, whole):
    async def script(peer):
        await peer.request()
        await peer.stream.send_all(reply)

    async with serving(script) as (_, transport, url):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await send(transport, url, whole_body=whole)
        assert transport.statistics().in_use_count == transport.statistics().idle_count == 0


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n and more",
    ],
)
async def test_an_unrequested_reply_is_not_taken_for_the_next_one(reply):
    async def script(peer):
        while await peer.request() is not None:
            await peer.stream.send_all(reply)

    async with serving(script) as (server, transport, url):
        assert await send(transport, url) == b"ok"
        assert await send(transport, url) == b"ok"
        assert server.connection_count == 2


# --- timeouts


async def silence(peer):
    await trio.sleep_forever()


@pytest.mark.parametrize("stop_after", [0, 1])
async def test_reading_times_out_in_head_and_body(stop_after, patient_clock):
    async def script(peer):
        await peer.request()
        if stop_after:
            await peer.stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
        await trio.sleep_forever()

    async with serving(script) as (_, transport, url):
        with pytest.raises(httpx.ReadTimeout):
            await send(transport, url, whole_body=True)
        assert transport.statistics().in_use_count == 0
        assert trio.current_time() == pytest.approx(5, abs=1)


async def test_a_slow_reply_that_keeps_arriving_does_not_time_out(patient_clock):
    async def script(peer):
        await peer.request()
        for piece in (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 3\r\n\r\n", b"a", b"b", b"c"):
            await trio.sleep(4)
            await peer.stream.send_all(piece)

    async with serving(script) as (_, transport, url):
        assert await send(transport, url, whole_body=True) == b"abc"
        assert trio.current_time() >= 20


async def test_writing_times_out(patient_clock):
    async with serving(silence) as (_, transport, url):
        with pytest.raises(httpx.WriteTimeout):
            await send(transport, url, bytes(50_000_000), method="PUT")
        assert transport.statistics().in_use_count == 0


async def test_connecting_times_out_in_the_handshake(patient_clock):
    async with serving(silence) as (_, transport, url):
        with pytest.raises(httpx.ConnectTimeout):
            await send(transport, url.replace("http:", "https:"))
        assert transport.statistics().in_use_count == 0


async def test_waiting_for_a_connection_times_out(patient_clock):
    async with serving(silence, max_connections=1) as (_, transport, url):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(send, transport, url, timeout={}))
            await wait_all_tasks_blocked(0.01)
            with pytest.raises(httpx.PoolTimeout):
                await send(transport, url)
            nursery.cancel_scope.cancel()
        assert transport.statistics().in_use_count == transport.statistics().waiting_count == 0


# --- cancellation


class CancelAtStep(trio.abc.Instrument):
    """Cancels the scope as the task begins its n-th step: the cancel lands at the next checkpoint, wherever that is."""

    def __init__(self, task, scope, step):
        self.task, self.scope, self.steps_left = task, scope, step

    def before_task_step(self, task):
        if task is self.task:
            self.steps_left -= 1
            if self.steps_left == 0:
                self.scope.cancel()


async def cancel_at_step(step, work):
    """Whether `work` was cancelled, rather than finished before its n-th step."""
    with trio.CancelScope() as scope:
        instrument = CancelAtStep(trio.lowlevel.current_task(), scope, step)
        trio.lowlevel.add_instrument(instrument)
        try:
            await work()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("warm", [False, True])
async def test_a_cancel_anywhere_frees_the_slot_and_closes_the_connection(tls, warm, tmp_path):
    data = os.urandom(400_000)  # two pieces to send, and more than one to receive
    async with serving(echo, tls=tls, tmp_path=tmp_path, max_connections=1) as (server, transport, url):

        async def work():
            return await send(transport, url, data, method="PUT")

        step, is_cancelled = 0, True
        while is_cancelled:
            step += 1
            if warm:
                await send(transport, url)
            elif transport.statistics().idle_count:
                await transport.aclose()
                transport = TrioTransport(max_connections=1, ssl_context=transport._ssl_context)
            is_cancelled = await cancel_at_step(step, work)
            statistics = transport.statistics()
            assert statistics.in_use_count == statistics.waiting_count == 0
            await wait_all_tasks_blocked(0.001)
            assert server.open_count == statistics.idle_count
        assert step > 10
        assert await work() == data
        await transport.aclose()


async def test_a_cancel_while_waiting_for_a_connection_leaves_the_place_in_the_line():
    async with serving(echo, max_connections=1) as (_, transport, url):
        response = await transport.handle_async_request(make_request(url, b"body"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, transport, url)
            await wait_all_tasks_blocked(0.01)
            assert transport.statistics().waiting_count == 1
            nursery.cancel_scope.cancel()
        assert transport.statistics().waiting_count == 0
        assert await response.aread() == b"body"
        assert await send(transport, url, b"next") == b"next"
