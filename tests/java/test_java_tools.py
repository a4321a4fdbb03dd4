"""Kafka's own Java tools, which are the Java client: run by `make test-java`."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bench.peers.kafka import class_path
from kafscale.api.table import APIS
from tests.devtools.external.clients import CODECS, Acknowledged
from tests.java.java_tools import JavaTools, table

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

GROUPS = "consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RANGE, COOPERATIVE = (f"org.apache.kafka.clients.consumer.{each}Assignor" for each in ("Range", "CooperativeSticky"))


def create(java, topic, partitions=1, *arguments):
    java("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions), *arguments)


def produce_numbers(java, topic, count, *arguments):
    """Values 0 to count - 1; returns when all are acknowledged.

    Where there are several brokers the topic is made before: the tool tries nothing again, and who leads a partition of
    a topic that another broker has just made may not know it yet.
    """
    if nodes_count(java) > 1:
        create(java, topic, 1, "--if-not-exists")
    with java.start("VerifiableProducer", "--topic", topic, "--max-messages", str(count), *arguments) as producer:
        assert producer.wait() == 0
        assert len(producer.named("producer_send_success")) == count


def nodes_count(java):
    return java.bootstrap.count(",") + 1


def offsets(java, topic, time):
    """Offset by partition, as GetOffsetShell has it."""
    lines = java("GetOffsetShell", "--topic", topic, "--time", str(time)).split()
    return {int(line.split(":")[1]): int(line.split(":")[2]) for line in lines}


def test_the_version_tool_lists_the_versions_of_the_api_table(java):
    said = java("BrokerApiVersionsCommand")
    found = {
        (int(key), int(low), int(high or low))
        for key, low, high in re.findall(r"\((\d+)\): (\d+)(?: to (\d+))? \[usable", said)
    }
    assert found == {(api.key, api.min_version, api.max_version) for api in APIS}


def test_client_compatibility(java, name):
    supported = [
        argument
        for each in ("offsets-for-times", "cluster-id", "create-topics", "describe-configs", "idempotent-producer")
        for argument in (f"--{each}-supported", "True")
    ]
    said = java(
        *("ClientCompatibilityTest", "--topic", name, "--num-cluster-nodes", str(nodes_count(java)), *supported),
        *("--describe-acls-supported", "True", "--expect-record-too-large-exception", "False"),
    )
    assert "SUCCESS." in said


def test_topics(java, name):
    create(java, name, 3, "--config", "retention.ms=3600000")
    assert name in java("TopicCommand", "--list").split()
    java("TopicCommand", "--alter", "--topic", name, "--partitions", "5")
    described = java("TopicCommand", "--describe", "--topic", name)
    assert "PartitionCount: 5" in described
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Leader: (\d)\s+Replicas: \1\s+Isr: \1\s", described)) == 5
    java("TopicCommand", "--delete", "--topic", name)
    assert name not in java("TopicCommand", "--list").split()


def test_topic_configs_are_altered(java, name):
    create(java, name)
    entity = ["--entity-type", "topics", "--entity-name", name]
    java(CONFIGS, *entity, "--alter", "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    described = java(CONFIGS, *entity, "--describe")
    assert "retention.ms=1000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000" in described
    assert "cleanup.policy=compact,delete" in described
    java(CONFIGS, *entity, "--alter", "--delete-config", "retention.ms,cleanup.policy")
    assert "DYNAMIC_TOPIC_CONFIG" not in java(CONFIGS, *entity, "--describe")


def test_topic_configs_are_all_that_kafka_has_with_its_defaults(java, name):
    create(java, name)
    kafkas = dict(line.split("=", 1) for line in java.source(str(Path(__file__).parent / "TopicDefaults.java")).split())
    described = java(CONFIGS, "--entity-type", "topics", "--entity-name", name, "--describe", "--all")
    ours = dict(re.findall(r"^  (\S+?)=(\S*) sensitive", described, re.MULTILINE))
    # settings of this broker, whose defaults are not Kafka's; Kafka's are told as DEFAULT_CONFIG
    assert ours.pop("segment.bytes") == str(64 << 20)
    assert ours.pop("file.delete.delay.ms") == str(5 * 60 * 1000)
    for name, kafkas_name in (("segment.bytes",) * 2, ("file.delete.delay.ms", "segment.delete.delay.ms")):
        assert re.search(rf"DEFAULT_CONFIG:log.{kafkas_name}=(\d+)", described)[1] == kafkas.pop(name)
    assert ours == kafkas


def test_groups(java, name):
    produce_numbers(java, name, 20)
    consume = ["--topic", name, "--group", name, "--from-beginning", "--max-messages", "15"]
    said = java("consumer.ConsoleConsumer", *consume)
    assert said.split() == [str(number) for number in range(15)]
    assert name in java(GROUPS, "--list").split()
    (row,) = table(java(GROUPS, "--describe", "--group", name), "GROUP")
    assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("15", "20", "5")
    (state,) = table(java(GROUPS, "--describe", "--group", name, "--state"), "GROUP")
    assert "Empty" in state.values()
    reset = ["--reset-offsets", "--group", name, "--topic", name, "--execute"]
    for how, offset in [(["--shift-by", "-3"], "12"), (["--to-latest"], "20"), (["--to-earliest"], "0")]:
        (row,) = table(java(GROUPS, *reset, *how), "GROUP")
        assert row["NEW-OFFSET"] == offset
    (row,) = table(java(GROUPS, *reset, "--to-datetime", "2020-01-01T00:00:00.000"), "GROUP")
    assert row["NEW-OFFSET"] == "0"
    java(GROUPS, "--delete-offsets", "--group", name, "--topic", name)
    java(GROUPS, "--delete", "--group", name)
    assert name not in java(GROUPS, "--list").split()


def formatted(java, formatter, group):
    """What a formatter of Kafka's prints of `__consumer_offsets` about one group: keys and values, in order."""
    said = java(
        *("consumer.ConsoleConsumer", "--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "6000"),
        *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
    )
    lines = said.replace('}{"key"', '}\n{"key"').splitlines()  # it prints one object behind the other
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [each for each in found if each["key"]["data"]["group"] == group]


def test_formatters_print_groups_and_offsets(java, name):
    produce_numbers(java, name, 20)
    consume = ["--topic", name, "--group", name, "--from-beginning", "--max-messages", "15"]
    java("consumer.ConsoleConsumer", *consume)

    offset = formatted(java, "OffsetsMessageFormatter", name)[-1]
    assert offset["key"] == {"type": 1, "data": {"group": name, "topic": name, "partition": 0}}
    assert offset["value"]["version"] == 4
    assert (offset["value"]["data"]["offset"], offset["value"]["data"]["metadata"]) == (15, "")

    stable, empty = formatted(java, "GroupMetadataMessageFormatter", name)
    assert stable["key"] == empty["key"] == {"type": 2, "data": {"group": name}}
    assert stable["value"]["version"] == empty["value"]["version"] == 3
    (member,) = stable["value"]["data"]["members"]
    assert member["clientId"] == "console-consumer"
    told = [each["value"]["data"] for each in (stable, empty)]
    assert [(each["protocolType"], each["generation"]) for each in told] == [("consumer", 1), ("consumer", 2)]
    assert (told[0]["leader"], told[1]["leader"], told[1]["members"]) == (member["memberId"], None, [])

    java(GROUPS, "--delete", "--group", name)
    assert formatted(java, "OffsetsMessageFormatter", name)[-1]["value"] is None
    assert formatted(java, "GroupMetadataMessageFormatter", name)[-1]["value"] is None


def test_offsets_by_every_kind_of_time(java, name):
    create(java, name, 2)
    produce_numbers(java, name, 9, "--message-create-time", "1000000")
    latest = offsets(java, name, "latest")
    assert sum(latest.values()) == 9
    assert offsets(java, name, "earliest") == {0: 0, 1: 0}
    highest = offsets(java, name, "max-timestamp")
    assert highest.keys() == {partition for partition, count in latest.items() if count}
    assert offsets(java, name, 1000) == {partition: 0 for partition, count in latest.items() if count}


def test_records_are_deleted(java, name, tmp_path):
    produce_numbers(java, name, 10)
    file = tmp_path / "delete.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 4}]}))
    assert "low_watermark: 4" in java("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert offsets(java, name, "earliest") == {0: 4}


def test_log_directories(java, name):
    produce_numbers(java, name, 10)
    said = java("LogDirsCommand", "--describe", "--topic-list", name)
    found = [directory for each in json.loads(said.splitlines()[-1])["brokers"] for directory in each["logDirs"]]
    assert [each["error"] for each in found] == [None] * nodes_count(java)
    partitions = [(each["partition"], each["size"] > 0) for directory in found for each in directory["partitions"]]
    assert partitions == [(f"{name}-0", True)]


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer(java, name, codec):
    keyed = ["--property", "parse.key=true", "--property", "parse.headers=true"]
    keyed += ["--property", "null.marker=NULL"]
    lines = ["a:1,b:2\tkey\tvalue", "a:1\tkey\tNULL", "a:1\tNULL\t" + "compress " * 100]
    java("ConsoleProducer", "--topic", name, "--compression-codec", codec, *keyed, send="\n".join(lines) + "\n")
    shown = [
        argument
        for each in ("print.headers=true", "print.key=true", "print.offset=true", "null.literal=NULL")
        for argument in ("--property", each)
    ]
    said = java("consumer.ConsoleConsumer", "--topic", name, "--from-beginning", "--max-messages", "3", *shown)
    assert said.splitlines() == [f"Offset:{offset}\t{line}" for offset, line in enumerate(lines)]


def test_performance_tools(java, name):
    produce = ["--topic", name, "--num-records", "50000", "--record-size", "100", "--throughput", "-1"]
    assert "50000 records sent" in java("ProducerPerformance", *produce)
    said = java("ConsumerPerformance", "--topic", name, "--messages", "50000", "--timeout", "30000")
    assert said.splitlines()[1].split(", ")[4] == "50000"


@pytest.mark.parametrize("strategy", [RANGE, COOPERATIVE], ids=["range", "cooperative"])
def test_two_consumers_share_all_partitions_and_lose_nothing(java, name, strategy):
    create(java, name, 6)

    def join():
        strategies = ["--assignment-strategy", strategy, "--session-timeout", "6000"]
        return java.start("VerifiableConsumer", "--topic", name, "--group-id", name, "--verbose", *strategies)

    with join() as first:
        first.wait_until(lambda: partitions(first) == 6, "all partitions for the first")
        produce_numbers(java, name, 300)
        with join() as second:
            second.wait_until(lambda: partitions(first) == partitions(second) == 3, "half for each")
            produce_numbers(java, name, 300)
            first.wait_until(lambda: count(first) + count(second) >= 600, "all records")
            second.stop()
            first.wait_until(lambda: partitions(first) == 6, "all partitions for the first again")
        produce_numbers(java, name, 30)
        first.wait_until(lambda: count(first) + count(second) >= 630, "the last records")
        first.stop()
    read = [(each["partition"], each["offset"]) for tool in (first, second) for each in tool.named("record_data")]
    ends = offsets(java, name, "latest")
    assert sorted(read) == [(partition, offset) for partition in sorted(ends) for offset in range(ends[partition])]
    assert all(each["success"] for tool in (first, second) for each in tool.named("offsets_committed"))


def partitions(consumer):
    """How many the consumer has, by its own account."""
    held = set()
    for event in list(consumer.events):
        named = {each["partition"] for each in event.get("partitions", ())}
        if event["name"] == "partitions_assigned":
            held |= named
        elif event["name"] == "partitions_revoked":
            held -= named
    return len(held)


def count(consumer):
    return len(consumer.named("record_data"))


def test_an_idempotent_producer_continues_after_its_cluster_lost_all_data(own_broker, name, tmp_path):
    """It ended with InvalidPidMappingException."""
    java = JavaTools(bootstrap=own_broker.bootstrap, class_path=class_path())
    config = tmp_path / "producer.properties"
    config.write_text(f"enable.idempotence=true\nretries={2**31 - 1}\n")
    rate = ["--max-messages", "3000", "--throughput", "300", "--producer.config", str(config)]
    with java.start("VerifiableProducer", "--topic", name, *rate) as producer:
        producer.wait_until(lambda: len(producer.named("producer_send_success")) >= 500, "acknowledgements")
        own_broker.kill()
        shutil.rmtree(own_broker.data_dir)
        own_broker.start()
        assert producer.wait() == 0
    assert not producer.named("producer_send_error")
    assert len(producer.named("producer_send_success")) == 3000


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_idempotent_records_are_stored_once_after_a_broker_restart(own_broker, name, kill, tmp_path):
    java = JavaTools(bootstrap=own_broker.bootstrap, class_path=class_path())
    create(java, name, 3)
    total = 6000
    config = tmp_path / "producer.properties"
    config.write_text(f"enable.idempotence=true\nretries={2**31 - 1}\n")  # the tool's own default is not to retry
    rate = ["--max-messages", str(total), "--throughput", "2000", "--producer.config", str(config)]
    with java.start("VerifiableProducer", "--topic", name, *rate) as producer:
        producer.wait_until(lambda: len(producer.named("producer_send_success")) >= 500, "acknowledgements")
        own_broker.restart(kill=kill)
        assert producer.wait() == 0
    assert not producer.named("producer_send_error")
    result = Acknowledged()
    for event in producer.named("producer_send_success"):
        result.add(event["partition"], event["value"].encode(), event["offset"])
    assert result.count == total
    reading = ["--group-id", name, "--max-messages", str(total), "--verbose"]
    with java.start("VerifiableConsumer", "--topic", name, *reading) as consumer:
        assert consumer.wait() == 0
    stored = [(each["partition"], each["offset"], each["value"].encode()) for each in consumer.named("record_data")]
    sent = {partition: sorted((value for value, _ in pairs), key=int) for partition, pairs in result.partitions.items()}
    result.check(stored, sent.__getitem__)
