"""Spark, small and local, and a broker process whose bucket it reads. Needs Java 17 and the extra `spark`.

The program of a driver that is to be killed is given to `run_driver`, which runs it in a process group of its own:
Spark's JVM and its Python workers are in it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import kafscale.spark
from kafscale.config import StoreUrl
from kafscale.spark import catalogs
from kafscale.spark.bucket.bucket import BucketOptions
from kafscale.spark.bucket.catalog import Catalog
from tests.devtools.processes.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

REPOSITORY = Path(__file__).parents[3]
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
KAFKA_SOURCES: dict[str, dict[str, str]] = {  # by Spark, properties of `tests/spark/pom.xml` other than it has them
    "4.1": {},
    "4.2": {"spark.version": "4.2.0", "token.provider.version": "4.2.0"},
}
STREAM_START_COUNT = 5
WORKER_WAS_LATE = "Python worker failed to connect back"
DRIVER_TIMEOUT_SECONDS = 90.0
DAEMON_TIMEOUT_SECONDS = 90.0
METADATA_TIMEOUT_SECONDS = 60.0

_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master (\S+)")


def start_spark(*, jars: Sequence[str] = (), **settings: str) -> SparkSession:
    """Return a session in this process. Its JVM takes memory and jars from the first one."""
    from pyspark.sql import SparkSession

    assert kafscale.spark  # has set PYSPARK_PYTHON
    builder = SparkSession.builder.master("local[2]").appName("kafscale")
    for name, value in {**SETTINGS, "spark.jars": ",".join(jars), **settings}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def environ_of(**variables: str) -> dict[str, str]:
    """Return the environment of a process that imports this tree, as do the Spark workers that it starts."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}


def skip_without_iceberg() -> None:
    """Skip a test where pyspark is not the one that Iceberg's runtime is made for."""
    import pyspark
    import pytest

    if not pyspark.__version__.startswith(f"{catalogs.ICEBERG_SPARK}."):
        pytest.skip(f"Iceberg {catalogs.ICEBERG_VERSION} runs on Spark {catalogs.ICEBERG_SPARK} alone")


def run_stream(writer: DataStreamWriter) -> None:
    """Run a query until it ends by itself; raises the error that ended it.

    The query is started again where Spark gave up waiting (10 s) for the Python process that plans it: that process
    needs a second of CPU to start, and longer on a busy machine.
    """
    for attempt in range(1, STREAM_START_COUNT + 1):
        try:
            writer.start().awaitTermination()
            return
        except Exception as exc:  # of Spark's, by its text alone
            if WORKER_WAS_LATE not in str(exc) or attempt == STREAM_START_COUNT:
                raise


def asks_again() -> bool:
    """Tell whether this pyspark asks a source in Python for more under Trigger.AvailableNow."""
    major, minor = _minor_version().split(".")
    return (int(major), int(minor)) >= (4, 2)


def kafka_source_versions() -> dict[str, str]:
    """Return the properties of `tests/spark/pom.xml` for the pyspark that is installed: the newest for later ones."""
    return KAFKA_SOURCES.get(_minor_version(), KAFKA_SOURCES[max(KAFKA_SOURCES)])


def skip_without_kafka_stream() -> None:
    """Skip a test where the Kafka source is of another Spark, whose streams it can't read for."""
    import pytest

    if _minor_version() not in KAFKA_SOURCES:
        pytest.skip(f"the Kafka source of Spark {max(KAFKA_SOURCES)} can't stream on another, whose inside is changed")


def _minor_version() -> str:
    import pyspark

    return ".".join(pyspark.__version__.split(".")[:2])


def end_jvm() -> None:
    """End the JVM of this process: the next session gets one of its own, with the jars that it asks for."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(DRIVER_TIMEOUT_SECONDS)
        SparkContext._gateway = SparkContext._jvm = None


def resolve_jars(pom: Path, directory: Path, **properties: str) -> list[str]:
    """Paths of the jars of a pom, with these properties, copied by Maven. Raises RuntimeError with what Maven said."""
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    command += [f"-D{name}={value}" for name, value in properties.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Maven could not resolve {pom}: {done.stdout}")
    return [str(path) for path in sorted(directory.glob("*.jar"))]


@contextmanager
def run_driver(program: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that is a Spark driver; killed with all that it started at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, str(program), *arguments],
        env=environ_of(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_driver(process)


def kill_driver(process: subprocess.Popen[str]) -> None:
    """Kill the driver as a power cut does: the JVM and the workers too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DRIVER_TIMEOUT_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def spark_cluster(directory: Path, workers_count: int = 2) -> Iterator[str]:
    """A standalone cluster of one-core workers on this machine, by `spark-class`; yields its URL, `spark://…`."""
    with ExitStack() as running:
        master = running.enter_context(_daemon(directory / "master", "master.Master"))
        url = _await_line(master, directory / "master", _MASTER_URL)
        for number in range(workers_count):
            home = directory / f"worker-{number}"
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(home), url)
            worker = running.enter_context(_daemon(home, "worker.Worker", *options))
            _await_line(worker, home, _REGISTERED)
        yield url


@contextmanager
def _daemon(directory: Path, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon of Spark's `org.apache.spark.deploy`. What it has started is killed with it."""
    import pyspark

    directory.mkdir(parents=True)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *options]
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await_line(process: subprocess.Popen[bytes], directory: Path, pattern: re.Pattern[str]) -> str:
    deadline = time.monotonic() + DAEMON_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := pattern.search((directory / "log").read_text()):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"a daemon of Spark's did not start: {(directory / 'log').read_text()[-2000:]}")


def store_of(broker: BrokerProcess) -> str:
    """The option `store` for the bucket of a broker with default options."""
    return f"file:{broker.data_dir / 'bucket'}"


def wait_for_topic(broker: BrokerProcess, topic: str) -> None:
    """Wait until a metadata checkpoint in the bucket has the topic, at most 10 s after its creation."""
    catalog = Catalog(BucketOptions(url=StoreUrl.parse(store_of(broker))).open())
    deadline = time.monotonic() + METADATA_TIMEOUT_SECONDS
    while topic not in catalog.metadata.topics:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the bucket does not know topic {topic} after {METADATA_TIMEOUT_SECONDS} s")
        time.sleep(0.1)
        catalog.look_again()


def flush(broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "kafscale", "flush", "--admin", str(broker.admin)]
    subprocess.run(command, capture_output=True, check=True)
