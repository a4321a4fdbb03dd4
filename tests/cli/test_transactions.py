"""`kafscale transactions`, against a broker process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from tests.devtools.processes.process import BrokerProcess, broker_process

SECONDS = 30


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with broker_process("--transaction-state-log-num-partitions", "3") as process:
        yield process


def kafscale(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafscale", "transactions", *arguments, "--bootstrap", broker.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_list_describe_and_abort(broker: BrokerProcess) -> None:
    assert "nope" not in kafscale(broker, "list").stdout
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "mine"})
    producer.init_transactions(SECONDS)
    assert "Empty" in kafscale(broker, "list").stdout
    refused = kafscale(broker, "abort", "mine")
    assert (refused.returncode, "has no open transaction: it is Empty" in refused.stderr) == (1, True)
    producer.begin_transaction()
    producer.produce("orders", b"v", partition=0)
    assert producer.flush(SECONDS) == 0
    assert "mine" in kafscale(broker, "list", "--state", "Ongoing").stdout
    assert "mine" not in kafscale(broker, "list", "--state", "Empty").stdout
    described = kafscale(broker, "describe", "mine")
    assert described.stdout.startswith("transactional id mine is Ongoing; producer ")
    assert "orders" in described.stdout
    assert '"partitions": [{"topic": "orders", "partition": 0}]' in " ".join(
        kafscale(broker, "describe", "mine", "--json").stdout.split()
    ).replace("[ {", "[{").replace("} ]", "}]").replace("{ ", "{").replace(" }", "}")
    aborted = kafscale(broker, "abort", "mine")
    assert (aborted.returncode, aborted.stdout) == (0, "aborted the transaction of mine\n")
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    missing = kafscale(broker, "describe", "nope")
    assert (missing.returncode, "TRANSACTIONAL_ID_NOT_FOUND" in missing.stderr) == (1, True)
