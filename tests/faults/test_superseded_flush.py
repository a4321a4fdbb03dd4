"""A broker that is suspended (SIGSTOP) while another one takes over its bucket, and then flushes what it had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.devtools.external.clients import wait_until
from tests.devtools.processes.process import BrokerProcess
from tests.faults.own_client import consume, create, produce

pytestmark = pytest.mark.faults

TOPIC = "orders"
OLDER, NEWER = [b"a3", b"a4"], [b"b3", b"b4", b"b5"]
SHARED = [b"a0", b"a1", b"a2"]
# As if it had been suspended again each time between its look at the claim and what it did then.
BLIND = (
    "import trio; from kafscale.cluster.membership.start.claim import LeadCheck;"
    "LeadCheck.confirm = LeadCheck.confirm_lately = lambda check, *within: trio.lowlevel.checkpoint();"
    "LeadCheck.has_led_within = lambda check, seconds: True;"
    "from kafscale.cli.main import main; main()"
)


def test_a_suspended_brokers_late_flush_changes_nothing_for_its_successor(tmp_path: Path) -> None:
    """The older one does not look at the claim before it uploads: safety must not rest on that."""
    bucket = tmp_path / "bucket"
    options = ("--store", f"file:{bucket}", "--flush-interval", "500ms")

    def segments_count() -> int:
        return len(list(bucket.rglob("*.kfs")))

    older = BrokerProcess(directory=tmp_path / "older", options=options, program=("-c", BLIND))
    newer = BrokerProcess(directory=tmp_path / "newer", options=options)
    with older:
        trio.run(create, older.kafka, TOPIC)
        trio.run(produce, older.kafka, TOPIC, SHARED)
        wait_until(lambda: segments_count() > 0, "a segment")
        older.stop()
        older.start()  # with all of this in the bucket
        before = segments_count()
        trio.run(produce, older.kafka, TOPIC, OLDER)
        older.suspend()
        assert segments_count() == before
        with newer:
            trio.run(produce, newer.kafka, TOPIC, NEWER)
            older.resume()
            wait_until(lambda: segments_count() >= before + 2, "segments of both")
            assert trio.run(consume, newer.kafka, TOPIC, 6) == [*SHARED, *NEWER]
            newer.restart(kill=True)
            assert trio.run(consume, newer.kafka, TOPIC, 6) == [*SHARED, *NEWER]
            assert newer.log.count("is not read: its broker wrote it after another one had taken over") == 1
    told = subprocess.run(
        [sys.executable, "-m", "kafscale", "verify", "--store", f"file:{bucket}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "its offsets 3 to 4 are never read" in told.stdout


def test_a_superseded_broker_flushes_nothing_after_being_resumed(tmp_path: Path) -> None:
    options = ("--store", f"file:{tmp_path / 'bucket'}", "--flush-interval", "500ms")
    older = BrokerProcess(directory=tmp_path / "older", options=options)
    newer = BrokerProcess(directory=tmp_path / "newer", options=options)
    with older:
        trio.run(create, older.kafka, TOPIC)
        older.restart()  # the topic is in a checkpoint
        trio.run(produce, older.kafka, TOPIC, OLDER)
        older.suspend()
        with newer:
            trio.run(produce, newer.kafka, TOPIC, NEWER)
            older.resume()
            wait_until(lambda: older.returncode is not None, "the end of the older broker")
            assert older.returncode == 1
            assert "has been superseded" in older.log
            assert trio.run(consume, newer.kafka, TOPIC, 3) == NEWER
            keys = {path.name[29:39] for path in tmp_path.rglob("*.kfs")}
            assert len(keys) <= 1  # of the newer broker's epoch
