"""A broker that is suspended (SIGSTOP) while another one takes over its bucket, and then goes on.

Which of its tasks goes on first is chance; tests/cluster/test_superseded_deletions.py chooses.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kafscale.client.admin import delete_topic
from kafscale.client.client import connect
from kafscale.config import Address
from tests.devtools.external.clients import wait_until
from tests.devtools.processes.process import BrokerProcess
from tests.faults.own_client import consume, create, produce

TOPIC = "orders"
DELAY_MS = 2000  # from the answer to a deletion until the objects go
CONFIGS = {"file.delete.delay.ms": str(DELAY_MS), "retention.ms": "-1"}


async def delete(address: Address) -> None:
    async with connect(address) as client:
        await delete_topic(client, TOPIC)


@pytest.mark.faults
def test_a_suspended_broker_does_not_delete_the_segments_of_its_successors_topic(
    tmp_path: Path,
) -> None:
    """The deletion was acknowledged, and in no checkpoint yet, when the first broker was suspended."""
    bucket = tmp_path / "bucket"
    options = ("--store", f"file:{bucket}", "--flush-interval", "100ms")

    def segments_count() -> int:
        return len(list(bucket.rglob("*.kfs")))

    older = BrokerProcess(directory=tmp_path / "older", options=options)
    newer = BrokerProcess(directory=tmp_path / "newer", options=options)
    with older:
        trio.run(create, older.kafka, TOPIC, CONFIGS)
        trio.run(produce, older.kafka, TOPIC, [b"a"])
        older.restart()  # the topic is in a checkpoint, and the record in a segment
        trio.run(delete, older.kafka)
        older.suspend()
        with newer:
            trio.run(produce, newer.kafka, TOPIC, [b"b"])
            wait_until(lambda: segments_count() == 2, "both segments")
            older.resume()
            wait_until(lambda: older.returncode is not None, "the end of the older broker")
            assert older.returncode == 1
            assert "has been superseded" in older.log
            assert segments_count() == 2
            assert trio.run(consume, newer.kafka, TOPIC, 2) == [b"a", b"b"]
