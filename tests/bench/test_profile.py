"""What the profile makes of the stacks that py-spy writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.stages import OTHER, OTHER_THREADS, STAGES, by_stage, folded

SAMPLES = """\
thread (7): MainThread;main (kafscale/cli/main.py:66);unrolled_run (trio/_core/_run.py:2866);Connection._read (kafscale/server/kafka/connection.py:155);FrameReader.next_frames (kafscale/wire/frames.py:100) 3
thread (7): MainThread;main (kafscale/cli/main.py:66);unrolled_run (trio/_core/_run.py:2866);Connection._read (kafscale/server/kafka/connection.py:155);FrameReader.next_frames (kafscale/wire/frames.py:104) 1
thread (7): MainThread;main (kafscale/cli/main.py:66);unrolled_run (trio/_core/_run.py:2866);Runner.reschedule (trio/_core/_run.py:1) 4
thread (7): MainThread;unrolled_run (trio/_core/_run.py:2800);EpollIOManager.get_events (trio/_core/_io_epoll.py:243) 50
thread (8): Trio thread 0;Thread.run (threading.py:982);WorkerThread._work (trio/_core/_thread_cache.py:213) 70
thread (8): Trio thread 0;WorkerThread._handle_job (trio/_core/_thread_cache.py:170);RealDisk._write_and_sync (kafscale/log/wal/disk.py:140) 1
thread (8): Trio thread 0;WorkerThread._handle_job (trio/_core/_thread_cache.py:170);capture (outcome/_impl.py:1) 1
"""  # noqa: E501


def test_stacks_begin_at_the_task_have_no_line_numbers_and_none_waits_for_work() -> None:
    assert folded(SAMPLES.splitlines()) == {
        (
            "event loop",
            "Connection._read (kafscale/server/kafka/connection.py)",
            "FrameReader.next_frames (kafscale/wire/frames.py)",
        ): 4,
        ("event loop", "Runner.reschedule (trio/_core/_run.py)"): 4,
        ("thread", "RealDisk._write_and_sync (kafscale/log/wal/disk.py)"): 1,
        ("thread", "capture (outcome/_impl.py)"): 1,
    }


def test_the_event_loop_and_the_threads_are_shared_out_apart_by_the_innermost_stage() -> None:
    assert by_stage(folded(SAMPLES.splitlines()), event_loop_us=10.0, threads_us=4.0) == {
        "receive, cut frames": 5.0,
        OTHER: 5.0,
        "write-ahead log: write and sync": 2.0,
        OTHER_THREADS: 2.0,
    }


@pytest.mark.parametrize("beginning", sorted({each for beginnings in STAGES.values() for each in beginnings}))
def test_every_stage_names_functions_that_there_are(beginning: str) -> None:
    source = "".join(path.read_text() for path in Path("kafscale").rglob("*.py"))
    cls, dot, function = beginning.split(" ")[0].rpartition(".")
    assert not dot or re.search(rf"^class {cls}\b", source, re.MULTILINE)
    assert re.search(rf"(def|class) {re.escape(function)}", source)
