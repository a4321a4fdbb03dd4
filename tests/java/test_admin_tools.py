"""Kafka's own Java tools for what administrators rarely ask: leaders, reassignments, configs of brokers."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafscale.cluster.registries.config_entries import broker_entries
from kafscale.config import Settings
from tests.api.kafka_apis import BROKER_APIS

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "FeatureCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"
TRANSACTIONS = "TransactionsCommand"


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
    split = (line.split("=", 2) for line in lines)
    kafkas = {name: (kind, None if default == "null" else default) for name, kind, default in split}
    told_otherwise = {  # null in Kafka, and worked out from others; here told as they are in effect
        *("advertised.listeners", "log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms"),
        *("log.dirs", "node.id"),
    }
    definitions = [entry.definition for entry in broker_entries(Settings(), ())]
    ours = {each.name: (each.type.name, each.default) for each in definitions}
    assert {name: kafkas[name][0] for name in ours} == {name: kind for name, (kind, _) in ours.items()}
    others = ours.keys() - told_otherwise
    assert {name: ours[name] for name in others} == {name: kafkas[name] for name in others}


def test_configs_of_a_broker_and_of_all_brokers_are_set_and_removed(java):
    one = (CONFIGS, "--entity-type", "brokers", "--entity-name", "0")
    default = (CONFIGS, "--entity-type", "brokers", "--entity-default")
    java(*default, "--alter", "--add-config", "log.cleaner.backoff.ms=30000")
    java(*one, "--alter", "--add-config", "log.cleaner.backoff.ms=20000,leader.replication.throttled.rate=5")
    backoff = "log.cleaner.backoff.ms"
    set_for_all = f"DYNAMIC_DEFAULT_BROKER_CONFIG:{backoff}=30000"
    synonyms = f"{{DYNAMIC_BROKER_CONFIG:{backoff}=20000, {set_for_all}, DEFAULT_CONFIG:{backoff}=15000}}"
    described = java(*one, "--describe")
    assert f"  {backoff}=20000 sensitive=false synonyms={synonyms}" in described
    assert "  leader.replication.throttled.rate=5 sensitive=false" in described
    assert f"  {backoff}=30000 sensitive=false synonyms={{{set_for_all}}}" in java(*default, "--describe")
    for entity in (one, default):
        java(*entity, "--alter", "--delete-config", backoff)
    java(*one, "--alter", "--delete-config", "leader.replication.throttled.rate")
    assert "DYNAMIC_BROKER_CONFIG" not in java(*one, "--describe")


def test_configs_of_brokers_are_described(java):
    brokers = (CONFIGS, "--entity-type", "brokers")
    described = java(*brokers, "--entity-name", "0", "--describe", "--all")
    assert "All configs for broker 0 are:" in described
    assert f"  advertised.listeners=PLAINTEXT://{java.bootstrap} sensitive=false" in described
    assert "  num.partitions=1 sensitive=false synonyms={DEFAULT_CONFIG:num.partitions=1}" in described
    assert f"  log.segment.bytes={64 << 20} sensitive=false synonyms={{DEFAULT_CONFIG:" in described
    # Only what was set while it ran; Kafka 4.1 sets this one for all brokers when a cluster is made.
    assert set(re.findall(r"^  (\S+)=", java(*brokers, "--describe"), re.MULTILINE)) == {"min.insync.replicas"}


def test_configs_of_brokers_are_read_only(java):
    alter = (CONFIGS, "--entity-type", "brokers", "--entity-name", "0", "--alter")
    with pytest.raises(AssertionError, match=r"Cannot update these configs dynamically: Set\(num.partitions\)"):
        java(*alter, "--add-config", "num.partitions=3")


def test_the_controller_is_the_only_voter(java):
    described = java("MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId:\s+0\n", described)
    assert re.search(r"HighWatermark:\s+[1-9]", described)
    assert re.search(rf'CurrentVoters:\s+\[{{"id": 0, "endpoints": \["PLAINTEXT://{java.bootstrap}"\]}}\]', described)
    assert re.search(r"CurrentObservers:\s+\[\]", described)
    assert re.search(r"MaxFollowerLag:\s+0\n", described)
    replication = java("MetadataQuorumCommand", "describe", "--replication").splitlines()
    assert [line.split()[0] for line in replication if line.rstrip().endswith("Leader")] == ["0"]
    assert "Follower" not in "".join(replication)


def test_features_have_the_levels_of_the_broker(java):
    rows = [re.findall(r": (\S+)", line) for line in java(FEATURES, "describe").splitlines()]
    assert ["metadata.version", "4.1-IV1", "4.1-IV1", "4.1-IV1", "0"] in rows
    assert ["transaction.version", "2", "2", "2", "0"] in rows
    assert "transaction.version was upgraded to 2." in java(FEATURES, "upgrade", "--feature", "transaction.version=2")
    assert "metadata.version was upgraded to 27." in java(FEATURES, "upgrade", "--metadata", "4.1-IV1")
    for verb, feature, why in (
        ("upgrade", "transaction.version=3", "Local controller 0 only supports versions 2"),
        ("downgrade", "transaction.version=1", "Local controller 0 only supports versions 2"),
        ("upgrade", "kraft.version=1", "Local controller 0 does not support this feature."),
        ("downgrade", "nope=0", "Feature nope not found."),
    ):
        with pytest.raises(AssertionError, match=re.escape(why)):
            java(FEATURES, verb, "--feature", feature)
    assert "share.version was disabled." in java(FEATURES, "disable", "--feature", "share.version")


def test_configs_of_groups_are_set_described_and_listed(java, name):
    group = ("--entity-type", "groups", "--entity-name", name)
    java(CONFIGS, "--alter", "--add-config", "consumer.session.timeout.ms=50000", *group)
    described = java(CONFIGS, "--describe", *group)
    assert "  consumer.session.timeout.ms=50000 sensitive=false synonyms={" in described
    assert "GROUP_CONFIG:consumer.session.timeout.ms=50000" in described
    assert "DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000" in described
    assert "consumer.heartbeat.interval.ms" not in described  # which is the broker's
    assert "consumer.heartbeat.interval.ms=5000" in java(CONFIGS, "--describe", "--all", *group)
    assert f"Dynamic configs for group {name} are:" in java(CONFIGS, "--describe", "--entity-type", "groups")
    with pytest.raises(AssertionError, match="session timeout must be between"):
        java(CONFIGS, "--alter", "--add-config", "consumer.session.timeout.ms=44000", *group)
    java(CONFIGS, "--alter", "--delete-config", "consumer.session.timeout.ms", *group)
    assert "consumer.session.timeout.ms" not in java(CONFIGS, "--describe", *group)


def producers(java, topic):
    """The rows that are told of the producers of its first partition, by column."""
    rows = java(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0").splitlines()
    header, *rows = (line.split() for line in rows)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_producers_are_described(java, name):
    create(java, name)
    assert producers(java, name) == []
    java("ProducerPerformance", "--topic", name, "--num-records", "10", "--record-size", "10", "--throughput", "-1")
    (found,) = producers(java, name)
    assert (found["LatestCoordinatorEpoch"], found["LastSequence"]) == ("-1", "9")
    assert found["CurrentTransactionStartOffset"] == "None"


def test_open_transactions_are_described_and_do_not_hang(java, name):
    create(java, name)
    producer = Producer({"bootstrap.servers": java.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"value")
    assert producer.flush(30) == 0
    assert [each["CurrentTransactionStartOffset"] for each in producers(java, name)] == ["0"]
    hanging = java(TRANSACTIONS, "find-hanging", "--broker-id", "0", "--max-transaction-timeout", "0").splitlines()
    assert [line.split()[0] for line in hanging] == ["Topic"]
    producer.abort_transaction(30)
    assert [each["CurrentTransactionStartOffset"] for each in producers(java, name)] == ["None"]


def test_sizes_of_partitions_are_in_the_only_directory(java, name):
    create(java, name, 2)
    java("ProducerPerformance", "--topic", name, "--num-records", "10", "--record-size", "1000", "--throughput", "-1")
    said = java("LogDirsCommand", "--describe", "--topic-list", name)
    (broker,) = json.loads(said.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert (broker["broker"], directory["error"]) == (0, None)
    assert directory["logDir"].startswith("file:")
    partitions = {each["partition"]: each for each in directory["partitions"]}
    assert partitions.keys() == {f"{name}-0", f"{name}-1"}
    assert 10_000 < sum(each["size"] for each in partitions.values()) < 20_000
    assert {(each["offsetLag"], each["isFuture"]) for each in partitions.values()} == {(0, False)}


def test_moving_a_replica_to_its_current_log_dir_succeeds(java, name, tmp_path):
    create(java, name)
    said = java("LogDirsCommand", "--describe", "--topic-list", name)
    ((directory,),) = [each["logDirs"] for each in json.loads(said.splitlines()[-1])["brokers"]]
    file = tmp_path / "directories.json"
    row = {"topic": name, "partition": 0, "replicas": [0], "log_dirs": [directory["logDir"]]}
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    said = java(REASSIGN, "--execute", "--reassignment-json-file", str(file))
    assert f"Successfully started moving log directory to {directory['logDir']} for replica {name}-0 with" in said
    said = java(REASSIGN, "--verify", "--reassignment-json-file", str(file))
    assert f"Reassignment of replica {name}-0-0 completed successfully." in said
    row["log_dirs"] = ["/elsewhere"]
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    with pytest.raises(AssertionError, match=f"Failed to alter dir for {name}-0-0[^$]*LogDirNotFoundException"):
        java(REASSIGN, "--execute", "--reassignment-json-file", str(file))


def test_our_table_of_kafka_broker_apis_matches_kafka(java):
    lines = java.source(str(Path(__file__).parent / "BrokerApis.java")).splitlines()
    assert sorted(lines) == sorted(f"{key} {api.name} {api.oldest} {api.newest}" for key, api in BROKER_APIS.items())
