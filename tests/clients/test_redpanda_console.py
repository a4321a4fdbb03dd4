"""Redpanda Console as a client: its program, named by REDPANDA_CONSOLE, runs by the page's command on a live broker."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.devtools.external.s3_processes import free_port
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.docs.blocks import blocks_of

PROGRAM = os.environ.get("REDPANDA_CONSOLE", "")
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "use-a-kafka-ui.md").read_text()
COMMAND, GRANTS = [text for language, text in blocks_of(PAGE) if language == "sh"]
START_SECONDS = 120.0
MESSAGES = "/redpanda.api.console.v1alpha1.ConsoleService/ListMessages"
DELETE_TOPIC = "/redpanda.api.dataplane.v1.TopicService/DeleteTopic"
JSON = "application/json"
OLDEST, NEWEST, AT_TIME = "-2", "-1", "-4"
COUNT = 30
LATER_MS = 1_750_000_000_000

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PROGRAM, reason="REDPANDA_CONSOLE names no program of Redpanda Console"),
]


@attrs.frozen
class Console:
    address: str

    def ask(self, method: str, path: str, body: object = None, *, code: int = 200) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self.send(method, path, data, JSON, code=code) or b"null")

    def messages(self, **wanted: object) -> list[dict[str, Any]]:
        """Ask for messages of all partitions by a stream of Connect's protocol."""
        body = json.dumps({"topic": "orders", "partitionId": -1, "maxResults": 100, **wanted}).encode()
        stream = self.send("POST", MESSAGES, b"\0" + struct.pack(">I", len(body)) + body, "application/connect+json")
        found = []
        while stream:
            (size,) = struct.unpack_from(">I", stream, 1)
            event = json.loads(stream[5 : 5 + size])
            assert not event.keys() & {"error"}, event
            found += [event["data"]] if "data" in event else []
            stream = stream[5 + size :]
        return found

    def send(self, method: str, path: str, data: bytes | None, kind: str, *, code: int | None = 200) -> bytes:
        """Return the answer, which has this status; None for any."""
        request = urllib.request.Request(f"http://{self.address}{path}", data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found, text = answer.status, answer.read()
        except urllib.error.HTTPError as exc:
            found, text = exc.code, exc.read()
        assert code is None or found == code, (method, path, found, text)
        return text


@contextmanager
def running_console(bootstrap: str, directory: Path, **settings: str) -> Iterator[Console]:
    """Run the page's command; the program has no pages of its own where it was built without them."""
    address = f"127.0.0.1:{free_port()}"
    command = COMMAND.replace("127.0.0.1:9092", bootstrap).replace("8081", address.rpartition(":")[2])
    programs = directory / "programs"
    programs.mkdir()
    (programs / "redpanda-console").symlink_to(PROGRAM)
    environ = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SERVEFRONTEND": "false", **settings}
    with (directory / "console.log").open("wb") as log:
        script = command.replace("redpanda-console", "exec redpanda-console")
        process = subprocess.Popen(["sh", "-ec", script], env=environ, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None, (directory / "console.log").read_text()[-2000:]
            assert time.monotonic() < until
            try:
                urllib.request.urlopen(f"http://{address}/admin/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield Console(address)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    options = ["--authorizer", "acl", "--super-user", "User:ANONYMOUS", "--listen", "SASL_PLAINTEXT=127.0.0.1:0"]
    with broker_process(*options) as running:
        yield running


def fill(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "console"})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(COUNT):
        value = None if number == 0 else json.dumps({"number": number})
        at = LATER_MS * (number >= COUNT - 3) + number + 1
        producer.produce("orders", value, f"key {number}", number % 3, headers={"header": b"1"}, timestamp=at)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce("orders", "aborted", partition=1)
    producer.flush(60)
    producer.abort_transaction()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", index, 4) for index in range(3)], asynchronous=False)
    consumer.close()


def test_an_operator_does_everything_with_it(broker: BrokerProcess, tmp_path: Path) -> None:
    with running_console(broker.bootstrap, tmp_path) as console:
        (found,) = console.ask("GET", "/api/brokers")
        assert (found["brokerId"], found["isController"]) == (0, True)
        names = {each["name"] for each in console.ask("GET", "/api/brokers/0/config")["brokerConfigs"]}
        assert {"advertised.listeners", "log.retention.ms"} <= names
        topic = {"topicName": "orders", "partitionCount": 3, "replicationFactor": 1}
        console.ask("POST", "/api/topics", {**topic, "configs": [{"name": "retention.ms", "value": "-1"}]})
        fill(broker)
        topics = {each["topicName"]: each for each in console.ask("GET", "/api/topics")["topics"]}
        assert topics["orders"]["partitionCount"] == 3
        assert topics["orders"]["logDirSummary"]["totalSizeBytes"] > 0
        change = {"configs": [{"key": "retention.ms", "op": "SET", "value": "7200000000000"}]}
        console.ask("PATCH", "/api/topics/orders/configuration", change)
        configs = console.ask("GET", "/api/topics/orders/configuration")["topicDescription"]["configEntries"]
        assert next(each["value"] for each in configs if each["name"] == "retention.ms") == "7200000000000"
        look_at_messages(console)
        change_records(console)
        change_groups(console)
        change_rights(console)
        moved = {"topics": [{"topicName": "orders", "partitions": [{"partitionId": 0, "replicas": [0]}]}]}
        (answer,) = console.ask("PATCH", "/api/operations/reassign-partitions", moved)["reassignPartitionsResponses"]
        assert [each["errorCode"] for each in answer["partitions"]] == [""]
        console.ask("POST", DELETE_TOPIC, {"topicName": "orders"})
        assert "orders" not in {each["topicName"] for each in console.ask("GET", "/api/topics")["topics"]}


def look_at_messages(console: Console) -> None:
    oldest = console.messages(startOffset=OLDEST)
    assert len(oldest) == COUNT + 1  # it reads what is not committed, too
    assert {each["headers"][0]["key"] for each in oldest if "headers" in each} == {"header"}
    assert sum(each["value"].get("encoding") == "PAYLOAD_ENCODING_NULL" for each in oldest) == 1
    assert {each["offset"] for each in console.messages(startOffset="5", partitionId=2)} == {*map(str, range(5, 10))}
    assert len(console.messages(startOffset=NEWEST, maxResults=6)) >= 3
    assert len(console.messages(startOffset=AT_TIME, startTimestamp=str(LATER_MS))) in (3, 4)


def change_records(console: Console) -> None:
    record = {"key": "azE=", "value": "djE=", "partitionId": 0, "headers": []}
    sent = {"topicNames": ["orders"], "compressionType": 1, "useTransactions": False, "records": [record]}
    (answer,) = console.ask("POST", "/api/topics-records", sent)["records"]
    assert answer["offset"] == 11  # behind ten records and a marker
    deleted = {"partitions": [{"partitionId": 0, "offset": 2}]}
    (answer,) = console.ask("DELETE", "/api/topics/orders/records", deleted)["partitions"]
    assert answer["lowWaterMark"] == 2


def change_groups(console: Console) -> None:
    (group,) = console.ask("GET", "/api/consumer-groups")["consumerGroups"]
    assert (group["groupId"], group["state"], group["topicOffsets"][0]["partitionsWithOffset"]) == (
        "billing",
        "Empty",
        3,
    )
    places = [{"partitionId": 0, "offset": 3}, {"partitionId": 1, "offset": 9}]
    console.ask(
        "PATCH",
        "/api/consumer-groups/billing",
        {"groupId": "billing", "topics": [{"topicName": "orders", "partitions": places}]},
    )
    (offsets,) = console.ask("GET", "/api/consumer-groups/billing")["consumerGroup"]["topicOffsets"]
    assert [each["groupOffset"] for each in offsets["partitionOffsets"]] == [3, 9, 4]
    gone = {"groupId": "billing", "topics": [{"topicName": "orders", "partitions": [{"partitionId": 2}]}]}
    console.ask("DELETE", "/api/consumer-groups/billing/offsets", gone)
    (offsets,) = console.ask("GET", "/api/consumer-groups/billing")["consumerGroup"]["topicOffsets"]
    assert [each["partitionId"] for each in offsets["partitionOffsets"]] == [0, 1]
    console.ask("DELETE", "/api/consumer-groups/billing")
    assert console.ask("GET", "/api/consumer-groups")["consumerGroups"] == []


def change_rights(console: Console) -> None:
    rule = {"resourceType": "Topic", "resourceName": "orders", "resourcePatternType": "Literal"}
    rule |= {"principal": "User:bob", "host": "*", "operation": "Read", "permissionType": "Allow"}
    console.ask("POST", "/api/acls", rule)
    everything = "resourceType=Any&resourcePatternTypeFilter=Any&operation=Any&permissionType=Any"
    (found,) = console.ask("GET", f"/api/acls?{everything}")["aclResources"]
    assert (found["resourceName"], found["acls"][0]["principal"]) == ("orders", "User:bob")
    assert console.ask("GET", "/api/quotas")["items"] == []


def test_a_viewer_sees_everything_and_changes_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    environ = {**os.environ, "KAFSCALE_BOOTSTRAP": broker.bootstrap, "KAFSCALE_USER_PASSWORD": "secret"}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    run("kafscale users add viewer; kafscale topics create orders --partitions 3", environ)
    run(GRANTS, environ)
    fill(broker)
    (address,) = broker.further_listeners
    login = {"MECHANISM": "SCRAM-SHA-512", "USERNAME": "viewer", "PASSWORD": "secret", "ENABLED": "true"}
    settings = {f"KAFKA_SASL_{name}": value for name, value in login.items()}
    with running_console(address.rpartition("=")[2], tmp_path, **settings) as console:
        assert "orders" in {each["topicName"] for each in console.ask("GET", "/api/topics")["topics"]}
        assert len(console.messages(startOffset=OLDEST)) == COUNT + 1
        (group,) = console.ask("GET", "/api/consumer-groups")["consumerGroups"]
        assert group["topicOffsets"][0]["partitionsWithOffset"] == 3
        assert console.ask("GET", "/api/topics/orders/configuration")["topicDescription"]["configEntries"]
        change = {"configs": [{"key": "retention.ms", "op": "SET", "value": "1"}]}
        console.send("PATCH", "/api/topics/orders/configuration", json.dumps(change).encode(), JSON, code=None)
        console.send("DELETE", "/api/consumer-groups/billing", None, JSON, code=None)
        configs = console.ask("GET", "/api/topics/orders/configuration")["topicDescription"]["configEntries"]
        assert next(each["value"] for each in configs if each["name"] == "retention.ms") != "1"
        assert len(console.ask("GET", "/api/consumer-groups")["consumerGroups"]) == 1


def run(script: str, environ: Mapping[str, str]) -> None:
    subprocess.run(["bash", "-euc", script], env=environ, check=True, capture_output=True, timeout=120)
