"""A pod's start and end, as far as the chart relies on it: probes and the grace period, on a process."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

from kafscale.config import Address
from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import S3Process, s3_server
from tests.faults.proxies import Line, lines_to
from tests.helm.charts import HELM_MISSING, VALUES, helm_program, manifests
from tests.helm.pods import Pod, pods_of

pytestmark = [
    pytest.mark.helm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(helm_program() is None, reason=HELM_MISSING),
]

TIMEOUT_SECONDS = 4
READY_SECONDS = 60.0
NOT_READY_SECONDS = 3.0
RECORD = b"a record that is not in a segment"


def pod_behind(line: Line, store: S3Process, directory: Path) -> Pod:
    """Return the pod of a broker whose connections to the store go through the line."""
    found = manifests(
        f"store.endpoint=http://{line.address}",
        "store.credentialsSecret=keys",
        "config.s3-create-bucket=true",
        "replicaCount=1",
        f"shutdownTimeoutSeconds={TIMEOUT_SECONDS}",
        values=VALUES["default"],
    )
    keys = {
        "AWS_ACCESS_KEY_ID": store.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": store.credentials.secret_access_key,
    }
    [pod] = pods_of(found, directory, secrets={"keys": keys})
    return pod


def test_a_pod_lives_and_is_not_ready_while_the_store_is_silent_and_stops_within_its_grace_period(
    tmp_path: Path,
) -> None:
    with s3_server() as store:
        endpoint = urlsplit(store.endpoint)
        with lines_to(Address(str(endpoint.hostname), endpoint.port or 0)) as [line]:
            pod = pod_behind(line, store, tmp_path)
            try:
                line.freeze()
                pod.start()
                wait_until(lambda: pod.probe("livenessProbe"), "the pod lives", seconds=READY_SECONDS)
                time.sleep(NOT_READY_SECONDS)
                assert pod.probe("livenessProbe")
                assert not pod.probe("readinessProbe")
                line.thaw()
                pod.wait_ready()
                producer = Producer({"bootstrap.servers": pod.address(9092), "linger.ms": 0})
                producer.produce("orders", RECORD)
                assert producer.flush(READY_SECONDS) == 0
                line.freeze()
                producer.produce("orders", RECORD)  # it waits for the store, and so does the broker's stop
                producer.poll(1.0)
                seconds = pod.stop()
            finally:
                pod.kill()
    print(f"a pod whose store was silent stopped in {seconds:.1f} s of {pod.spec['terminationGracePeriodSeconds']}")
    assert seconds > TIMEOUT_SECONDS / 2  # it did wait


def test_a_pod_that_is_deleted_during_its_start_ends_at_once(tmp_path: Path) -> None:
    with s3_server() as store:
        endpoint = urlsplit(store.endpoint)
        with lines_to(Address(str(endpoint.hostname), endpoint.port or 0)) as [line]:
            pod = pod_behind(line, store, tmp_path)
            try:
                line.freeze()
                pod.start()
                wait_until(lambda: pod.probe("livenessProbe"), "the pod lives", seconds=READY_SECONDS)
                assert pod.process is not None
                pod.process.send_signal(signal.SIGTERM)
                assert pod.process.wait(pod.spec["terminationGracePeriodSeconds"]) == 0
            finally:
                pod.kill()
