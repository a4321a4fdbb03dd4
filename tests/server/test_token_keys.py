"""The keys that sign tokens, read again and again."""

import json
from contextlib import suppress

import pytest
import trio
import trio.testing

from kafscale.server.token_keys import PublishedKeys
from tests.devtools.processes.sasl import key_set, signing_key, write_key_set


async def until(condition):
    """Give the thread time, of which the clock of the test knows nothing."""
    with trio.fail_after(1):
        while not condition():
            await trio.lowlevel.checkpoint()


def key_ids(keys):
    return [key.kid for key in keys.current or ()]


async def test_a_key_file_is_read_again_after_the_pause(tmp_path, mock_clock):
    keys = PublishedKeys(url=write_key_set(tmp_path / "keys", signing_key()), refresh_seconds=3600, pause_seconds=10)
    await keys.fetch()
    assert key_ids(keys) == ["one"]
    write_key_set(tmp_path / "keys", signing_key(), signing_key("EC", "three"))
    await keys.fetch()
    assert key_ids(keys) == ["one"]  # not so soon
    mock_clock.jump(11)
    await keys.fetch()
    assert key_ids(keys) == ["one", "three"]


async def test_keys_are_read_again_after_a_while(tmp_path, mock_clock, nursery):
    keys = PublishedKeys(url=write_key_set(tmp_path / "keys", signing_key()), refresh_seconds=100)
    nursery.start_soon(keys.run)
    await until(lambda: key_ids(keys) == ["one"])
    write_key_set(tmp_path / "keys", signing_key("EC", "three"))
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(100)
    await until(lambda: key_ids(keys) == ["three"])
    nursery.cancel_scope.cancel()


async def test_unreadable_keys_are_retried_and_earlier_keys_stay_valid(tmp_path, mock_clock, nursery, caplog):
    path = tmp_path / "keys"
    keys = PublishedKeys(url=path.as_uri(), refresh_seconds=100)
    nursery.start_soon(keys.run)
    await until(lambda: caplog.text.count("can't be read") == 1)
    write_key_set(path, signing_key())
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(11)
    await until(lambda: key_ids(keys) == ["one"])
    path.write_text("{")
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(101)
    await until(lambda: caplog.text.count("can't be read") == 2)
    assert key_ids(keys) == ["one"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", ["one"]),
        (b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s", []),
        (b"HTTP/1.1 302 No\r\nLocation: /elsewhere\r\nContent-Length: %d\r\n\r\n%s", []),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (2 << 20) + b"%d%s", []),
        (b"nonsense %d%s", []),
    ],
)
async def test_keys_of_a_url(answer, expected, nursery):
    body = json.dumps(key_set(signing_key())).encode()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def serve(stream):
        await stream.receive_some(65536)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer % (len(body), body))

    nursery.start_soon(trio.serve_listeners, serve, [listener])
    port = listener.socket.getsockname()[1]
    keys = PublishedKeys(url=f"http://127.0.0.1:{port}/keys", refresh_seconds=3600)
    await keys.fetch()
    assert key_ids(keys) == expected
    nursery.cancel_scope.cancel()


async def test_without_an_issuer_there_are_none():
    keys = PublishedKeys(url=None, refresh_seconds=1)
    await keys.fetch()
    await keys.run()
    assert key_ids(keys) == []
