"""compose.yaml as a user runs it: two clients on the host, a broker that is killed under load, a bucket in MinIO; and
the profile with Spark, whose pipeline keeps a table in a REST catalog.

Says what it does while it does it; `make test-compose` shows that.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import socket
import subprocess
import urllib.request
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Condition
from typing import Any, Protocol
from uuid import uuid4

import attrs
import botocore.session
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.formats.segment import decode_footer
from kafscale.store.paths import SegmentKey, parse_segment_key
from tests.devtools.external.clients import wait_until
from tests.devtools.history.history import History, Read

with warnings.catch_warnings():  # kafka-python reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
BROKER_PORTS = ("BROKER_1_PORT", "BROKER_2_PORT", "BROKER_3_PORT")
PORT_VARIABLES = (
    "KAFKA_PORT",
    "ADMIN_PORT",
    "S3_PORT",
    "S3_CONSOLE_PORT",
    "CATALOG_PORT",
    "METRICS_PORT",
    *BROKER_PORTS,
)
SERVICES_OF = {"spark": (), "three": ("broker-1", "broker-2", "broker-3")}  # all where none are named
LOGGED_OF = {"spark": ("kafscale", "catalog", "pipeline"), "three": SERVICES_OF["three"]}
MINIO_KEYS = {"MINIO_ROOT_USER": "kafscale", "MINIO_ROOT_PASSWORD": "kafscale-test"}
PARTITIONS = range(3)
ACKNOWLEDGED_COUNT = 5000  # by each client before the kill, and again after it
UNACKNOWLEDGED_MAX_COUNT = 1000
WAIT_SECONDS = 120.0
DEAD_LETTERS = "kafscale_pipeline_dead_letters_total{"
TABLE_SECONDS = 600.0  # Spark fetches its jars first


def say(text: str) -> None:
    print(f"---- {text}", flush=True)


# ---- Compose ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Compose:
    """A project of compose.yaml. Commands write what they write to the terminal; one that fails raises."""

    command: Sequence[str]
    project: str
    ports: Mapping[str, int]
    options: Sequence[str] = ()

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.ports['KAFKA_PORT']}"

    def run(self, *arguments: str, stdout: int | None = None) -> str:
        command = [*self.command, "--project-name", self.project, *self.options, *arguments]
        environ = os.environ | MINIO_KEYS | {name: str(port) for name, port in self.ports.items()}
        done = subprocess.run(command, cwd=REPOSITORY, env=environ, check=True, stdout=stdout, text=True)
        return done.stdout or ""

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a container. Returns what it wrote to its standard output."""
        return self.run("exec", "-T", service, *command, stdout=subprocess.PIPE)

    def container(self, service: str) -> str:
        return self.run("ps", "--quiet", service, stdout=subprocess.PIPE).strip()


@pytest.fixture
def compose(request: pytest.FixtureRequest) -> Iterator[Compose]:
    """A project of its own on free ports, up, with the profile that is a parameter; gone afterwards but for images."""
    profile = getattr(request, "param", None)
    project = Compose(
        command=_compose_command(),
        project=f"kafscale-test-{uuid4().hex[:8]}",
        ports=_free_ports(),
        options=["--profile", profile] if profile else [],
    )
    try:
        project.run("up", "--detach", "--build", *SERVICES_OF.get(profile, ()))
        yield project
    finally:
        project.run("logs", "--no-color", *LOGGED_OF.get(profile, ("kafscale",)))
        project.run("down", "--volumes")


def _compose_command() -> Sequence[str]:
    plugin = ["docker", "compose"]
    if subprocess.run([*plugin, "version"], check=False, capture_output=True).returncode == 0:
        return plugin
    standalone = shutil.which("docker-compose")
    assert standalone, "neither `docker compose` nor `docker-compose` is here"
    return [standalone]


def _free_ports() -> Mapping[str, int]:
    """Ports that are free now. Docker can't choose them: the broker must be told its own, to advertise it."""
    with ExitStack() as sockets:
        bound = {name: sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for name in PORT_VARIABLES}
        return {name: each.getsockname()[1] for name, each in bound.items()}


# ---- two clients ------------------------------------------------------------------------------------------------


