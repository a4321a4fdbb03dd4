"""An upgrade of the chart, run on processes: the order, the signals and the waits of a StatefulSet, under load.

The pods have the environment and the command of the rendered manifests and of the Dockerfile; the store is MinIO where
it is installed. Each pod's data directory is an emptyDir, which is gone after the pod. Clients are librdkafka's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import s3_server
from tests.devtools.processes.cluster_load import QUIET, ClusterLoad, leaders_of
from tests.helm.charts import HELM_MISSING, VALUES, Manifest, helm_program, manifests, of_kind
from tests.helm.group_reader import GroupReader
from tests.helm.pods import Pod, pods_of

pytestmark = [
    pytest.mark.helm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(helm_program() is None, reason=HELM_MISSING),
]

TOPIC = "orders"
PARTITION_COUNT = 6
CLIENTS_PORT = 9092
SETTLED_SECONDS = 180.0
SESSION_TIMEOUT = "15s"  # a busy machine must not have brokers declared dead; a clean stop needs no timeout
BEFORE_SECONDS = 5.0  # of load, before the first pod stops
READ_SECONDS = 120.0
MACHINE = (
    "store.credentialsSecret=keys",
    "config.s3-create-bucket=true",
    f"config.broker-session-timeout={SESSION_TIMEOUT}",
)
LONGEST_GAP_SECONDS = 30.0  # without a record of one partition; on a quiet machine it is a tenth of this


def stateful_set(*settings: str) -> Manifest:
    [found] = of_kind(manifests(*settings, values=VALUES["default"]), "StatefulSet")
    return found


@contextmanager
def running_pods(directory: Path, *settings: str) -> Iterator[list[Pod]]:
    """Start all pods at once, as podManagementPolicy: Parallel has it, on a bucket that they make."""
    with s3_server() as store:
        keys = {
            "AWS_ACCESS_KEY_ID": store.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": store.credentials.secret_access_key,
        }
        where = (f"store.endpoint={store.endpoint}", *MACHINE)
        pods = pods_of(manifests(*where, *settings, values=VALUES["default"]), directory, secrets={"keys": keys})
        try:
            for pod in pods:
                pod.start()
            for pod in pods:
                pod.wait_ready()
            yield pods
        finally:
            for pod in pods:
                pod.kill()


def upgrade(pods: list[Pod], *settings: str) -> list[float]:
    """Give each pod the changed template, the last one first; go on when it has been ready for minReadySeconds.

    Returns the seconds that each took to stop.
    """
    seconds = []
    for pod in reversed(pods):
        environ = pod.stateful_set["spec"]["template"]["spec"]["containers"][0]["env"]
        endpoint = next(variable["value"] for variable in environ if variable["name"] == "KAFSCALE_S3_ENDPOINT")
        changed = stateful_set(f"store.endpoint={endpoint}", *MACHINE, *settings)
        assert changed["spec"]["template"] != pod.stateful_set["spec"]["template"]
        seconds.append(pod.replace(changed))
    return seconds


def peak_memory_bytes(pod: Pod) -> int:
    assert pod.process is not None
    status = Path(f"/proc/{pod.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_an_upgrade_under_load_loses_repeats_and_reorders_nothing(tmp_path: Path) -> None:
    with running_pods(tmp_path) as pods:
        bootstrap = ",".join(pod.address(CLIENTS_PORT) for pod in pods)
        admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        with ClusterLoad(bootstrap, TOPIC, PARTITION_COUNT, patience={}) as load:
            wait_until(lambda: leaders_of(admin, TOPIC) == {0, 1, 2}, "all brokers lead", seconds=SETTLED_SECONDS)
            with GroupReader(bootstrap, TOPIC, PARTITION_COUNT) as reader:
                time.sleep(BEFORE_SECONDS)
                stopped_seconds = upgrade(pods, "config.log-format=json")
                wait_until(lambda: leaders_of(admin, TOPIC) == {0, 1, 2}, "all lead again", seconds=SETTLED_SECONDS)
                load.__exit__()
                report = load.read_back()
                wait_until(lambda: reader.count >= report.read_count, "all is read", seconds=READ_SECONDS)
        peak_bytes = max(map(peak_memory_bytes, pods))
    print(
        f"upgrade: {report}; a group read {reader.count}, longest gap {reader.gap_seconds:.2f} s; pods stopped in "
        f"{', '.join(f'{seconds:.1f}' for seconds in stopped_seconds)} s; most memory {peak_bytes >> 20} MiB"
    )
    assert report.problems == []
    assert reader.problems == []
    assert reader.count == report.read_count == report.acknowledged_count > 1000
    assert max(report.gap_seconds, reader.gap_seconds) < LONGEST_GAP_SECONDS
    assert '"level": "info"' in pods[0].log.read_text()  # it runs with the new template
