"""Rows that are written through a broker with TLS, SASL and lists; no password is in a plan, progress or an error.

`tests/spark/brokers/test_connection.py` has each mechanism.
"""

import time

import attrs
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from kafscale.cli.main import run
from tests.devtools.external.clients import DEADLINE_SECONDS
from tests.devtools.external.logins import SCRAM, WITH_LISTS, java_properties, login_of_somebody
from tests.devtools.external.spark import flush, store_of
from tests.devtools.processes.sasl import sasl_broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # pyspark leaves sockets open
]

SECRET = "what-nobody-may-see"
JOURNAL = "kafscale-spark-transactions"
ROWS = "SELECT CAST(id AS STRING) AS value FROM range(10)"


@pytest.fixture(scope="module")
def secured():
    with sasl_broker("--connection-failed-authentication-delay", "10ms", *WITH_LISTS) as running:
        yield running


@pytest.fixture
def login(secured, request):
    """A user who may write the topic of the test, as the documentation has it."""
    topic = request.node.name.replace("_", "-")
    made = login_of_somebody(secured, SCRAM, f"{topic}-of-its-own")
    rights = [
        ("--operation", "write", "--operation", "read", "--operation", "create", "--topic", topic),
        ("--operation", "write", "--operation", "read", "--operation", "create", "--topic", JOURNAL),
        ("--operation", "write", "--operation", "describe", "--transactional-id", "kafscale-spark-", "--prefixed"),
        ("--operation", "write", "--operation", "describe", "--transactional-id", "nightly", "--prefixed"),
    ]
    for each in rights:
        assert run(["acls", "add", f"User:{made.user}", *each, "--bootstrap", secured.process.bootstrap]) == 0
    return attrs.evolve(made, broker=secured), topic


def options_of(login, topic, tmp_path, **more):
    properties = {f"kafka.{name}": value for name, value in java_properties(login, tmp_path).items()}
    return {**properties, "kafka.bootstrap.servers": login.bootstrap, "topic": topic, **more}


def by_file(login, topic, tmp_path, **more):
    file = tmp_path / "client.properties"
    lines = [f"{name}={value}" for name, value in java_properties(login, tmp_path).items()]
    file.write_text("\n".join([*lines, "acks=0"]))  # which is not of security, and not taken
    named = {"kafkaConfigFile": str(file), "kafka.bootstrap.servers": login.bootstrap, "topic": topic}
    return {**named, **more}


def write(frame, options):
    frame.write.format("kafscale").options(**options).mode("append").save()


def values(secured, topic):
    """All that is committed, by another client."""
    settings = {"group.id": "none", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": secured.process.bootstrap, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(DEADLINE_SECONDS)).error() is None:
        found.append(int(message.value()))
    consumer.close()
    assert message.error().code() == ClientError._PARTITION_EOF
    return sorted(found)


def plans(spark):
    """What Spark keeps of each query, and shows in its pages and its event log."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = [executions.apply(index) for index in range(executions.size())]
    return "\n".join(f"{each.physicalPlanDescription()} {each.modifiedConfigs()}" for each in found)


def test_a_batch(spark, secured, login, tmp_path):
    login, topic = login
    write(spark.sql(ROWS), options_of(login, topic, tmp_path))
    assert values(secured, topic) == list(range(10))
    assert "OverwriteByExpression" in plans(spark) or "AppendData" in plans(spark)
    assert login.password not in plans(spark)


def test_a_batch_by_a_file_of_settings(spark, secured, login, tmp_path):
    login, topic = login
    write(spark.sql(ROWS), by_file(login, topic, tmp_path))
    assert values(secured, topic) == list(range(10))
    assert login.password not in plans(spark)


def test_a_batch_in_a_transaction(spark, secured, login, tmp_path):
    login, topic = login
    options = by_file(login, topic, tmp_path, transactional="true", transactionalId="nightly")
    write(spark.sql(ROWS), options)
    assert values(secured, topic) == list(range(10))


def test_a_stream_in_transactions(spark, secured, login, tmp_path):
    login, topic = login
    upstream = f"{topic}-upstream"
    write(spark.sql(ROWS), {"kafka.bootstrap.servers": secured.process.bootstrap, "topic": upstream})
    flush(secured.process)
    source = spark.readStream.format("kafscale").options(
        store=store_of(secured.process), subscribe=upstream, startingOffsets="earliest"
    )
    options = options_of(login, topic, tmp_path, transactional="true", checkpointLocation=str(tmp_path / "c"))
    sink = source.load().select("value").writeStream.format("kafscale").trigger(availableNow=True)
    query = sink.options(**options).outputMode("append").start()
    assert query.awaitTermination(120)
    assert values(secured, topic) == list(range(10))
    assert sum(each["numInputRows"] for each in query.recentProgress) == 10
    assert not any(login.password in str(each) for each in query.recentProgress)
    assert login.password not in query._jsq.explainInternal(True)
    assert login.password not in plans(spark)


@pytest.mark.parametrize("transactional", ["false", "true"])
def test_a_wrong_password_ends_a_write_at_once_without_being_shown(spark, login, tmp_path, capfd, transactional):
    login, topic = login
    options = options_of(attrs.evolve(login, password=SECRET), topic, tmp_path, transactional=transactional)
    if transactional == "true":
        options["transactionalId"] = "nightly"
    said = failure_of(spark, options, capfd)
    assert "authentication failed during authentication due to invalid credentials" in said.lower()
    assert SECRET not in said


def test_a_user_without_write_access_is_refused(spark, login, tmp_path, capfd):
    login, topic = login
    said = failure_of(spark, options_of(login, f"{topic}-of-somebody-else", tmp_path), capfd)
    assert "topic_authorization_failed" in said.lower()
    assert login.password not in said


def failure_of(spark, options, capfd):
    """All that is said of a write that fails."""
    started = time.monotonic()
    with pytest.raises(Exception, match=r"Error|Exception") as caught:
        write(spark.sql(ROWS), options)
    assert time.monotonic() - started < 90
    return str(caught.value) + "".join(capfd.readouterr())


@pytest.mark.parametrize("transactional", ["false", "true"])
def test_wrong_settings_are_reported_before_a_task_begins(spark, tmp_path, transactional):
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "topic": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'org.example.OtherLoginModule required username="a" password="{SECRET}";',
    }
    if transactional == "true":
        options |= {"transactional": "true", "transactionalId": "nightly"}
    with pytest.raises(Exception, match=r"is not that of SCRAM-SHA-512; allowed: ScramLoginModule") as caught:
        write(spark.sql(ROWS), options)
    assert SECRET not in str(caught.value)
    with pytest.raises(Exception, match=r"kafkaConfigFile: '/nowhere' can't be read"):
        write(spark.sql(ROWS), {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafkaConfigFile": "/nowhere"})
