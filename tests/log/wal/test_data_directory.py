"""One process at a time has the data directory."""

import errno
import os
import subprocess
import sys

import pytest

from kafscale.errors import StartupError
from kafscale.log.wal.data_directory import lock_data_directory

HOLDER = """
import pathlib, sys
from kafscale.log.wal.data_directory import lock_data_directory
with lock_data_directory(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_pid_of_the_lock_holder(tmp_path):
    path = tmp_path / "new" / "data"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StartupError, match=f"data directory {path} is in use by process {holder.pid}; stop"):
            with lock_data_directory(path):
                pass
        holder.kill()
    with lock_data_directory(path):
        assert (path / "lock").read_text().split() == [str(os.getpid())]


def test_a_full_disk_can_be_locked(tmp_path, monkeypatch):
    """It advised to choose another data directory, without the log and the metadata that are in this one."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def read_only(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "pwrite", full)
    with lock_data_directory(tmp_path), pytest.raises(StartupError, match="in use by process"):
        with lock_data_directory(tmp_path):
            pass
    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StartupError, match="make it writable: what it holds"):
        with lock_data_directory(tmp_path):
            pass
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StartupError, match="free some space, nothing is lost"):
        with lock_data_directory(tmp_path):
            pass


def test_the_data_directory_can_be_locked_again_after_release(tmp_path):
    for _ in range(2):
        with lock_data_directory(tmp_path):
            pass


def test_a_path_that_can_not_be_used_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"cannot use the data directory .*/file/data: Not a directory; make it"):
        with lock_data_directory(tmp_path / "file" / "data"):
            pass
