"""Spark, small and local, and a broker process whose bucket it reads. Needs Java 17 and the extra `spark`.

The program of a driver that is to be killed is given to `run_driver`, which runs it in a process group of its own:
Spark's JVM and its Python workers are in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import kafscale.spark
from kafscale.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[2]
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
DRIVER_TIMEOUT_SECONDS = 90.0


def start_spark(*, jars: Sequence[str] = (), **settings: str) -> SparkSession:
    """A session in this process. Its JVM takes memory and jars from the first one that is made."""
    from pyspark.sql import SparkSession

    assert kafscale.spark  # has set PYSPARK_PYTHON
    builder = SparkSession.builder.master("local[2]").appName("kafscale")
    for name, value in {**SETTINGS, "spark.jars": ",".join(jars), **settings}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def end_jvm() -> None:
    """End the JVM of this process: the next session gets one of its own, with the jars that it asks for."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(DRIVER_TIMEOUT_SECONDS)
        SparkContext._gateway = SparkContext._jvm = None


def resolve_jars(pom: Path, directory: Path) -> list[str]:
    """Paths of the jars of a pom, copied by Maven. Raises RuntimeError with what Maven said."""
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Maven could not resolve {pom}: {done.stdout}")
    return [str(path) for path in sorted(directory.glob("*.jar"))]


@contextmanager
def run_driver(program: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that is a Spark driver; killed with all that it started at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_driver(process)


def kill_driver(process: subprocess.Popen[str]) -> None:
    """As a power cut does: the JVM and the workers too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DRIVER_TIMEOUT_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def store_of(broker: BrokerProcess) -> str:
    """The option `store` for the bucket of a broker with default options."""
    return f"file:{broker.data_dir / 'bucket'}"


def flush(broker: BrokerProcess) -> None:
    """`kafscale flush`: all that was acknowledged is in the bucket then."""
    command = [sys.executable, "-m", "kafscale", "flush", "--admin", str(broker.admin)]
    subprocess.run(command, capture_output=True, check=True)
