"""Three brokers: of ours on one bucket, or of Apache Kafka with three replicas."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path

import attrs
import trio
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.peers.kafka import BROKER_FLAGS, CLUSTER_ID, free_ports, is_listening, java_command
from bench.points import TOPIC
from bench.processes import cpu_seconds, stop
from kafscale.client.client import connect
from kafscale.config import Address
from kafscale.wire.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionToDescribe,
    TopicToDescribe,
)
from tests.devtools.external.s3_processes import minio_server
from tests.devtools.processes.cluster_load import QUIET
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes

BROKERS = 3
LED_SECONDS = 90.0
LOOK_SECONDS = 0.02
OWN_WAL = "kafscale wal"
OWN_S3_WAL = "kafscale s3-wal"
KAFKA = "Apache Kafka"
METADATA_TOPIC = "__cluster_metadata"


@attrs.define(eq=False, kw_only=True)
class Three:
    """Brokers 1 to 3, by the addresses of `bootstrap` in this order. `pids` are those that run now."""

    bootstrap: str
    replicas: int
    pids: Callable[[], Mapping[int, int]]
    kill: Callable[[int], None]

    @cached_property
    def admin(self) -> AdminClient:
        """A client of all three."""
        return AdminClient({**QUIET, "bootstrap.servers": self.bootstrap, "socket.timeout.ms": 3000})

    def create_topic(self, partitions: int) -> None:
        """Make the topic, and wait until each broker leads some of it."""
        new = NewTopic(TOPIC, partitions, self.replicas)
        self.admin.create_topics([new])[TOPIC].result(LED_SECONDS)
        self.wait_led_by({1, 2, 3})

    def wait_led_by(self, broker_ids: set[int]) -> None:
        """Wait until these brokers, and no others, lead the topic."""
        admin, give_up_at = self.admin, time.monotonic() + LED_SECONDS
        while {
            partition.leader for partition in admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
        } != broker_ids:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"the topic is not led by {broker_ids} after {LED_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)

    def controller(self) -> int:
        """Return who decides for all, which Kafka's brokers tell by DescribeQuorum alone."""
        return trio.run(_quorum_leader, self.addresses)

    @property
    def addresses(self) -> Sequence[Address]:
        return [Address.parse(address) for address in self.bootstrap.split(",")]

    def cpu_seconds(self) -> float:
        """Return what all three have used."""
        return sum(map(cpu_seconds, self.pids().values()))


@contextmanager
def three_of_ours(*options: str, on_s3: bool) -> Iterator[Three]:
    """Run three brokers for the block, on MinIO where it is wanted and installed, or else on a directory."""
    with minio_server() if on_s3 and shutil.which("minio") else nullcontext() as server:
        with broker_processes(BROKERS, *options, store=server) as brokers:
            yield Three(
                bootstrap=bootstrap_of(brokers),
                replicas=1,
                pids=lambda: {
                    number: broker.pid for number, broker in enumerate(brokers, start=1) if broker.returncode is None
                },
                kill=lambda broker_id: brokers[broker_id - 1].kill(),
            )


@contextmanager
def three_of_kafka(directory: Path | None) -> Iterator[Three]:
    """Run three nodes of Apache Kafka for the block, each of them broker and controller; two replicas acknowledge."""
    with tempfile.TemporaryDirectory(prefix="kafka-bench-", dir=directory) as used, ExitStack() as stack:
        ports = free_ports(2 * BROKERS)
        running: dict[int, subprocess.Popen[bytes]] = {}
        for node_id in range(1, BROKERS + 1):
            running[node_id] = _start_kafka(Path(used) / str(node_id), node_id, ports)
            stack.callback(stop, running[node_id])
        for node_id, process in running.items():
            if not is_listening(process, ports[node_id - 1]):
                raise RuntimeError(
                    f"Apache Kafka did not start: {(Path(used) / str(node_id) / 'output').read_text()[-2000:]}"
                )

        def kill(node_id: int) -> None:
            running[node_id].send_signal(signal.SIGKILL)
            running.pop(node_id).wait()

        yield Three(
            bootstrap=",".join(f"127.0.0.1:{port}" for port in ports[:BROKERS]),
            replicas=BROKERS,
            pids=lambda: {node_id: process.pid for node_id, process in running.items()},
            kill=kill,
        )


def _start_kafka(directory: Path, node_id: int, ports: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a node; of the ports the first three are the brokers', the others the controllers'."""
    directory.mkdir()
    voters = ",".join(f"{node_id}@127.0.0.1:{ports[BROKERS + node_id - 1]}" for node_id in range(1, BROKERS + 1))
    port, controller_port = ports[node_id - 1], ports[BROKERS + node_id - 1]
    lines = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": f"{directory}/data",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "auto.create.topics.enable": "false",
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    form = java_command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
    done = subprocess.run(form, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Apache Kafka could not format its directory: {(done.stdout + done.stderr)[-2000:]}")
    with (directory / "output").open("w") as output:
        command = java_command("kafka.Kafka", str(properties), flags=BROKER_FLAGS)
        return subprocess.Popen(command, stdout=output, stderr=output)


async def _quorum_leader(addresses: Sequence[Address]) -> int:
    topic = TopicToDescribe(topic_name=METADATA_TOPIC, partitions=[PartitionToDescribe(partition_index=0)])
    async with connect(addresses, "bench") as client:
        answer = await client.request(DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse)
    return answer.topics[0].partitions[0].leader_id
