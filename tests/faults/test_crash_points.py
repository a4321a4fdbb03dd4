"""A broker that dies under load at one point after the other where its state is half written, and starts again.

FAULTS_SEED chooses the order and how often each point is passed before; it is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from kafscale.testing.disk import MemoryDisk
from tests.devtools.processes.crash_points import POINTS, CrashingDisk, CrashPoint
from tests.devtools.processes.process import KAFSCALE, BrokerProcess, ProcessFailed
from tests.faults.ordeal import OPTIONS, Ordeal, chosen_seed

CRASH_TIMEOUT_SECONDS = 20.0
ROUNDS_COUNT = 5  # of the slow suite
SELDOM_PASSED = ("metadata-commit", "s3-wal-put")  # under `segment` the log in the bucket has metadata only
PASSES_MAX_COUNT = {"wal-write": 40, "wal-create": 1, **dict.fromkeys(SELDOM_PASSED, 1)}
SELDOM = ("checkpoint-put-", "wal-delete-")  # every ten seconds at most, or none: left to the simulation
WITHOUT_WAL = [point for point in POINTS if not point.startswith(("wal-", *SELDOM))]
FEW = (  # one of each kind of seam; `make test-faults` dies at all of them, and so does the simulation
    *("wal-begin-torn", "wal-write-torn", "wal-reuse-during", "wal-retire-after"),
    *("kfs-put-during", "index-put-after", "merge-kfs-put-during", "metadata-commit-before"),
)
POINTS_OF = {
    "wal": [point for point in POINTS if not point.startswith(("s3-wal-", *SELDOM))],
    "s3-wal": WITHOUT_WAL,
    "segment": WITHOUT_WAL,
}


async def start_and_perhaps_crash(broker: BrokerProcess) -> None:
    """A start writes too, so that the point may be met before the broker is ready."""
    try:
        await trio.to_thread.run_sync(broker.start)
    except ProcessFailed as exc:
        if "ended with -9 before it was ready" not in str(exc):
            raise


async def crash_at_each(ordeal: Ordeal, points: Sequence[str]) -> None:
    """The broker runs already, without a point, and does so again at the end."""
    broker = ordeal.broker
    await trio.sleep(0.1)
    broker.kill()
    for point in points:
        operation = point.rpartition("-")[0]
        passes_count = ordeal.random.randint(1, PASSES_MAX_COUNT.get(operation, 3))
        broker.program = ("-m", "tests.devtools.processes.crash_points", f"{point}:{passes_count}", "--")
        await start_and_perhaps_crash(broker)
        with trio.move_on_after(CRASH_TIMEOUT_SECONDS):
            while broker.returncode is None:
                await trio.sleep(0.01)
        assert broker.returncode == -9, f"{point}:{passes_count} was not reached: {broker.log[-2000:]}"
        broker.kill()
        await ordeal.look_at_bucket()
    broker.program = KAFSCALE
    await trio.to_thread.run_sync(broker.start)


async def survive(directory: Path, durability: str, points: Sequence[str]) -> None:
    with BrokerProcess(directory=directory, options=[*OPTIONS, "--durability", durability]) as broker:
        ordeal = Ordeal(broker, chosen_seed())
        points = ordeal.random.sample(points, len(points))
        await ordeal.run(lambda: crash_at_each(ordeal, points))
        print(f"{len(points)} crashes, {ordeal.history.acknowledged_count} records acknowledged")
        assert ordeal.problems() == []
        assert ordeal.history.acknowledged_count > 10 * len(points)  # otherwise nothing was tried


@pytest.mark.timeout(300)  # ten seconds, where nobody else uses the machine
async def test_survives_a_crash_at_a_few_points(tmp_path: Path) -> None:
    await survive(tmp_path, "wal", FEW)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("durability", ["wal", "s3-wal", "segment"])
async def test_survives_many_crashes_at_each_point(tmp_path: Path, durability: str) -> None:
    await survive(tmp_path, durability, [*POINTS_OF[durability]] * ROUNDS_COUNT)


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no crash point wal-writ; there are wal-create-before,"):
        CrashPoint.parse("wal-writ:3")


class Died(Exception):
    pass


async def die() -> None:
    raise Died


@pytest.mark.parametrize(("position", "ends"), [(0, {0, 512}), (700, {700, 1024, 1536})])
async def test_a_torn_write_ends_with_a_sector(position: int, ends: set[int]) -> None:
    """As it does on a disk. Within a sector is the header of a WAL file, behind which may be what it held before."""
    ended = set()
    for _ in range(100):
        memory = MemoryDisk()
        disk = CrashingDisk(memory, CrashPoint("wal-write-torn", 0, die=die))
        await disk.create("wal", 2048, b"")
        with pytest.raises(Died):
            await disk.write_and_sync("wal", [b"x" * 1000], position)
        ended.add(position + memory.files["wal"].count(b"x"))
    assert ended == ends
