"""Apache Kafka from Maven Central: one KRaft node in an empty directory, with the JVM flags of its own start script."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import attrs

from bench.brokers import RunningBroker
from bench.processes import stop
from bench.secured.sasl_ssl import PROTOCOL, SaslSsl
from kafscale.config import Address

POM = Path(__file__).with_name("pom.xml")
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
BROKER_FLAGS = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
                "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
START_SECONDS = 600  # five where nothing else runs

DURABLE: Mapping[str, str] = {"log.flush.interval.messages": "1"}
DEFAULT: Mapping[str, str] = {}


def find_java() -> str | None:
    """Return what is missing to run Kafka; None if nothing is."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    return f"{' and '.join(missing)} not on the PATH; Apache Kafka needs Java 17 and Maven" if missing else None


@cache
def class_path(pom: Path = POM) -> str:
    """The jars of a pom, downloaded by Maven the first time. Raises RuntimeError with what Maven said."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "class-path"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Maven could not resolve {pom}: {done.stdout}")
        return file.read_text()


def java_command(*arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
    """Return how to run a class of Kafka's."""
    return ["java", *flags, QUIET, "-cp", class_path(), *arguments]


@attrs.frozen
class KafkaBroker:
    """A broker and controller in one process. `settings` are added to server.properties.

    security: of its listener; None for one without TLS and SASL.
    """

    name: str
    settings: Mapping[str, str]
    directory: Path | None = None
    security: SaslSsl | None = None

    @contextmanager
    def running(self) -> Iterator[RunningBroker]:
        with tempfile.TemporaryDirectory(prefix="kafka-bench-", dir=self.directory) as directory:
            port, controller_port = free_ports(2)
            properties = Path(directory) / "server.properties"
            listeners = listener_settings(port, controller_port, self.security)
            lines = {**_node(controller_port, directory), **listeners, **self.settings}
            properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            self._format(properties)
            command = java_command("kafka.Kafka", str(properties), flags=BROKER_FLAGS)
            with (Path(directory) / "output").open("w") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output)
            try:
                if not is_listening(process, port):
                    raise RuntimeError(
                        f"Apache Kafka did not start: {(Path(directory) / 'output').read_text()[-2000:]}"
                    )
                yield RunningBroker(
                    name=self.name,
                    address=Address("127.0.0.1", port),
                    pid=process.pid,
                    metrics_url=None,
                    security=self.security,
                )
            finally:
                stop(process)

    def _format(self, properties: Path) -> None:
        further = () if self.security is None else self.security.kafka_format_options
        form = java_command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *further)
        done = subprocess.run(form, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Apache Kafka could not format its directory: {(done.stdout + done.stderr)[-2000:]}")


def listener_settings(port: int, controller_port: int, security: SaslSsl | None) -> Mapping[str, str]:
    """Return what server.properties say of the listeners, of which the controller's is without TLS."""
    protocol = "PLAINTEXT" if security is None else PROTOCOL.value
    return {
        "listeners": f"{protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": f"{protocol}:{protocol},CONTROLLER:PLAINTEXT",
        **({} if security is None else security.kafka_settings),
    }


def _node(controller_port: int, directory: str) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{directory}/data",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.segment.delete.delay.ms": "1000",  # or the topics of earlier loads would fill the disk
    }


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [reservation.getsockname()[1] for reservation in sockets]
    for reservation in sockets:
        reservation.close()
    return ports


def is_listening(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until somebody listens on a port; False if the process ends before, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(0.2)
    return False
