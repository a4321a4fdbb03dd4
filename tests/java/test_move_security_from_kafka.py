"""What `docs/how-to/move-security-from-kafka.md` says, with Apache Kafka as what is moved from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.kafka import KafkaBroker, class_path
from tests.devtools.processes.process import broker_process
from tests.java.java_tools import JavaTools

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]  # the first test may wait for Maven

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "move-security-from-kafka.md"
ACLS = "AclCommand"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def commands(first_word):
    """The commands of the page's block that begins so."""
    (block,) = [each for each in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S) if each.startswith(first_word)]
    return block


def shell(script, directory):
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-ec", script], cwd=directory, env={"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lists_of_kafka_act_here_as_they_did_there(tmp_path):
    kafka = KafkaBroker("kafka", AUTHORIZER, tmp_path)
    with kafka.running() as theirs, broker_process("--authorizer", "acl", "--super-user", "User:ANONYMOUS") as ours:
        tool = JavaTools(bootstrap=str(theirs.address), class_path=class_path())
        tool(ACLS, "--add", "--allow-principal", "User:bob", "--producer", "--topic", "orders", "--idempotent")
        tool(
            *(ACLS, "--add", "--allow-principal", "User:carol", "--consumer", "--group", "*", "--topic", "or"),
            *("--resource-pattern-type", "prefixed"),
        )
        tool(
            *(ACLS, "--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "All"),
            *("--transactional-id", "x"),
        )
        script = commands("kafscale acls list").replace("kafka:9092", str(theirs.address))
        printed = shell(script.replace("127.0.0.1:9092", ours.bootstrap), tmp_path)
        listed = json.loads((tmp_path / "acls.json").read_text())
        assert printed == f"loaded: {len(listed)} ACLs\n"
        assert len(listed) >= 8
        here = JavaTools(bootstrap=ours.bootstrap, class_path=class_path())
        assert entries(here(ACLS, "--list")) == entries(tool(ACLS, "--list")) != set()


def entries(text):
    """Each list with its resource, as `kafka-acls.sh --list` prints them below each resource."""
    found = set()
    for resource, below in re.findall(r"resource `ResourcePattern\((.*?)\)`:(.*?)(?=Current ACLs|\Z)", text, re.S):
        found |= {
            (resource, *each)
            for each in re.findall(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", below)
        }
    return found


def test_a_keystore_of_java_becomes_the_files_of_a_broker(tmp_path):
    subprocess.run(
        [
            *("keytool", "-genkeypair", "-keyalg", "EC", "-alias", "kafka", "-dname", "CN=localhost", "-validity", "1"),
            *("-ext", "SAN=ip:127.0.0.1", "-ext", "bc:c", "-storetype", "JKS", "-keystore", tmp_path / "kafka.jks"),
            *("-storepass", "changeit", "-keypass", "changeit"),
        ],
        check=True,
        capture_output=True,
    )
    shell(commands("keytool"), tmp_path)
    certificate = tmp_path / "broker.pem"
    assert certificate.stat().st_mode & 0o077 == 0
    with broker_process("--listen", "SSL=127.0.0.1:0", "--ssl-certificate-file", str(certificate)) as broker:
        settings = tmp_path / "client.properties"
        settings.write_text(f"security.protocol=SSL\nssl.ca.location={certificate}\n")
        (address,) = broker.further_listeners
        shell(f"kafscale topics list --bootstrap {address} --command-config {settings}", tmp_path)
