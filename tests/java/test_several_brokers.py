"""Kafka's own Java tools against three brokers that share a bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.peers.kafka import class_path
from tests.devtools.external.clients import wait_until
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes
from tests.java.java_tools import JavaTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"
QUORUM = "MetadataQuorumCommand"
ROW = re.compile(r"Partition: (\d+)\s+Leader: (\w+)\s+Replicas: ([\d,]*)\s+Isr: ([\d,]*)")
CLUSTER_SECONDS = 60.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[Sequence[BrokerProcess]]:
    with broker_processes(3) as running:
        yield running


@pytest.fixture(scope="module")
def java(brokers: Sequence[BrokerProcess]) -> JavaTools:
    return JavaTools(bootstrap=bootstrap_of(brokers), class_path=class_path())


Describe = Callable[[], list[tuple[str, str, str]]]


@pytest.fixture
def describe(java: JavaTools, name: str) -> Describe:
    """Return leader, replicas and ISR of each partition of this test's topic."""

    def rows() -> list[tuple[str, str, str]]:
        return [found[1:] for found in ROW.findall(java("TopicCommand", "--describe", "--topic", name))]

    return rows


def create(java: JavaTools, name: str, partitions: int, factor: int = 1) -> None:
    options = ["--partitions", str(partitions), "--replication-factor", str(factor)]
    java("TopicCommand", "--create", "--topic", name, *options)


def assignment(file: Path, topic: str, replicas: Sequence[Sequence[int]]) -> str:
    """Write a reassignment's file: the replicas of each partition."""
    rows = [{"topic": topic, "partition": index, "replicas": each} for index, each in enumerate(replicas)]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def drain(java: JavaTools, broker_id: int, value: bool) -> None:
    alter = ("--alter", "--add-config", f"kafscale.draining={str(value).lower()}")
    java(CONFIGS, "--entity-type", "brokers", "--entity-name", str(broker_id), *alter)


def test_partitions_are_spread_over_the_brokers(java: JavaTools, name: str, describe: Describe) -> None:
    create(java, name, 6, 3)
    rows = describe()
    assert sorted(leader for leader, *_ in rows) == list("112233")
    assert all(replicas == isr == ",".join([leader] * 3) for leader, replicas, isr in rows)
    assert java("TopicCommand", "--describe", "--unavailable-partitions", "--topic", name).strip() == ""


def test_a_reassignment_is_executed_and_verified(
    java: JavaTools, name: str, describe: Describe, tmp_path: Path
) -> None:
    create(java, name, 3, 3)
    wanted = [[2, 1, 3], [2, 3, 1], [3, 2, 1]]
    file = assignment(tmp_path / "wanted.json", name, wanted)
    said = java(REASSIGN, "--execute", "--reassignment-json-file", file)
    assert f"Successfully started partition reassignments for {name}-0,{name}-1,{name}-2" in said
    done = [f"Reassignment of partition {name}-{index} is completed." for index in range(3)]

    def is_complete() -> bool:
        said = java(REASSIGN, "--verify", "--reassignment-json-file", file)
        return all(line in said for line in done)

    wait_until(is_complete, "the reassignment is complete", seconds=CLUSTER_SECONDS)
    replicas = [",".join(map(str, each)) for each in wanted]
    assert describe() == [(each[0], each, each) for each in replicas]
    assert "No partition reassignments found." in java(REASSIGN, "--list")


def test_a_reassignment_is_cancelled(
    java: JavaTools, name: str, describe: Describe, tmp_path: Path, brokers: Sequence[BrokerProcess]
) -> None:
    create(java, name, 1)
    ((leader, *_),) = describe()
    target = int(leader) % 3 + 1
    obstacle = brokers[0].directory.parent / "bucket" / "default" / name  # nothing of the topic can be uploaded
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.write_text("")
    producer = Producer({"bootstrap.servers": java.bootstrap})
    producer.produce(name, b"value")
    assert producer.flush(30) == 0
    file = assignment(tmp_path / "elsewhere.json", name, [[target]])
    java(REASSIGN, "--execute", "--reassignment-json-file", file)
    said = java(REASSIGN, "--list")
    assert f"{name}-0: replicas: {target},{leader}. adding: {target}. removing: {leader}." in said
    said = java(REASSIGN, "--verify", "--reassignment-json-file", file)
    assert f"Reassignment of partition {name}-0 is still in progress." in said
    said = java(REASSIGN, "--cancel", "--reassignment-json-file", file)
    assert f"Successfully cancelled partition reassignment for: {name}-0" in said
    assert "No partition reassignments found." in java(REASSIGN, "--list")
    obstacle.unlink()
    assert describe() == [(leader, leader, leader)]


