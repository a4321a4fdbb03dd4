"""The page on Kubernetes can be followed: its commands of Helm and kubectl are run as they are written, on processes.

The values that the page shows are rendered, too. The image is not built, which `make test-compose` does.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kafscale.testing.certificates import Authority, make_authority
from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import s3_server
from tests.docs.blocks import blocks_of
from tests.helm.charts import HELM_MISSING, REPOSITORY, helm_program, rendered
from tests.helm.cluster import Cluster
from tests.helm.pods import Pod

pytestmark = [
    pytest.mark.helm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(helm_program() is None, reason=HELM_MISSING),
]

PAGE = (REPOSITORY / "docs" / "how-to" / "kubernetes.md").read_text()
PASSWORD = "a good password"
BROKER_USER = "kafscale"
SECONDS = 60.0
PATIENCE = "15s"  # of brokers with each other: two clusters start on one machine
_NAMED = re.compile(r"# (\S+\.yaml)\n")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    with s3_server() as store:
        machine = [f"store.endpoint={store.endpoint}", "store.credentialsSecret=keys", "config.s3-create-bucket=true"]
        machine.append(f"config.broker-session-timeout={PATIENCE}")
        with Cluster(tmp_path, machine) as found:
            for namespace in ("kafka", "secured"):
                found.secrets[namespace]["keys"] = {
                    "AWS_ACCESS_KEY_ID": store.credentials.access_key_id,
                    "AWS_SECRET_ACCESS_KEY": store.credentials.secret_access_key,
                }
            yield found


def certificate(authority: Authority) -> dict[str, str]:
    """Return a Secret as cert-manager writes it."""
    files = authority.issue(BROKER_USER)
    return {
        "tls.crt": files.certificate_file.read_text(),
        "tls.key": files.key_file.read_text(),
        "ca.crt": authority.ca_file.read_text(),
    }


def commands(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def test_the_page_can_be_followed(cluster: Cluster, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    cluster.secrets["secured"]["kafscale-tls"] = certificate(authority)
    variables = {"PATH": os.environ["PATH"], "PASSWORD": PASSWORD}
    shown = 0
    for language, block in blocks_of(PAGE):
        named = _NAMED.match(block)
        if named is not None:
            (tmp_path / named[1]).write_text(block)
        elif language == "yaml":
            values = tmp_path / "shown.yaml"
            values.write_text(block)
            assert "EXTERNAL=broker-$(KAFSCALE_BROKER_ID)" in rendered("store.url=s3://a", values=values)
            shown += 1
        elif language == "sh":
            for command in commands(block):
                printed = cluster.run(command, variables)
                check(cluster, command, printed)
    assert shown == 1
    check_secured(cluster, authority)


def check(cluster: Cluster, command: str, printed: str) -> None:
    pods = cluster.pods["kafka"]
    if command.endswith("brokers list"):
        assert len(re.findall(r"^[012] .* zone-[abc] .* live ", printed, re.MULTILINE)) == 3, printed
    elif "flush-interval=5s" in command:
        assert {pod.environ()["KAFSCALE_FLUSH_INTERVAL"] for pod in pods} == {"5s"}
    elif "replicaCount" in command:
        assert f"replicaCount={len(pods)}" in command
        assert {pod.environ()["KAFSCALE_FLUSH_INTERVAL"] for pod in pods} == {"5s"}
    elif "brokers remove" in command:
        rows = json.loads(pods[0].execute(["kafscale", "brokers", "list", "--json"]))
        assert sorted(row["broker"] for row in rows) == [0, 1, 2]


def check_secured(cluster: Cluster, authority: Authority) -> None:
    """Produce and consume as alice, who has a password; then renew the certificate."""
    pods = cluster.pods["secured"]
    settings = {
        "bootstrap.servers": ",".join(pod.address(9092) for pod in pods),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca_file),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    pods[0].execute(["kafscale", "topics", "create", "orders", "--partitions", "6"])
    failures: list[str] = []
    producer = Producer(settings)
    for number in range(100):
        producer.produce(
            "orders", str(number), on_delivery=lambda error, _: failures.append(str(error)) if error else None
        )
    assert producer.flush(SECONDS) == 0
    assert failures == []
    pods[0].execute(["kafscale", "acls", "add", "User:alice", "--operation", "read", "--group", "readers"])
    consumer = Consumer({**settings, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found = {message.value() for message in consumer.consume(100, SECONDS)}
    consumer.close()
    assert found == {str(number).encode() for number in range(100)}
    before = shown_certificate(pods[0])
    cluster.secrets["secured"]["kafscale-tls"] = certificate(authority)
    for pod in pods:
        pod.secrets = cluster.secrets["secured"]
        pod.mount_files()
    wait_until(lambda: shown_certificate(pods[0]) != before, "the renewed certificate is shown", seconds=SECONDS)


def shown_certificate(pod: Pod) -> str:
    host, _, port = pod.address(9092).rpartition(":")
    time.sleep(0.5)
    return ssl.get_server_certificate((host, int(port)))
