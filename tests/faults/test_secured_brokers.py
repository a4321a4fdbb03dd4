"""Brokers that log in with each other: they hear of each other, and write each other's markers, whatever changes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafscale.testing.certificates import Authority, make_authority
from tests.devtools.external.clients import read_committed, wait_until
from tests.devtools.processes.cluster_load import QUIET, leaders_of
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

TOPIC, PARTITIONS = "orders", 12
SESSIONS_SECONDS = 10  # three session timeouts
MECHANISM = "SCRAM-SHA-512"
SETTINGS = """security.protocol=SASL_SSL
ssl.ca.location={ca}
sasl.mechanism=SCRAM-SHA-512
sasl.username={user}
sasl.password={password}
"""


@attrs.define(eq=False)
class Secured:
    """Two brokers, what they log in with, and the settings of a client."""

    brokers: Sequence[BrokerProcess]
    config: Path
    authority: Authority
    client: Mapping[str, str]
    admin: AdminClient

    def wait_both_lead(self) -> None:
        wait_until(lambda: leaders_of(self.admin, TOPIC) == {1, 2}, "both lead")

    def send_transactions(self, transactional_id: str, count: int) -> None:
        """Commit transactions that have a record in each partition, so that each has markers of both brokers."""
        producer = Producer({**self.client, "transactional.id": transactional_id, "transaction.timeout.ms": 30_000})
        producer.init_transactions(60)
        for number in range(count):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, f"{transactional_id} {number}", partition=partition)
            producer.commit_transaction(60)

    def committed(self, count: int) -> Sequence[str]:
        """Return what a consumer of committed records gets, which are to be so many."""
        found = read_committed(bootstrap_of(self.brokers), TOPIC, PARTITIONS, count, settings=self.client)
        return [(each.value() or b"").decode() for messages in found for each in messages]


def set_password(user: str, password: str, *where: str) -> None:
    """Make a user, or change the password."""
    command = [sys.executable, "-m", "kafscale", "users", "add", user, "--mechanism", MECHANISM, "--password-file", "-"]
    subprocess.run([*command, *where], input=password.encode(), check=True, capture_output=True)


@contextmanager
def secured_brokers(directory: Path, durability: str) -> Iterator[Secured]:
    bucket = directory / "bucket"
    bucket.mkdir()
    authority = make_authority(directory)
    shown = authority.issue("broker", hosts=("localhost", "127.0.0.1"))
    config = directory / "broker.properties"
    config.write_text(SETTINGS.format(ca=authority.ca_file, user="broker", password="first"))
    (directory / "client.properties").write_text(SETTINGS.format(ca=authority.ca_file, user="client", password="own"))
    for user, password in (("broker", "first"), ("client", "own")):
        set_password(user, password, "--store", f"file:{bucket}", "--data-dir", str(directory / "unused"))
    options = [
        *("--ssl-certificate-file", str(shown.certificate_file), "--ssl-key-file", str(shown.key_file)),
        *("--sasl-mechanisms", MECHANISM),
        *("--authorizer", "acl", "--super-user", "User:broker", "--super-user", "User:client"),
        *("--inter-broker-config", str(config), "--secret-key-file", str(directory / "unused" / "secret.key")),
    ]
    with broker_processes(2, "--durability", durability, *options, protocol="SASL_SSL", bucket=bucket) as brokers:
        settings = dict(line.split("=") for line in (directory / "client.properties").read_text().split())
        client = {**QUIET, **settings, "bootstrap.servers": bootstrap_of(brokers)}
        admin = AdminClient(client)
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
            created.result(30)
        secured = Secured(brokers, config, authority, client, admin)
        secured.wait_both_lead()
        yield secured


@pytest.mark.parametrize("durability", ["segment", "s3-wal"])
def test_transactions_of_two_brokers_that_log_in_by_sasl_and_tls(tmp_path: Path, durability: str) -> None:
    with secured_brokers(tmp_path, durability) as secured:
        for number in range(4):  # each has its coordinator somewhere else
            secured.send_transactions(f"t-{number}", 5)
        found = secured.committed(4 * 5 * PARTITIONS)
        assert sorted(set(found)) == [f"t-{number} {each}" for number in range(4) for each in range(5)]
        assert len(found) == 4 * 5 * PARTITIONS
        assert not any("refuses" in each.log for each in secured.brokers)


def test_brokers_that_get_a_new_password_while_they_run_go_on(tmp_path: Path) -> None:
    with secured_brokers(tmp_path, "segment") as secured:
        at = ("--bootstrap", secured.brokers[0].bootstrap, "--command-config", str(tmp_path / "client.properties"))
        set_password("broker", "second", *at)
        secured.config.write_text(SETTINGS.format(ca=secured.authority.ca_file, user="broker", password="second"))
        wait_until(lambda: all("was read again" in each.log for each in secured.brokers), "both have read it")
        secured.brokers[1].kill()
        wait_until(lambda: leaders_of(secured.admin, TOPIC) == {1}, "the other one leads")
        secured.brokers[1].start()
        wait_until(lambda: leaders_of(secured.admin, TOPIC) == {1, 2}, "it comes back")
        time.sleep(SESSIONS_SECONDS)
        assert leaders_of(secured.admin, TOPIC) == {1, 2}
