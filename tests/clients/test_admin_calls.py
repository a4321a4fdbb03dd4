"""The rarer calls of kafka-python's and confluent-kafka's admin clients: what Kafka's own tools ask a cluster."""

import gc
import warnings
from contextlib import closing

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import KafkaAdminClient, errors
    from kafka.admin import (
        ConfigResource,
        ConfigResourceType,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

from kafscale.cluster.registries.dynamic_configs import DYNAMIC_CONFIGS

# It leaves sockets open that could not connect; they must not be found, as garbage, in the tests of others.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <(socket|ssl.SSLSocket):ResourceWarning")

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def admin(broker):
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        yield client
    gc.collect()


@pytest.fixture
def create(admin, broker):
    def create_topic(topic, partitions=1, replication_factor=1):
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": replication_factor}})
        broker.settle()  # kafka-python asks any of the brokers

    return create_topic


def test_topics_are_described_in_pages(admin, broker, name, create):
    create(f"{name}-a", 2)
    create(f"{name}-b", 3, replication_factor=2)
    names, cursor, found = [f"{name}-b", f"{name}-a", f"{name}-c"], None, []
    for _ in range(3):
        page = admin.describe_topic_partitions(names, response_partition_limit=2, cursor=cursor)
        found += [
            (topic["name"], topic["error_code"], partition["partition_index"], {*partition["replica_nodes"]})
            for topic in page["topics"]
            for partition in topic["partitions"] or [{"partition_index": -1, "replica_nodes": ()}]
        ]
        cursor = page["next_cursor"]
        names = names if cursor is None else [each for each in names if each >= cursor["topic_name"]]
    assert cursor is None
    assert [each[:3] for each in found] == [
        *((f"{name}-a", 0, index) for index in range(2)),
        *((f"{name}-b", 0, index) for index in range(3)),
        (f"{name}-c", 3, -1),
    ]
    assert all(len(replicas) == 1 and replicas <= {*broker.broker_ids} for _, _, _, replicas in found[:-1])


@pytest.mark.parametrize("election_type", [PREFERRED, UNCLEAN])
def test_no_leader_needs_to_be_elected(admin, name, election_type, create):
    create(name, 2)
    response = admin.elect_leaders(election_type, {name: [0, 1]})
    ((topic, results),) = [(each.topic, each.partition_result) for each in response.replica_election_results]
    assert topic == name
    assert [(each.partition_id, each.error_code) for each in results] == [(0, 84), (1, 84)]
    everywhere = admin.elect_leaders(election_type).replica_election_results  # it names all partitions itself
    assert {one.error_code for each in everywhere for one in each.partition_result} == {84}


def test_no_leader_needs_to_be_elected_for_librdkafka(admin, broker, name, create):
    create(name, 2)
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = [TopicPartition(name, index) for index in (0, 1, 5)]
    outcomes = client.elect_leaders(ElectionType.PREFERRED, asked).result(30)
    assert {each.partition: error.name() for each, error in outcomes.items()} == {
        0: "ELECTION_NOT_NEEDED",
        1: "ELECTION_NOT_NEEDED",
        5: "UNKNOWN_TOPIC_OR_PART",
    }


def test_partition_reassignment_to_another_broker_is_refused(admin, name, create):
    create(name, 3)
    here, elsewhere, cancelled = (kafka.TopicPartition(name, index) for index in range(3))
    outcomes = admin.alter_partition_reassignments({here: [0], elsewhere: [1], cancelled: None})
    assert outcomes == {
        here: None,
        elsewhere: errors.InvalidReplicationAssignmentError,
        cancelled: errors.NoReassignmentInProgressError,
    }
    assert admin.list_partition_reassignments() == admin.list_partition_reassignments([here]) == {}


def test_brokers_and_topics_have_configs(admin, broker, name, create):
    create(name)
    assert admin.list_config_resources(["BROKER"]) == {"broker": [str(each) for each in broker.broker_ids]}
    everything = admin.list_config_resources()
    assert everything.keys() == {"broker", "topic"}
    assert name in everything["topic"]


def test_configs_of_a_broker_are_described_and_few_can_be_set(admin, broker):
    def configs(broker_id):
        resource = ConfigResource(ConfigResourceType.BROKER, broker_id)
        return admin.describe_configs([resource], include_synonyms=True, config_filter="all")

    described = configs("0")["broker"]["0"]
    assert described["advertised.listeners"]["value"] == f"{broker.protocol}://{broker.kafka}"
    assert described["node.id"]["value"] == "0"
    settable = {each for each in described if not described[each]["read_only"]}
    assert settable - {"kafscale.draining"} == DYNAMIC_CONFIGS.keys() & described.keys()
    assert "num.partitions" not in settable
    wanted = ConfigResource(ConfigResourceType.BROKER, "0", {"num.partitions": "3"})
    outcome = admin.alter_configs([wanted], raise_on_unknown=False)["broker"]["0"]
    assert "Cannot update these configs dynamically: Set(num.partitions)" in outcome


def test_a_replica_is_in_the_only_directory(admin, name, create):
    create(name, 2)
    (directory,) = admin.describe_log_dirs([name])
    here = directory["log_dirs"][0]["log_dir"]
    asked = {(name, 0, 0): here, (name, 1, 0): "/elsewhere", (f"{name}-no", 0, 0): here}
    outcomes = admin.alter_replica_log_dirs(asked)
    assert {(each.topic, each.partition): error.errno for each, error in outcomes.items()} == {
        (name, 0): 0,
        (name, 1): 57,  # LOG_DIR_NOT_FOUND
        (f"{name}-no", 0): 3,
    }


def test_the_controller_is_the_only_voter(admin, broker):
    quorum = admin.describe_metadata_quorum()
    (partition,) = quorum["topics"][0]["partitions"]
    assert partition["error"] is None
    assert partition["leader_id"] in broker.broker_ids
    assert [each["replica_id"] for each in partition["current_voters"]] == [partition["leader_id"]]
    assert partition["high_watermark"] == partition["current_voters"][0]["log_end_offset"] > 0


def test_features_have_the_levels_of_the_broker(admin):
    told = {"supported": (2, 2), "finalized": (2, 2), "finalized_epoch": 0}
    assert admin.describe_features()["transaction.version"] == told
    admin.update_features({"transaction.version": 2})
    with pytest.raises(errors.InvalidUpdateVersionError):
        admin.update_features({"transaction.version": ("SAFE_DOWNGRADE", 1)})


def test_users_are_added_described_and_removed(admin, name):
    before = admin.describe_user_scram_credentials()
    assert name not in before
    added = UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_256, b"a secret", iterations=4096)
    assert admin.alter_user_scram_credentials([added]) == {name: None}
    credential = {"mechanism": ScramMechanism.SCRAM_SHA_256, "iterations": 4096}
    described = admin.describe_user_scram_credentials()
    assert described == {**before, name: {"error": None, "credential_infos": [credential]}}
    removed = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
    assert admin.alter_user_scram_credentials([removed]) == {name: None}
    assert admin.describe_user_scram_credentials() == before


def test_producers_are_described(admin, broker, name, create):
    create(name)
    partition = kafka.TopicPartition(name, 0)
    assert admin.describe_producers([partition])[partition].active_producers == []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1000})
    for _ in range(3):
        producer.produce(name, b"value")
    assert producer.flush(30) == 0
    (found,) = admin.describe_producers([partition])[partition].active_producers
    assert (found.producer_epoch, found.last_sequence, found.current_transaction_start_offset) == (0, 2, -1)
    assert found.last_timestamp > 0
