"""Other users of the machine read nothing of a broker's files: metadata.db and the bucket used to be 0644."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.hostile.hostile import bystander

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """What most shells have; the broker inherits it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    paths = [directory, *directory.rglob("*")]
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & OTHERS]


async def fill(broker: BrokerProcess) -> None:
    """Until there are an object, a write-ahead log and metadata."""
    async with bystander(broker):
        with trio.fail_after(20):
            while not list(broker.data_dir.rglob("*.kfs")):
                await trio.sleep(0.05)


async def test_files_of_the_broker_are_not_readable_by_other_users() -> None:
    with broker_process("--flush-interval=50ms", "--wal-segment-bytes=64KiB") as broker:
        await fill(broker)
        assert (broker.data_dir / "metadata.db-wal").exists()
        assert open_to_others(broker.data_dir) == []


async def test_metadata_and_wal_files_left_readable_are_made_private_at_start() -> None:
    with broker_process("--flush-interval=50ms") as broker:
        await fill(broker)
        broker.stop()
        for path in broker.data_dir.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        shared = set((broker.data_dir / "bucket").rglob("*.kfs"))
        broker.start()
        private = [broker.data_dir / "metadata.db", *(broker.data_dir / "wal").iterdir()]
        assert all(not path.stat().st_mode & OTHERS for path in private)
        assert all(path.stat().st_mode & OTHERS for path in shared), "the bucket may be shared on purpose"
        assert "could be read by other users" in broker.log


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="needs setfacl, of the package acl")
async def test_the_documented_commands_let_another_user_read_only_the_bucket() -> None:
    """The one of the page for operators, as it is there, for a user that each machine has."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    recipe = next(block for block in page.split("```") if "setfacl" in block)
    with broker_process("--flush-interval=50ms") as broker:
        broker.stop()
        shutil.rmtree(broker.data_dir)
        commands = recipe.replace("kafscale-data", str(broker.data_dir)).replace("spark", "nobody")
        subprocess.run(["sh", "-e", "-c", commands], check=True)
        broker.start()
        await fill(broker)
        for path in broker.data_dir.rglob("*"):
            rights = subprocess.run(["getfacl", "-cE", path], check=True, capture_output=True, text=True).stdout
            in_bucket = broker.data_dir / "bucket" in path.parents
            assert ("\nuser:nobody:r-x\n" in rights and "\nmask::r" in rights) == in_bucket or path.name == "bucket"
            assert "other::---" in rights
