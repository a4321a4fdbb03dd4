"""Files that are read again: when they have changed, once for each change, and what can't be used is left."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from kafscale.errors import StartupError
from kafscale.server.watched_files import FileWatch


@attrs.define(eq=False)
class Text:
    """A file's text; `bad` can't be used."""

    paths: Sequence[Path]
    what: str = "the text"
    text: str = "at first"
    read_count: int = 0

    def load(self) -> None:
        self.read_count += 1
        found = self.paths[0].read_text()
        if found == "bad":
            raise StartupError("it is bad; give a good one")
        self.text = found


@pytest.fixture
def text(tmp_path: Path) -> Text:
    (tmp_path / "file").write_text("at first")
    return Text([tmp_path / "file"])


async def look(watch: FileWatch) -> None:
    await watch._read(only_changed=True)


async def test_only_changed_files_are_read_again(text: Text) -> None:
    watch = FileWatch([text], 1.0)
    await look(watch)
    assert text.read_count == 0
    text.paths[0].write_text("changed")
    await look(watch)
    await look(watch)
    assert (text.text, text.read_count, watch.reload_count.value) == ("changed", 1, 1)


async def test_a_replaced_file_with_equal_time_and_size_counts_as_changed(text: Text, tmp_path: Path) -> None:
    watch = FileWatch([text], 1.0)
    before = os.stat(text.paths[0])
    (tmp_path / "new").write_text("at last!")
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").rename(text.paths[0])
    await look(watch)
    assert text.text == "at last!"


async def test_an_unusable_file_is_ignored_and_logged_once(text: Text, caplog: pytest.LogCaptureFixture) -> None:
    watch = FileWatch([text], 1.0)
    text.paths[0].write_text("bad")
    await look(watch)
    await look(watch)
    assert (text.text, text.read_count, watch.failed_count.value) == ("at first", 1, 1)
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == ("the text stays as it was, as the new one can't be used: it is bad; give a good one")
    text.paths[0].unlink()
    text.paths[0].write_text("good again")
    await look(watch)
    assert text.text == "good again"


async def test_on_demand_all_are_read(text: Text) -> None:
    watch = FileWatch([text], 3600.0)
    await watch.reload()
    assert text.read_count == 1


async def test_watched_files_are_checked_once_per_interval(text: Text, autojump_clock: trio.testing.MockClock) -> None:
    watch = FileWatch([text], 10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        text.paths[0].write_text("changed")
        await trio.sleep(9)
        assert text.read_count == 0
        await trio.sleep(2)
        while not watch.reload_count.value:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert text.text == "changed"
