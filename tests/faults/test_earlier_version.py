"""An earlier version beside this one: brokers that share a bucket are upgraded one by one, and die, under load.

The earlier version is a commit of this repository, whose code runs as processes of its own: brokers of it ask each
other of transactions by a field of ListTransactions, and lone brokers run by code of their own. The tests are skipped
without the history, as in an archive of the sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.devtools.external.clients import read_committed
from tests.devtools.processes.cluster_load import ClusterLoad
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes
from tests.docs.blocks import blocks_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

EARLIER = "41639fc2a3cab9d33db060f0fb0168dd6d543e22"
REPOSITORY = Path(__file__).parent.parent.parent
PAGE = (REPOSITORY / "docs" / "how-to" / "upgrade.md").read_text()
STOP, START = (f"sudo systemctl {verb} kafscale" for verb in ("stop", "start"))
PARTITION_COUNT = 6
QUIET_SECONDS = 3.0  # under load, between two restarts
AWAY_SECONDS = 5.0  # longer than others wait for a broker that is silent
ACKNOWLEDGED_LEAST_COUNT = 500
STOP_SECONDS = 120.0  # one where nothing else runs
RECORDS_COUNT = 600
COMMITTED_OFFSET = 7


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the package of the earlier version."""
    directory = tmp_path_factory.mktemp("earlier")
    archive = directory / "archive.tar"
    made = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "--output", str(archive), EARLIER, "kafscale"], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"the history of this repository has no commit {EARLIER}")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert (directory / "kafscale" / "broker_components.py").exists()
    found = subprocess.run(
        [sys.executable, "-P", "-c", "import kafscale; print(kafscale.__file__)"],
        env={"PYTHONPATH": str(directory)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(directory)
    return directory


def restart_as(broker: BrokerProcess, package: Path | None) -> None:
    broker.package = package
    broker.restart()


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_an_upgrade_one_by_one_loses_nothing_and_can_be_taken_back(durability: str, earlier: Path) -> None:
    with broker_processes(3, "--durability", durability, package=earlier) as brokers:
        with ClusterLoad(bootstrap_of(brokers), "orders", PARTITION_COUNT) as load:
            for broker in brokers:  # the first is the controller, until it is restarted
                time.sleep(QUIET_SECONDS)
                restart_as(broker, None)
            for package in (earlier, None):
                time.sleep(QUIET_SECONDS)
                restart_as(brokers[0], package)
        report = load.read_back()
    print(f"an upgrade one by one, {durability}: {report}")
    assert report.problems == []
    assert report.acknowledged_count > ACKNOWLEDGED_LEAST_COUNT


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_a_broker_of_each_version_that_is_killed_is_replaced_by_the_others(durability: str, earlier: Path) -> None:
    with broker_processes(3, "--durability", durability, package=earlier) as brokers:
        restart_as(brokers[0], None)
        with ClusterLoad(bootstrap_of(brokers), "orders", PARTITION_COUNT) as load:
            for broker in (brokers[0], brokers[1], brokers[0]):  # of this version, of the earlier one, and once more
                time.sleep(QUIET_SECONDS)
                broker.kill()
                time.sleep(AWAY_SECONDS)  # with a log of its own nobody else leads what it led
                broker.start()
            time.sleep(QUIET_SECONDS)
        report = load.read_back()
    print(f"a broker of each version killed, {durability}: {report}")
    assert report.problems == []
    assert report.acknowledged_count > ACKNOWLEDGED_LEAST_COUNT


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_a_lone_broker_serves_the_data_of_the_earlier_version(
    durability: str, end: str, earlier: Path, tmp_path: Path
) -> None:
    """Records that are flushed and not, an open and a committed transaction, offsets of a group, a topic's config."""
    with BrokerProcess(directory=tmp_path, options=["--durability", durability], package=earlier) as broker:
        client = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(client)
        for created in admin.create_topics([NewTopic("orders", 3, config={"retention.ms": "777000000"})]).values():
            created.result()
        values = [f"value {number}" for number in range(RECORDS_COUNT)]
        produce(client, values[: RECORDS_COUNT // 2])
        commit_offset(client)
        flush(broker)
        produce(client, values[RECORDS_COUNT // 2 :])
        committed, abandoned = (Producer({**client, "transactional.id": name}) for name in ("kept", "lost"))
        for producer, value in ((committed, "committed"), (abandoned, "open")):
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("orders", value, partition=0)
            producer.flush()
        committed.commit_transaction()
        getattr(broker, end)()
        broker.package = None
        broker.start()
        abandoned = Producer({**client, "transactional.id": "lost"})
        abandoned.init_transactions()  # aborts the open one
        produce(client, ["new"])
        partitions = read_committed(broker.bootstrap, "orders", 3, len(values) + 2)
        found = [message.value().decode() for messages in partitions for message in messages]
        assert sorted(found) == sorted([*values, "committed", "new"])
        described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "orders")])
        assert next(iter(described.values())).result()["retention.ms"].value == "777000000"
        assert committed_offset(client) == COMMITTED_OFFSET


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_the_page_on_upgrades_can_be_followed(durability: str, earlier: Path, tmp_path: Path) -> None:
    """A lone broker is upgraded by the page's commands and taken back by them, with a record written by each."""
    there, back = [text for language, text in blocks_of(PAGE) if language == "sh"]
    with BrokerProcess(directory=tmp_path, options=["--durability", durability], package=earlier) as broker:
        client = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(client)
        admin.create_topics([NewTopic("orders", 3)])["orders"].result()
        produce(client, ["earlier"])
        commit_offset(client)
        follow(there, broker, None)
        produce(client, ["later"])
        assert committed_offset(client) == COMMITTED_OFFSET
        follow(back, broker, earlier)
        produce(client, ["earlier again"])
        assert committed_offset(client) == COMMITTED_OFFSET
        follow(there, broker, None)
        partitions = read_committed(broker.bootstrap, "orders", 3, 3)
        found = [message.value().decode() for messages in partitions for message in messages]
        assert sorted(found) == ["earlier", "earlier again", "later"]


def follow(script: str, broker: BrokerProcess, package: Path | None) -> None:
    """Run commands of the page by this version's `kafscale`, with the process as the unit `kafscale`."""
    assert [script.count(command) for command in (STOP, START)] == [1, 1]
    environ = {**os.environ, "KAFSCALE_BOOTSTRAP": broker.bootstrap, "KAFSCALE_ADMIN_LISTEN": str(broker.admin)}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    for command in script.splitlines():
        if command == STOP:
            assert broker.stop(STOP_SECONDS) == 0
        elif command == START:
            broker.package = package
            broker.start()
        else:
            subprocess.run(["bash", "-euc", command], env=environ, check=True, capture_output=True, timeout=60)


def produce(client: dict[str, str], values: Sequence[str]) -> None:
    producer = Producer({**client, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce("orders", value, partition=number % 3)
    assert producer.flush(30) == 0


def commit_offset(client: dict[str, str]) -> None:
    consumer = Consumer({**client, "group.id": "earlier"})
    consumer.commit(offsets=[TopicPartition("orders", 1, COMMITTED_OFFSET)], asynchronous=False)
    consumer.close()


def committed_offset(client: dict[str, str]) -> int:
    consumer = Consumer({**client, "group.id": "earlier"})
    (found,) = consumer.committed([TopicPartition("orders", 1)], timeout=30)
    consumer.close()
    return int(found.offset)


def flush(broker: BrokerProcess) -> None:
    with urlopen(Request(f"http://{broker.admin}/flush", method="POST"), timeout=60) as answer:
        assert answer.status == 200
