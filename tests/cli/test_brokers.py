"""`kafscale brokers`, against whole brokers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

from kafscale.broker import Broker
from kafscale.cli.main import run
from kafscale.cluster.membership.records import BrokerState
from kafscale.cluster.registries.topics import NewTopic
from kafscale.config import Address, Listener, StoreUrl
from tests.cli.conftest import CommandLine
from tests.cli.loopback_cluster import SOON_SECONDS, LoopbackCluster, loopback_cluster
from tests.devtools.fakes.memory_broker import memory_settings

TOPIC = "orders"
COUNT = 6


@attrs.define(eq=False)
class Several:
    """Brokers that share a bucket, and the command line, which asks the first of them."""

    cluster: LoopbackCluster
    kafscale: CommandLine

    async def create(self, name: str = TOPIC, count: int = COUNT) -> None:
        """Create a topic, and wait until its partitions are led."""
        await self.cluster.broker(1).services.topics.create([NewTopic(name=name, partition_count=count)])
        each, more = divmod(count, len(self.cluster.members))
        assert not more
        await self.cluster.until_led(name, dict.fromkeys(self.cluster.members, each))


@pytest.fixture
async def two(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Several]:
    async with loopback_cluster(2, rack="zone-a", broker_session_timeout_seconds=0.6) as cluster:
        yield Several(cluster, CommandLine(cluster.address(1), None, capsys))  # type: ignore[arg-type]


async def test_brokers_list_includes_stopped_brokers(two: Several) -> None:
    await two.create()
    rows = await two.kafscale.json("brokers", "list")
    assert [(each["broker"], each["address"]) for each in rows] == [
        (each, str(two.cluster.address(each))) for each in (1, 2)
    ]
    assert [(each["rack"], each["state"], each["draining"]) for each in rows] == [("zone-a", "live", False)] * 2
    assert [each["controller"] for each in rows] == [True, False]
    assert [each["leads"] for each in rows] == [COUNT // 2] * 2
    assert rows[0]["version"] == rows[1]["version"] != ""
    await two.cluster.stop(2)
    rows = await two.kafscale.json("brokers", "list")
    assert [each["state"] for each in rows] == ["live", "stopped"]
    assert "stopped" in await two.kafscale("brokers", "list")


async def test_brokers_describe_shows_the_partitions_that_a_broker_leads(two: Several) -> None:
    await two.create()
    with trio.fail_after(SOON_SECONDS):
        while (described := await two.kafscale.json("brokers", "describe", "2"))["bytes_per_second"] is None:
            await trio.sleep(0.05)  # the controller has not been told all loads yet
    led = two.cluster.led_by(2, TOPIC)
    assert described["leads"] == len(led) == COUNT // 2
    assert described["bytes_per_second"] == 0
    assert described["partitions"] == [
        {"topic": TOPIC, "partition": index, "moves_to": None, "bytes_per_second": None} for index in led
    ]
    said = await two.kafscale("brokers", "describe", "7", code=1)
    assert "there is no broker 7; the brokers are 1, 2" in said


async def test_a_broker_is_drained_and_leads_again(two: Several) -> None:
    await two.create()
    said = await two.kafscale("brokers", "drain", "2")
    assert said == "broker 2 leads no partitions; 3 have moved to others\n"
    assert (two.cluster.led_by(1, TOPIC), two.cluster.led_by(2, TOPIC)) == (list(range(COUNT)), [])
    await two.cluster.broker(1).services.topics.create([NewTopic(name="later", partition_count=2)])
    await two.cluster.stop(2)
    await two.cluster.start(2)  # drained is drained, also after a start
    rows = await two.kafscale.json("brokers", "list")
    assert [(each["draining"], each["leads"]) for each in rows] == [(False, COUNT + 2), (True, 0)]
    assert await two.kafscale("brokers", "undrain", "2") == "broker 2 may lead partitions\n"
    await two.cluster.until_led(TOPIC, {1: COUNT // 2, 2: COUNT // 2})
    assert "it was not drained" in await two.kafscale("brokers", "undrain", "2")


async def test_the_last_broker_is_not_drained(two: Several) -> None:
    await two.create()
    await two.kafscale("brokers", "drain", "2")
    said = await two.kafscale("brokers", "drain", "1", code=1)
    assert "no other broker runs that may lead what it leads" in said
    await two.kafscale("brokers", "undrain", "2")
    await two.cluster.until_led(TOPIC, {1: COUNT // 2, 2: COUNT // 2})


async def test_a_drain_continues_after_the_commands_timeout(two: Several) -> None:
    await two.create()
    said = await two.kafscale("brokers", "drain", "2", "--timeout", "1us", code=1)
    assert "still leads 3 partitions" in said
    assert "kafscale brokers undrain 2" in said
    await two.cluster.until_led(TOPIC, {1: COUNT, 2: 0})


async def test_a_broker_is_forgotten_that_has_stopped_and_leads_nothing(two: Several) -> None:
    await two.create()
    said = await two.kafscale("brokers", "remove", "2", code=1)
    assert "Broker 2 serves: stop it before" in said
    await two.kafscale("brokers", "drain", "2")
    await two.cluster.stop(2)
    assert await two.kafscale("brokers", "remove", "2") == "broker 2 is removed\n"
    assert [each["broker"] for each in await two.kafscale.json("brokers", "list")] == [1]
    assert "there is no broker 2; the brokers are 1," in await two.kafscale("brokers", "remove", "2", code=1)
    await two.cluster.start(2)  # it joins anew, and is not drained
    await two.cluster.until_led(TOPIC, {1: COUNT // 2, 2: COUNT // 2})


async def test_partitions_wait_for_a_broker_that_has_stopped(two: Several) -> None:
    await two.cluster.stop(2)
    await two.cluster.start(2, shutdown_timeout_seconds=0.0)  # no time to hand over
    await two.create()
    waiting = two.cluster.led_by(2, TOPIC)
    await two.cluster.stop(2)
    described = await two.kafscale.json("brokers", "describe", "2")
    assert (described["state"], [each["partition"] for each in described["partitions"]]) == ("stopped", waiting)
    said = await two.kafscale("brokers", "drain", "2", code=1)
    assert "broker 2 doesn't serve (stopped), and 3 partitions wait for it: start it" in said
    said = await two.kafscale("brokers", "remove", "2", code=1)
    assert "3 partitions wait for it. Start it and drain it, or have others lead them" in said


async def wait_until_away(two: Several, broker_id: int) -> None:
    membership = two.cluster.broker(1).services.membership
    with trio.fail_after(SOON_SECONDS):
        while broker_id not in membership.records or membership.records[broker_id].state is BrokerState.LIVE:
            await trio.sleep(0.02)


async def test_a_lost_brokers_partitions_move_only_if_the_loss_is_accepted(two: Several) -> None:
    await two.cluster.stop(2)
    await two.cluster.start(2)
    await two.create()
    said = await two.kafscale("brokers", "replace", "2", code=1)
    assert "broker 2 serves: `kafscale brokers drain 2` moves its partitions" in said
    await two.cluster.kill(2)
    await wait_until_away(two, 2)
    said = await two.kafscale("brokers", "replace", "2", code=1)
    assert "3 partitions wait for broker 2: start it again on its data directory to lose nothing" in said
    assert "3 partitions wait for it" in await two.kafscale("brokers", "remove", "2", code=1)
    said = await two.kafscale("brokers", "replace", "2", "--accept-loss")
    assert said == "others lead the 3 partitions that broker 2 led\n"
    await two.cluster.until_led(TOPIC, {1: COUNT})
    (first, second) = await two.kafscale.json("brokers", "list")
    assert (first["leads"], second["state"], second["leads"]) == (COUNT, "fenced", 0)
    await two.cluster.start(2)  # it comes back all the same, as one that joins
    await two.cluster.until_led(TOPIC, {1: COUNT // 2, 2: COUNT // 2})


async def test_a_lost_broker_that_led_nothing_is_removed(two: Several) -> None:
    await two.cluster.kill(2)
    await wait_until_away(two, 2)
    assert "others lead the 0 partitions" in await two.kafscale("brokers", "replace", "2")
    assert await two.kafscale("brokers", "remove", "2") == "broker 2 is removed\n"


async def test_a_broker_alone_is_listed_and_can_not_be_drained(capsys: pytest.CaptureFixture[str]) -> None:
    async with loopback_cluster(0, several_brokers=False) as cluster:
        await cluster.start(1)
        kafscale = CommandLine(cluster.address(1), None, capsys)  # type: ignore[arg-type]
        (row,) = await kafscale.json("brokers", "list")
        assert (row["broker"], row["state"], row["draining"], row["version"]) == (1, "live", False, None)
        said = await kafscale("brokers", "drain", "1", code=1)
        assert "kafscale.draining" in said
        await trio.lowlevel.checkpoint()


async def test_commands_ask_the_first_broker_that_answers(two: Several, capsys: pytest.CaptureFixture[str]) -> None:
    await two.cluster.stop(1)
    both = f"{two.cluster.address(1)},{two.cluster.address(2)}"
    assert await trio.to_thread.run_sync(run, ["brokers", "list", "--json", "--bootstrap", both]) == 0
    assert [each["state"] for each in json.loads(capsys.readouterr().out)] == ["stopped", "live"]
    assert await trio.to_thread.run_sync(run, ["brokers", "list", "--bootstrap", str(two.cluster.address(1))]) == 1
    assert f"can't connect to {two.cluster.address(1)}" in capsys.readouterr().err
    assert await trio.to_thread.run_sync(run, ["brokers", "list", "--bootstrap", "here,there"]) == 2


def test_the_last_broker_has_the_bucket_to_itself_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--broker-id", "1", "--store", f"file:{tmp_path / 'bucket'}", "--data-dir", str(tmp_path / "data")]
    (tmp_path / "bucket").mkdir()
    assert run(["brokers", "unshare", *where]) == 1
    assert "the bucket is not shared" in capsys.readouterr().err

    async def use(is_shared: bool) -> None:
        settings = memory_settings(
            broker_id=1,
            several_brokers=is_shared,
            store=StoreUrl(scheme="file", path=tmp_path / "bucket"),
            data_dir=tmp_path / "data",
            listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),),
            admin_listen=Address("127.0.0.1", 0),
        )
        async with trio.open_nursery() as nursery:
            broker = Broker(settings)
            await nursery.start(broker.run)
            assert bool(broker.services.membership.records) == is_shared
            if is_shared:
                await broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
                assert await trio.to_thread.run_sync(run, ["brokers", "unshare", *where]) == 1
                assert "in use by process" in capsys.readouterr().err
            assert broker.services.topics.get(TOPIC) is not None
            broker.stop()

    trio.run(use, True)
    for _ in range(2):
        assert run(["brokers", "unshare", *where]) == 0
        assert "broker 1 has the bucket to itself" in capsys.readouterr().out
    trio.run(use, False)
