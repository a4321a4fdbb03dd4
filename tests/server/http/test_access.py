"""Access to the admin server: by where it listens, and whether there is a token."""

from __future__ import annotations

import logging
from pathlib import Path

import h11
import pytest
import trio

from kafscale.config import Address, Settings
from kafscale.log.log import Log
from kafscale.metrics import Metrics
from kafscale.server.http.access import AdminAccess, AdminToken
from kafscale.server.http.admin import AdminServer
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import memory_log
from tests.devtools.fakes.memory_network import memory_stream_pair

TOKEN = "a token"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EXPOSED = ("0.0.0.0", "::", "192.0.2.1", "broker.example")


@pytest.fixture
def token(tmp_path: Path) -> AdminToken:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return AdminToken.open(tmp_path / "token")


def access_of(host: str, token: AdminToken | None = None) -> AdminAccess:
    return AdminAccess.of(Settings(admin_listen=Address(host, 9644)), token, None)


@pytest.mark.parametrize("host", [*LOOPBACK, *EXPOSED])
def test_a_server_that_others_reach_changes_nothing_without_a_token_and_warns(
    host: str, token: AdminToken, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    is_exposed = host in EXPOSED
    assert (access_of(host).refused_change is not None) == is_exposed
    assert ("--admin-token-file is not set" in caplog.text) == is_exposed
    caplog.clear()
    assert access_of(host, token).refused_change is None
    assert caplog.text == ""


async def status(log: Log, access: AdminAccess, request_line: str, *headers: str) -> int:
    server = AdminServer(Metrics(), lambda: None, lambda: log, access=access)
    ours, theirs = memory_stream_pair()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.server.serve, theirs)
        await ours.send_all("\r\n".join([f"{request_line} HTTP/1.1", *headers, "", ""]).encode())
        client = h11.Connection(h11.CLIENT)
        while (event := client.next_event()) is h11.NEED_DATA:
            client.receive_data(await ours.receive_some(65536))
        nursery.cancel_scope.cancel()
    assert isinstance(event, h11.Response)
    return event.status_code


@pytest.mark.parametrize(
    ("request_line", "headers", "without", "with_token"),
    [
        ("GET /healthz", ["Host: evil.example"], 200, 200),
        ("GET /metrics", ["Host: 127.0.0.1"], 200, 401),
        ("GET /metrics", ["Host: evil.example"], 403, 401),
        ("GET /metrics", ["Host: prometheus.example", f"Authorization: Bearer {TOKEN}"], 403, 200),
        ("POST /flush", ["Host: 127.0.0.1"], 403, 401),
        ("POST /flush", ["Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}"], 403, 200),
        ("GET /nothing", ["Host: evil.example"], 403, 401),
    ],
)
async def test_an_exposed_admin_server_restricts_requests_with_and_without_a_token(
    token: AdminToken, request_line: str, headers: list[str], without: int, with_token: int
) -> None:
    async with memory_log(MemoryStore(), MemoryDisk()) as memory:
        assert await status(memory.log, access_of("0.0.0.0"), request_line, *headers) == without
        assert await status(memory.log, access_of("0.0.0.0", token), request_line, *headers) == with_token
