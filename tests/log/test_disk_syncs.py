"""What the real disk says is done survives a power cut: no operation returns before the kernel was told to sync it.

The kernel itself can't be asked what a power cut would leave, so every call that changes the directory is watched on
its way: what it changed is owed a sync until one of the file, or of the directory, comes after it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from kafscale.log.wal.direct_io import PAGE_BYTES, DirectWriter
from kafscale.log.wal.disk import RealDisk

FILE_BYTES = 8 * PAGE_BYTES


@attrs.define(eq=False)
class OwedSyncs:
    """Watches the calls of `os` below one directory. `owed` are the files and directories that a sync must still reach.

    A file's length counts too: `os` is not asked by who cuts a file that is open.
    """

    root: Path
    owed: set[str] = attrs.field(factory=set)
    renamed_too_early: list[str] = attrs.field(factory=list)
    synced_sizes: dict[str, int] = attrs.field(factory=dict)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("open", "mkdir", "posix_fallocate", "pwritev", "pwrite", "write", "rename", "unlink"):
            self._spy(monkeypatch, name)
        for name in ("fsync", "fdatasync"):
            self._spy(monkeypatch, name)

    def all_owed(self) -> set[str]:
        sizes = {str(path): path.stat().st_size for path in self.root.rglob("*") if path.is_file()}
        return self.owed | {path for path, size in sizes.items() if size != self.synced_sizes.get(path, size)}

    def _spy(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)
        note = getattr(self, f"_{name}", self._changed if name not in ("fsync", "fdatasync") else self._synced)

        def spy(*args: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.fspath(args[0])
            is_new = not os.path.exists(path)
            result = real(*args, **options)
            if Path(path).is_relative_to(self.root):
                note(path, *args[1:], is_new=is_new)
            return result

        monkeypatch.setattr(os, name, spy)

    def _changed(self, path: str, *_: object, is_new: bool) -> None:
        self.owed.add(path)

    def _synced(self, path: str, *_: object, is_new: bool) -> None:
        self.owed.discard(path)
        if os.path.isfile(path):
            self.synced_sizes[path] = os.path.getsize(path)

    def _open(self, path: str, *_: object, is_new: bool) -> None:
        if is_new:
            self.owed |= {path, os.path.dirname(path)}

    def _mkdir(self, path: str, *_: object, is_new: bool) -> None:
        self.owed.add(os.path.dirname(path))

    def _rename(self, path: str, new_path: os.PathLike[str], *_: object, is_new: bool) -> None:
        if path in self.owed:
            self.renamed_too_early.append(path)
        if (size := self.synced_sizes.pop(path, None)) is not None:
            self.synced_sizes[os.fspath(new_path)] = size
        self.owed |= {os.path.dirname(path), os.path.dirname(os.fspath(new_path))}

    def _unlink(self, path: str, *_: object, is_new: bool) -> None:
        self.owed.discard(path)
        self.synced_sizes.pop(path, None)
        self.owed.add(os.path.dirname(path))


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwedSyncs:
    watched = OwedSyncs(tmp_path)
    watched.watch(monkeypatch)
    return watched


@pytest.fixture(params=["threads", "direct"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "threads":
        monkeypatch.setattr(DirectWriter, "open", classmethod(lambda cls: None))
    made = RealDisk(tmp_path / "wal")
    yield made
    made.close()


async def test_a_directory_that_is_made_is_synced_into_its_parent(disk: RealDisk, syncs: OwedSyncs) -> None:
    await disk.list()
    assert syncs.all_owed() == set()


async def test_a_file_that_is_made_and_its_name_are_synced(disk: RealDisk, syncs: OwedSyncs) -> None:
    await disk.list()
    await disk.create("a", FILE_BYTES, b"header")
    assert syncs.all_owed() == set()


async def test_a_file_is_used_again_only_once_its_new_header_is_synced(disk: RealDisk, syncs: OwedSyncs) -> None:
    await disk.list()
    await disk.create("spare", FILE_BYTES, b"header")
    await disk.create("b", FILE_BYTES, b"HEADER", reuse="spare")
    assert syncs.all_owed() == set()
    assert syncs.renamed_too_early == []


async def test_renames_truncations_and_deletions_are_synced(disk: RealDisk, syncs: OwedSyncs) -> None:
    await disk.list()
    await disk.create("a", FILE_BYTES, b"header")
    await disk.rename("a", "b")
    assert syncs.all_owed() == set(), "rename"
    await disk.truncate("b", 100)
    assert syncs.all_owed() == set(), "truncate"
    await disk.delete("b")
    assert syncs.all_owed() == set(), "delete"


async def test_writes_are_synced_by_both_ways_to_the_disk(disk: RealDisk, syncs: OwedSyncs) -> None:
    await disk.list()
    await disk.create("a", FILE_BYTES, b"header")
    for position, buffers in [(PAGE_BYTES, [b"x" * PAGE_BYTES]), (3 * PAGE_BYTES, [b"y" * 10])]:  # a page, and a part
        await disk.write_and_sync("a", buffers, position)
        assert syncs.all_owed() == set()


async def test_a_descriptor_around_the_page_cache_syncs_each_of_its_writes(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "wal")
    await disk.list()
    await disk.create("a", FILE_BYTES, b"header")
    await disk.write_and_sync("a", [b"x" * PAGE_BYTES], PAGE_BYTES)
    flags = [
        fcntl.fcntl(int(name), fcntl.F_GETFL)
        for name in os.listdir("/proc/self/fd")
        if _target(name) == str(tmp_path / "wal" / "a")
    ]
    direct = [each for each in flags if each & os.O_DIRECT]
    disk.close()
    if not direct:
        pytest.skip("no direct writes here")
    assert all(each & os.O_DSYNC for each in direct)


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # that of the listing itself
        return ""