def test_a_broker_is_drained_and_partitions_are_led_by_the_preferred_one_again(
    java: JavaTools, name: str, describe: Describe, tmp_path: Path
) -> None:
    create(java, name, 2)
    file = assignment(tmp_path / "wanted.json", name, [[3], [3]])
    java(REASSIGN, "--execute", "--reassignment-json-file", file)
    wait_until(lambda: [each[0] for each in describe()] == ["3", "3"], "broker 3 leads", seconds=CLUSTER_SECONDS)
    drain(java, 3, True)
    said = java(CONFIGS, "--entity-type", "brokers", "--entity-name", "3", "--describe")
    assert "kafscale.draining=true sensitive=false" in said
    wait_until(lambda: "3" not in [each[0] for each in describe()], "broker 3 is drained", seconds=CLUSTER_SECONDS)
    drain(java, 3, False)
    said = java("LeaderElectionCommand", "--election-type", "preferred", "--topic", name, "--partition", "0")
    assert re.search(rf"(Successfully completed|Valid replica already elected).*{name}-0", said)  # perhaps by balance
    assert describe()[0] == ("3", "3", "3")
    java("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    assert describe()[1] == ("3", "3", "3")


def test_the_controller_is_the_voter_and_the_others_observe(java: JavaTools) -> None:
    described = java(QUORUM, "describe", "--status")
    leader = re.findall(r"LeaderId:\s+(\d)\n", described)
    assert re.findall(r"CurrentVoters:\s+\[{\"id\": (\d),", described) == leader
    others = re.findall(r"CurrentObservers:\s+\[(.*)\]", described)
    assert sorted(re.findall(r"\"id\": (\d)", others[0])) == sorted({"1", "2", "3"} - set(leader))
    rows = [line.split() for line in java(QUORUM, "describe", "--replication").splitlines()[1:]]
    roles = {row[0]: row[-1] for row in rows if row}
    assert roles == {each: "Leader" if [each] == leader else "Observer" for each in "123"}


def test_an_unclean_election_moves_partitions_of_a_dead_broker_to_others(
    java: JavaTools, name: str, describe: Describe, brokers: Sequence[BrokerProcess]
) -> None:
    create(java, name, 3)
    brokers[1].kill()  # with --durability wal: what it led waits for it
    wait_until(lambda: ("none", "2", "") in describe(), "broker 2 is known to be dead", seconds=CLUSTER_SECONDS)
    said = java("TopicCommand", "--describe", "--unavailable-partitions", "--topic", name)
    assert [found[1:] for found in ROW.findall(said)] == [("none", "2", "")]
    elect = ("LeaderElectionCommand", "--topic", name, "--partition", ROW.findall(said)[0][0], "--election-type")
    with pytest.raises(AssertionError, match="preferred leader was not available"):
        java(*elect, "preferred")
    assert "Successfully completed leader election (UNCLEAN)" in java(*elect, "unclean")
    assert {leader for leader, *_ in describe()} == {"1", "3"}
    brokers[1].start()
    wait_until(lambda: "2" in [each[0] for each in describe()], "broker 2 leads again", seconds=CLUSTER_SECONDS)


def test_a_broker_is_listed_stopped_and_removed(java: JavaTools, brokers: Sequence[BrokerProcess]) -> None:
    """The last test of this module: broker 3 does not run behind it."""
    listed = java("ClusterTool", "list-endpoints")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["1", "2", "3"]
    with pytest.raises(AssertionError, match="Broker 3 serves: stop it before it is removed"):
        java("ClusterTool", "unregister", "--id", "3")
    brokers[2].stop()  # which has others lead what it led

    def is_fenced() -> bool:
        listed = java("ClusterTool", "list-endpoints", "--include-fenced-brokers")
        return "fenced" in listed.splitlines()[3]

    wait_until(is_fenced, "broker 3 is known to have stopped", seconds=CLUSTER_SECONDS)
    assert "Broker 3 is no longer registered." in java("ClusterTool", "unregister", "--id", "3")
    listed = java("ClusterTool", "list-endpoints", "--include-fenced-brokers")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["1", "2"]
    with pytest.raises(AssertionError, match="Broker ID 3 is not registered"):
        java("ClusterTool", "unregister", "--id", "3")
