"""Kafka's own Java tools for what administrators rarely ask: leaders, reassignments, configs of brokers."""

import json
import re
from pathlib import Path

import pytest

from kafscale.cluster.configs.broker_configs import broker_entries
from kafscale.config import Settings

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"


def create(java, topic, partitions=1, *arguments):
    java("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions), *arguments)


def assignment(topic, replicas):
    """A reassignment's file: the replicas of each partition."""
    rows = [{"topic": topic, "partition": index, "replicas": each} for index, each in enumerate(replicas)]
    return json.dumps({"version": 1, "partitions": rows})


def test_a_topic_of_more_than_a_page_is_described(java, name):
    create(java, name, 2003)
    described = java("TopicCommand", "--describe", "--topic", name)
    rows = re.findall(r"Partition: (\d+)\s+Leader: 0\s+Replicas: 0\s+Isr: 0\s+Elr:\s+LastKnownElr:", described)
    assert [int(row) for row in rows] == list(range(2003))


@pytest.mark.parametrize("election_type", ["preferred", "unclean"])
def test_no_leader_needs_to_be_elected(java, name, election_type):
    create(java, name, 2)
    elect = ["LeaderElectionCommand", "--election-type", election_type]
    assert f"Valid replica already elected for partitions {name}-1" in java(*elect, "--topic", name, "--partition", "1")
    assert java(*elect, "--all-topic-partitions") == ""


def test_a_reassignment_to_the_same_broker_is_complete_at_once(java, name, tmp_path):
    create(java, name, 2)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": name}]}))
    said = java(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "0")
    proposed = json.loads(said.splitlines()[-1])
    assert [(each["topic"], each["replicas"]) for each in proposed["partitions"]] == [(name, [0])] * 2
    file = tmp_path / "proposed.json"
    file.write_text(json.dumps(proposed))
    said = java(REASSIGN, "--execute", "--reassignment-json-file", str(file))
    assert f"Successfully started partition reassignments for {name}-0,{name}-1" in said
    assert "No partition reassignments found." in java(REASSIGN, "--list")
    said = java(REASSIGN, "--verify", "--reassignment-json-file", str(file))
    assert f"Reassignment of partition {name}-0 is completed." in said
    assert f"Reassignment of partition {name}-1 is completed." in said


def test_a_reassignment_to_a_broker_that_is_not_there_is_refused(java, name, tmp_path):
    create(java, name)
    file = tmp_path / "elsewhere.json"
    file.write_text(assignment(name, [[1]]))
    with pytest.raises(AssertionError, match="Unknown broker id 1"):
        java(REASSIGN, "--execute", "--reassignment-json-file", str(file))


def test_configs_of_brokers_are_kafkas_with_its_types_and_defaults(java):
    lines = java.source(str(Path(__file__).parent / "BrokerDefaults.java")).splitlines()
    kafkas = {name: (kind, default) for name, kind, default in (line.split("=", 2) for line in lines)}
    told_otherwise = {  # null in Kafka, and worked out from others; here told as they are in effect
        *("advertised.listeners", "log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms"),
        *("log.dirs", "node.id"),
    }
    definitions = [entry.definition for entry in broker_entries(Settings(), ())]
    ours = {each.name: (each.type.name, each.default) for each in definitions}
    assert {name: kafkas[name][0] for name in ours} == {name: kind for name, (kind, _) in ours.items()}
    others = ours.keys() - told_otherwise
    assert {name: ours[name] for name in others} == {name: kafkas[name] for name in others}


def test_configs_of_brokers_are_described(java):
    brokers = (CONFIGS, "--entity-type", "brokers")
    described = java(*brokers, "--entity-name", "0", "--describe", "--all")
    assert "All configs for broker 0 are:" in described
    assert f"  advertised.listeners=PLAINTEXT://{java.bootstrap} sensitive=false" in described
    assert "  num.partitions=1 sensitive=false synonyms={DEFAULT_CONFIG:num.partitions=1}" in described
    assert f"  log.segment.bytes={64 << 20} sensitive=false synonyms={{STATIC_BROKER_CONFIG:" in described
    assert "sensitive" not in java(*brokers, "--describe")  # only what was set while it ran


def test_configs_of_brokers_are_read_only(java):
    alter = (CONFIGS, "--entity-type", "brokers", "--entity-name", "0", "--alter")
    with pytest.raises(AssertionError, match=r"Cannot update these configs dynamically: Set\(num.partitions\)"):
        java(*alter, "--add-config", "num.partitions=3")
