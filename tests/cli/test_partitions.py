"""`kafscale partitions`, against whole brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from kafscale.client import brokers
from kafscale.cluster.registries.topics import NewTopic
from tests.cli.conftest import CommandLine
from tests.cli.loopback_cluster import SOON_SECONDS, loopback_cluster
from tests.cli.test_brokers import TOPIC, Several

COUNT = 4


@pytest.fixture
async def two(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Several]:
    async with loopback_cluster(2) as cluster:
        several = Several(cluster, CommandLine(cluster.address(1), None, capsys))  # type: ignore[arg-type]
        await several.create(count=COUNT)
        yield several


async def test_partitions_are_listed_with_their_leaders(two: Several) -> None:
    await two.create("other", 2)
    rows = await two.kafscale.json("partitions", "list", TOPIC)
    leaders = {each: broker_id for broker_id in (1, 2) for each in two.cluster.led_by(broker_id, TOPIC)}
    assert rows == [
        {"topic": TOPIC, "partition": each, "leader": leaders[each], "moves_to": None, "waits_for": None}
        for each in range(COUNT)
    ]
    assert len(await two.kafscale.json("partitions", "list")) == COUNT + 2
    assert "there is no topic 'nope'" in await two.kafscale("partitions", "list", "nope", code=1)


async def test_a_manually_moved_partition_stays_until_balance_runs(two: Several) -> None:
    said = await two.kafscale("partitions", "move", TOPIC, "--to", "2")
    assert said == "broker 2 leads 4 of 4 partitions\n"
    await trio.sleep(0.3)  # several looks of the controller
    assert two.cluster.led_by(2, TOPIC) == list(range(COUNT))
    await two.cluster.broker(1).services.topics.create([NewTopic(name="other", partition_count=2)])
    await two.cluster.until_led("other", {1: 2, 2: 0})  # what nobody moved goes where there is less
    said = await two.kafscale("partitions", "balance")
    assert "4 partitions that were moved by hand may move again\n" in said
    assert "all moves are done: broker 1 leads 3, broker 2 leads 3\n" in said
    assert "0 partitions that were moved by hand" in await two.kafscale("partitions", "balance", TOPIC)


async def test_a_dry_run_of_balance_moves_nothing(two: Several) -> None:
    await two.kafscale("partitions", "move", TOPIC, "--to", "2")
    assert "there is no topic" in await two.kafscale("partitions", "balance", "nope", "--dry-run", code=1)
    with trio.fail_after(SOON_SECONDS):
        while not (shown := await two.kafscale.json("partitions", "balance", TOPIC, "--dry-run"))["moves"]:
            await trio.sleep(0.05)  # the controller has not been told all loads yet
    assert {(each["topic"], each["leader"], each["moves_to"]) for each in shown["moves"]} == {(TOPIC, 2, 1)}
    assert [(each["leads"], each["then_leads"]) for each in shown["brokers"]] == [(0, 2), (4, 2)]
    assert [each["bytes_per_second"] for each in shown["brokers"]] == [0, 0]
    said = await two.kafscale("partitions", "balance", "--dry-run")
    assert TOPIC in said
    assert two.cluster.led_by(2, TOPIC) == list(range(COUNT))


async def test_balance_without_a_brokers_plan_waits_for_even_leader_counts(
    two: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tells_nothing(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(brokers, "find_balance", tells_nothing)
    await two.kafscale("partitions", "move", TOPIC, "--to", "2")
    assert "there is no controller at present" in await two.kafscale("partitions", "balance", "--dry-run", code=1)
    said = await two.kafscale("partitions", "balance")
    assert "all moves are done: broker 1 leads 2, broker 2 leads 2\n" in said
    rows = await two.kafscale.json("brokers", "list")
    assert [each["bytes_per_second"] for each in rows] == [None, None]


async def test_a_partition_moved_by_hand_comes_back_after_a_drain(two: Several) -> None:
    index = two.cluster.led_by(1, TOPIC)[0]
    await two.kafscale("partitions", "move", TOPIC, str(index), "--to", "2")
    await two.kafscale("brokers", "drain", "2")
    assert len(two.cluster.led_by(1, TOPIC)) == COUNT
    await two.kafscale("brokers", "undrain", "2")
    await two.cluster.until_led(TOPIC, {1: COUNT // 2, 2: COUNT // 2})
    assert index in two.cluster.led_by(2, TOPIC)


async def test_moves_that_can_not_be_are_refused(two: Several) -> None:
    said = await two.kafscale("partitions", "move", TOPIC, "0", "--to", "7", code=1)
    assert "broker 7, but no such broker is registered" in said
    assert "has no partition 9" in await two.kafscale("partitions", "move", TOPIC, "9", "--to", "2", code=1)
    assert "there is no topic 'nope'" in await two.kafscale("partitions", "move", "nope", "--to", "2", code=1)
    assert "--to" in await two.kafscale("partitions", "move", TOPIC, code=2)