class Client(Protocol):
    """What the test needs of a client: sends with their acknowledgements, and all that there is to read."""

    name: str

    def send(self, partition: int, value: str) -> None: ...

    def acknowledged(self) -> Iterator[tuple[int, str, int]]:
        """Partition, value and offset of what was acknowledged since the last call. Raises if a send failed."""
        ...

    def close_producer(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        ...

    def read_all(self, topic: str) -> Iterator[tuple[int, Read]]:
        """Each record of the topic with its partition, up to what is the end now."""
        ...


def _confluent(bootstrap: str) -> dict[str, Any]:
    """What all of librdkafka's clients are given: the broker, and no lines about the broker being away."""
    return {"bootstrap.servers": bootstrap, "log_level": 2}


def create_topics(bootstrap: str, names: Sequence[str]) -> None:
    admin = AdminClient(_confluent(bootstrap))
    topics = [NewTopic(name, num_partitions=len(PARTITIONS)) for name in names]
    for created in admin.create_topics(topics, operation_timeout=WAIT_SECONDS).values():
        created.result()


@attrs.define(eq=False)
class ConfluentClient:
    """confluent-kafka, that is librdkafka."""

    bootstrap: str
    name: str = attrs.field(default="confluent-kafka", init=False)
    _producer: Any = attrs.field(init=False)
    _done: deque[tuple[int, str, int]] = attrs.field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self._producer = confluent_kafka.Producer(
            {**_confluent(self.bootstrap), "enable.idempotence": True, "compression.type": "gzip"}
        )

    def send(self, partition: int, value: str) -> None:
        self._producer.produce(self.name, value.encode(), partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            raise confluent_kafka.KafkaException(error)
        self._done.append((message.partition(), message.value().decode(), message.offset()))

    def acknowledged(self) -> Iterator[tuple[int, str, int]]:
        if self._producer is not None:
            self._producer.poll(0.01)
        while self._done:
            yield self._done.popleft()

    def close_producer(self) -> None:
        assert self._producer.flush(WAIT_SECONDS) == 0
        self._producer = None

    def read_all(self, topic: str) -> Iterator[tuple[int, Read]]:
        consumer = confluent_kafka.Consumer(
            {
                **_confluent(self.bootstrap),
                "group.id": f"{self.name} reads {topic}",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.subscribe([topic])
            ended: set[int] = set()
            while len(ended) < len(PARTITIONS):
                message = consumer.poll(WAIT_SECONDS)
                assert message is not None, f"{self.name} got nothing for {WAIT_SECONDS:.0f} seconds"
                if message.error() is None:
                    yield message.partition(), Read(message.offset(), message.value().decode())
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise confluent_kafka.KafkaException(message.error())
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()


@attrs.define(eq=False)
class KafkaPythonClient:
    """kafka-python."""

    bootstrap: str
    name: str = attrs.field(default="kafka-python", init=False)
    _producer: Any = attrs.field(init=False)
    _sent: deque[tuple[str, Any]] = attrs.field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap, compression_type="gzip", linger_ms=5)

    def send(self, partition: int, value: str) -> None:
        self._sent.append((value, self._producer.send(self.name, value.encode(), partition=partition)))

    def acknowledged(self) -> Iterator[tuple[int, str, int]]:
        while self._sent and (self._sent[0][1].is_done or len(self._sent) >= UNACKNOWLEDGED_MAX_COUNT):
            value, future = self._sent.popleft()
            metadata = future.get(timeout=WAIT_SECONDS)
            yield metadata.partition, value, metadata.offset

    def close_producer(self) -> None:
        self._producer.flush(WAIT_SECONDS)
        self._producer.close()
        self._producer = None

    def read_all(self, topic: str) -> Iterator[tuple[int, Read]]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=f"{self.name} reads {topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            partitions = [kafka.TopicPartition(topic, index) for index in PARTITIONS]
            missing = {each.partition: end for each, end in consumer.end_offsets(partitions).items() if end}
            consumer.subscribe([topic])
            while missing:
                polled = consumer.poll(timeout_ms=WAIT_SECONDS * 1000)
                assert polled, f"{self.name} got nothing for {WAIT_SECONDS:.0f} seconds"
                for record in (each for records in polled.values() for each in records):
                    yield record.partition, Read(record.offset, record.value.decode())
                    if record.offset + 1 >= missing.get(record.partition, 0):
                        missing.pop(record.partition, None)
            consumer.commit()
        finally:
            consumer.close()


@attrs.define(eq=False)
class Load:
    """A client that writes to the topic of its name until it is told to stop, and keeps a record of all of it."""

    client: Client
    sent_count: int = attrs.field(default=0, init=False)
    history: History = attrs.field(factory=History, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _changed: Condition = attrs.field(factory=Condition, init=False)

    def run(self) -> None:
        while not self._stopping:
            while self.sent_count - self.history.acknowledged_count < UNACKNOWLEDGED_MAX_COUNT:
                self._send()
            self._note_acknowledged()
        self.client.close_producer()
        self._note_acknowledged()

    def stop(self) -> None:
        self._stopping = True

    def wait_for_more(self, running: Future[None]) -> None:
        """Until this many more were acknowledged. Raises what ended `run`."""
        with self._changed:
            goal = self.history.acknowledged_count + ACKNOWLEDGED_COUNT
            self._changed.wait_for(lambda: self.history.acknowledged_count >= goal or running.done(), WAIT_SECONDS)
            if running.done():
                running.result()
            assert self.history.acknowledged_count >= goal, f"{self.client.name} does not get on"

    def _send(self) -> None:
        partition = self.sent_count % len(PARTITIONS)
        value = f"{self.client.name} {self.sent_count}"
        self.history.sent(self.client.name, str(partition), value)
        self.client.send(partition, value)
        self.sent_count += 1

    def _note_acknowledged(self) -> None:
        with self._changed:
            for partition, value, offset in self.client.acknowledged():
                self.history.acknowledged(str(partition), value, offset)
            self._changed.notify_all()


@contextmanager
def under_load(loads: Sequence[Load]) -> Iterator[Callable[[], None]]:
    """Every load in a thread of its own. Gives a function that waits until each got more acknowledged."""
    with ThreadPoolExecutor(len(loads)) as threads:
        running = [threads.submit(load.run) for load in loads]

        def wait_for_more() -> None:
            for load, future in zip(loads, running, strict=True):
                load.wait_for_more(future)

        try:
            yield wait_for_more
        finally:
            for load in loads:
                load.stop()
        for future in running:
            future.result()


# ---- what must hold ---------------------------------------------------------------------------------------------


def check_reading(reader: Client, loads: Sequence[Load]) -> None:
    """All that was acknowledged is there, once and in order."""
    for load in loads:
        read_count = 0
        for partition, record in reader.read_all(load.client.name):
            load.history.polled(reader.name, str(partition), [record])
            read_count += 1
        say(f"{reader.name} read {read_count} records of {load.client.name}")
        assert read_count == load.sent_count
        assert load.history.anomalies() == []


def check_bucket(compose: Compose, loads: Sequence[Load]) -> None:
    """Every record is in a segment, and every segment is a pair of objects."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{compose.ports['S3_PORT']}",
        region_name="us-east-1",
        aws_access_key_id=MINIO_KEYS["MINIO_ROOT_USER"],
        aws_secret_access_key=MINIO_KEYS["MINIO_ROOT_PASSWORD"],
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="kafscale")
    parsed = [parse_segment_key(found["Key"]) for page in pages for found in page["Contents"]]
    keys = {key for key in parsed if key is not None}
    segments = {key for key in keys if key.kind == "kfs"}
    assert keys - segments == {key.of_kind("index") for key in segments}
    say(f"the bucket has {len(segments)} .kfs and {len(keys) - len(segments)} .index objects")
    for load in loads:
        found = sum(_record_count(client, key) for key in segments if key.topic == load.client.name)
        assert found == load.sent_count


def _record_count(client: Any, key: SegmentKey) -> int:
    index_key = key.of_kind("index").key
    footer = decode_footer(client.get_object(Bucket="kafscale", Key=index_key)["Body"].read(), index_key)
    assert footer.identity.base_offset == key.base_offset
    assert footer.last_offset - key.base_offset + 1 == footer.record_count
    return footer.record_count


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's, of connections refused
def test_a_killed_broker_loses_nothing(compose: Compose, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # its log lines, which pytest keeps, would keep those sockets
    clients: Sequence[Client] = (ConfluentClient(compose.kafka), KafkaPythonClient(compose.kafka))
    create_topics(compose.kafka, [client.name for client in clients])
    loads = [Load(client) for client in clients]
    with under_load(loads) as wait_for_more:
        wait_for_more()
        say("killing the broker under load")
        subprocess.run(["docker", "kill", compose.container("kafscale")], check=True)
        compose.run("up", "--detach", "kafscale")
        wait_for_more()
    for load in loads:
        say(f"{load.client.name} sent {load.sent_count} and got {load.history.acknowledged_count} acknowledged")
        assert load.history.acknowledged_count == load.sent_count

    check_reading(clients[0], loads)
    say("another container reads by the listener INTERNAL")
    reader = ["run", "--rm", "-T", "--no-deps", "--entrypoint", "kafscale", "kafscale", "consume"]
    options = ["--from-beginning", "--bootstrap", "kafscale:9094"]
    lines = compose.run(*reader, clients[1].name, *options, stdout=subprocess.PIPE).splitlines()
    assert len(lines) == loads[1].sent_count

    say("stopping the broker, so that all of it is in the bucket")
    compose.run("stop", "kafscale")
    check_bucket(compose, loads)
    compose.run("up", "--detach", "kafscale")
    check_reading(clients[1], loads)
    gc.collect()  # while that warning is no error


# ---- the profile with Spark -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compose", ["spark"], indirect=True)
def test_a_pipeline_keeps_a_table_of_the_topic(compose: Compose) -> None:
    producer = confluent_kafka.Producer(_confluent(compose.kafka))
    for number in range(100):
        producer.produce("readings", json.dumps({"room": "attic", "celsius": number}))
    producer.produce("readings", "smoke")
    assert producer.flush(WAIT_SECONDS) == 0
    say("waiting for the table")
    wait_until(lambda: _dead_letters(compose) == 1, "its rows", seconds=TABLE_SECONDS)
    query = "SELECT count(*) AS records, sum(celsius) AS total FROM lake.home.readings"
    found = json.loads(compose.execute("pipeline", "kafscale", "sql", "--format", "json", query))
    assert found == {"records": 100, "total": 4950.0}
    compose.run("stop", "pipeline")
    say("proving it by another container, with the checkpoint and the jars of the first")
    prove = ["run", "--rm", "-T", "--no-deps", "pipeline", "pipeline", "prove", "/etc/kafscale/pipeline.yaml"]
    assert "proven" in compose.run(*prove, stdout=subprocess.PIPE)


def _dead_letters(compose: Compose) -> float:
    """Return what the pipeline's metrics tell; 0 as long as it does not answer."""
    url = f"http://127.0.0.1:{compose.ports['METRICS_PORT']}/metrics"
    with suppress(OSError), urllib.request.urlopen(url) as reply:
        lines = [line for line in reply.read().decode().splitlines() if line.startswith(DEAD_LETTERS)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)
    return 0.0


# ---- the profile with three brokers ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's, of connections refused
@pytest.mark.parametrize("compose", ["three"], indirect=True)
def test_a_killed_broker_of_three_loses_nothing_and_others_go_on(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")
    bootstrap = ",".join(f"127.0.0.1:{compose.ports[name]}" for name in BROKER_PORTS)
    list_brokers = ["kafscale", "brokers", "list", "--json", "--bootstrap", "broker-1:9094"]

    def states() -> list[str]:
        with suppress(subprocess.CalledProcessError):  # while the broker starts
            return [each["state"] for each in json.loads(compose.execute("broker-1", *list_brokers))]
        return []

    wait_until(lambda: states() == ["live"] * 3, "three brokers", seconds=WAIT_SECONDS)
    client = ConfluentClient(bootstrap)
    create_topics(bootstrap, [client.name])
    load = Load(client)
    with under_load([load]) as wait_for_more:
        wait_for_more()
        say("killing the second broker under load")
        subprocess.run(["docker", "kill", compose.container("broker-2")], check=True)
        wait_for_more()
        assert states() == ["live", "fenced", "live"]
        say("starting it again")
        compose.run("up", "--detach", "broker-2")
        wait_until(lambda: states() == ["live"] * 3, "three brokers again", seconds=WAIT_SECONDS)
        wait_for_more()
    assert load.history.acknowledged_count == load.sent_count
    check_reading(client, [load])
    gc.collect()
