"""`kafscale flush` against the admin server of a broker: what it prints, its exit codes, and what it says to do."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable

import attrs
import pytest
import trio

from kafscale.cli import flush
from kafscale.cli.main import run
from kafscale.log.flush.flusher import FlushReport
from kafscale.log.log import Log
from kafscale.metrics import Metrics
from kafscale.server.http.admin import AdminServer
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_log import batch_of, memory_log, topic_spec

TOPICS = [topic_spec(2, name="orders"), topic_spec(1, name="audit", topic_id=b"a" * 16)]
KFS = On("put*", "*.kfs")


@attrs.define(eq=False)
class Admin:
    """An admin server of a log that flushes nothing by itself."""

    log: Log
    store: FaultyStore
    address: str
    capsys: pytest.CaptureFixture[str]
    append: Callable[..., object]
    not_ready: str | None = None
    left_when_settled: list[int] = attrs.field(factory=list)  # bytes, at each call of `settle_metadata`

    async def flush(self, *arguments: str, code: int = 0) -> str:
        self.capsys.readouterr()
        command = ["flush", *arguments, "--admin", self.address]
        assert await trio.to_thread.run_sync(run, command) == code
        written = self.capsys.readouterr()
        assert written.err.count("\n") == bool(code)
        return written.err if code else written.out

    async def settle_metadata(self) -> None:
        self.left_when_settled.append(self.left("orders") + self.left("audit"))

    def left(self, topic: str) -> int:
        return sum(partition.flushable_bytes for partition in self.log.by_name[topic])


@pytest.fixture
async def admin(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Admin]:
    store = FaultyStore(MemoryStore())
    async with (
        memory_log(store, MemoryDisk(), topics=TOPICS, flush_interval_seconds=1e9) as log,
        trio.open_nursery() as nursery,
    ):
        for name, index in (("orders", 0), ("orders", 1), ("audit", 0)):
            await log.append(log.partition(index, name=name), b"x")
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        made = Admin(log.log, store, address, capsys, log.append)
        server = AdminServer(Metrics(), lambda: made.not_ready, lambda: log.log, made.settle_metadata)
        nursery.start_soon(trio.serve_listeners, server.server.serve, [listener])
        yield made
        nursery.cancel_scope.cancel()


async def test_flush_puts_every_segment_in_the_bucket(admin: Admin) -> None:
    size = len(batch_of(b"x"))
    assert (await admin.flush()).startswith(f"flushed 3 segments, {3 * size} bytes, in 0.")
    assert admin.left("orders") == admin.left("audit") == 0
    assert (await admin.flush()).startswith("flushed 0 segments, 0 bytes, in 0")


async def test_a_flush_ends_with_the_metadata_in_the_bucket(admin: Admin) -> None:
    """A copy of the bucket made after a flush lacked the topics of the last ten seconds."""
    await admin.flush()
    assert admin.left_when_settled == [0]


async def test_the_admin_option_accepts_a_url(admin: Admin) -> None:
    """`--admin http://HOST:PORT` was refused as no address."""
    admin.address = f"http://{admin.address}"
    assert (await admin.flush()).startswith("flushed 3 segments")
    assert "--admin-ssl or --admin-ca-file asks for" in await admin.flush("--admin-ssl", code=2)
    admin.address = admin.address.replace("http", "https")
    assert "the TLS handshake with 127.0.0.1" in await admin.flush(code=1)


async def test_bootstrap_names_the_hosts_of_admin_servers(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFSCALE_BOOTSTRAP was ignored: the command went to 127.0.0.1, whichever broker all others spoke to."""
    monkeypatch.setattr(flush, "DEFAULT_PORT", int(admin.address.rpartition(":")[2]))
    monkeypatch.setenv("KAFSCALE_BOOTSTRAP", "127.0.0.1:1,localhost:1,127.0.0.1:2")
    asked = await trio.to_thread.run_sync(run, ["flush", "--json"])
    assert (asked, json.loads(admin.capsys.readouterr().out)["segments"]) == (0, 3)
    monkeypatch.setenv("KAFSCALE_ADMIN_LISTEN", "127.0.0.1:1")
    assert await trio.to_thread.run_sync(run, ["flush"]) == 1
    assert await trio.to_thread.run_sync(run, ["flush", "--bootstrap", "127.0.0.1:1"]) == 0
    assert await trio.to_thread.run_sync(run, ["flush", "--bootstrap", "127.0.0.1:1", "--admin", "127.0.0.1:1"]) == 1


async def test_of_a_topic_as_json(admin: Admin) -> None:
    told = json.loads(await admin.flush("audit", "--json"))
    assert told.keys() == {"segments", "bytes", "seconds"}
    assert (told["segments"], told["bytes"]) == (1, len(batch_of(b"x")))
    assert admin.left("orders") > admin.left("audit") == 0


async def test_a_topic_that_is_not_there(admin: Admin) -> None:
    error = await admin.flush("orders", "nothing here & there", code=1)
    assert error == "kafscale: there is no topic 'nothing here & there'; see `kafscale topics list`\n"
    assert admin.left("orders") > 0


async def test_no_admin_server_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*bound.getsockname())
        assert run(["flush", "--admin", address]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"kafscale: no broker's admin server at {address}: Connection refused; start the broker")
    assert error.count("\n") == 1


async def test_another_server_there(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[bytes] = []

    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(answers.pop())

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, refuse, [listener])
        for answer, words in [
            (
                b"HTTP/1.1 405 No\r\ncontent-length: 3\r\n\r\nno\n",
                "answered 405 (no): it is not a broker's --admin-listen",
            ),
            (b"220 mail\r\n", "lost the admin server"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n", "lost the admin server"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}\n", "lost the admin server"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n[]\n", "lost the admin server"),
        ]:
            answers.append(answer)
            assert await trio.to_thread.run_sync(run, ["flush", "--admin", address]) == 1
            error = capsys.readouterr().err
            assert words in error
            assert error.count("\n") == 1
        nursery.cancel_scope.cancel()


async def test_a_broker_that_is_not_ready(admin: Admin) -> None:
    admin.not_ready = "restoring"
    assert "is not ready: restoring; try again later" in await admin.flush(code=1)


async def test_a_store_that_fails_is_waited_for_until_the_timeout(admin: Admin) -> None:
    admin.store.hold(KFS)
    error = await admin.flush("--timeout", "1ms", code=1)
    size = len(batch_of(b"x"))
    assert f"not done in 0.001 s: 0 of {3 * size} bytes are in the bucket. The broker goes on" in error


async def test_flush_streams_its_progress(admin: Admin) -> None:
    gate = admin.store.hold(On("put*", "*orders*/1/*.kfs"))
    stream = await trio.open_tcp_stream("127.0.0.1", int(admin.address.rpartition(":")[2]))
    async with stream:
        await stream.send_all(b"POST /flush HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n")
        answered = b""
        while answered.count(b'"done": false, "segments": 2') < 2:
            answered += await stream.receive_some()
        gate.open()
        while b'"done": true, "segments": 3' not in answered:
            answered += await stream.receive_some()
        await stream.send_all(b"GET /flush HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answered = b""
        while b"POST only" not in answered:
            answered += await stream.receive_some()
        assert b"HTTP/1.1 405" in answered


async def test_a_report_of_some_topics_counts_theirs_only(admin: Admin) -> None:
    report = FlushReport(topics=frozenset({"orders"}))
    await admin.log.flusher.flush_all(report)
    assert (report.segments_count, report.flushed_bytes, report.wanted_bytes) == (
        2,
        2 * len(batch_of(b"x")),
        report.flushed_bytes,
    )
    assert admin.left("audit") > 0
