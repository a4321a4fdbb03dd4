"""File descriptors: the limit is raised, a reserve is kept, and their lack is waited out."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from kafscale import descriptors
from kafscale.descriptors import first_reserved, limit, open_patiently, raise_limit


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Soft and hard limit of a process that has no others."""
    now = {"soft": 1024, "hard": 4096}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (now["soft"], now["hard"]))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: now.update(soft=both[0], hard=both[1]))
    return now


def test_the_soft_limit_becomes_the_hard_one(limits: dict[str, int]) -> None:
    assert raise_limit() == limit() == limits["soft"] == 4096
    assert raise_limit() == 4096


def test_no_limit_is_a_high_one(limits: dict[str, int]) -> None:
    limits["hard"] = resource.RLIM_INFINITY
    assert raise_limit() == descriptors.WANTED_COUNT
    limits["soft"] = resource.RLIM_INFINITY
    assert limit() == descriptors.WANTED_COUNT


def test_a_descriptor_limit_that_cannot_be_raised_stays_unchanged(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(which: int, both: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 1024


@pytest.mark.parametrize(("soft", "first"), [(100_000, 100_000 - 256), (1024, 768), (64, 48)])
def test_a_reserve_is_kept(limits: dict[str, int], soft: int, first: int) -> None:
    limits["soft"] = soft
    assert first_reserved() == first


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    real_open, failures = os.open, [error] * 3
    pauses: list[float] = []

    def scarce(path: Path, flags: int, mode: int) -> int:
        if failures:
            raise OSError(failures.pop(), "none left")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce)
    monkeypatch.setattr(descriptors.time, "sleep", pauses.append)
    os.close(open_patiently(tmp_path / "file", os.O_CREAT | os.O_RDWR, 0o600))
    assert len(pauses) == 3


def test_other_errors_are_not_waited_out_nor_is_a_lack_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        open_patiently(tmp_path / "missing", os.O_RDONLY)
    monkeypatch.setattr(descriptors, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "none left")))
    with pytest.raises(OSError, match="none left"):
        open_patiently(tmp_path / "file", os.O_RDONLY)
