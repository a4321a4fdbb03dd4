"""The command line run against a small cluster on a free port."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import pytest
import trio

from kafscale.cli.main import run
from kafscale.config import Address
from tests.client.small_cluster import SmallCluster


@attrs.define(eq=False)
class CommandLine:
    """Runs `kafscale ARGUMENTS --bootstrap …` in a thread, since a command starts trio by itself."""

    address: Address
    cluster: SmallCluster
    capsys: pytest.CaptureFixture[str]

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it wrote to stdout; or the one line on stderr of a command that fails with `code`."""
        self.capsys.readouterr()
        returned = await trio.to_thread.run_sync(run, [*arguments, "--bootstrap", str(self.address)])
        written = self.capsys.readouterr()
        assert returned == code, written.err
        if code:
            assert written.err.count("\n") == 1
            return written.err
        return written.out

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))


@pytest.fixture
async def kafscale(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[CommandLine]:
    cluster = SmallCluster()
    async with cluster.broker.listening() as address:
        cluster.address = address
        yield CommandLine(address, cluster, capsys)


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give the next command something to read on stdin."""

    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("kafscale")
    before = (root.handlers[:], root.level, own.level)
    yield
    root.handlers[:], root.level, own.level = before[0], before[1], before[2]
