"""The Spark of a run: local, two cores, with Spark's own Kafka source, and what it uses of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from bench import processes
from bench.processes import PROC
from tests.devtools.external.spark import resolve_jars, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POM = Path(__file__).parents[2] / "tests" / "spark" / "pom.xml"
SETTINGS = {
    "spark.driver.memory": "4g",  # the Kafka source keeps consumers and their prefetched records for some minutes
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}


@attrs.frozen(kw_only=True)
class Used:
    """CPU seconds of Spark: its JVM, and its Python workers."""

    jvm_seconds: float
    python_seconds: float

    def __sub__(self, other: Used) -> Used:
        return Used(
            jvm_seconds=self.jvm_seconds - other.jvm_seconds,
            python_seconds=self.python_seconds - other.python_seconds,
        )


@attrs.frozen(kw_only=True, eq=False)
class Spark:
    """A session, and the process of its JVM."""

    session: SparkSession
    jvm_pid: int

    @property
    def version(self) -> str:
        """The version of Spark."""
        return str(self.session.version)

    def used(self) -> Used:
        """Return what was used until now."""
        return Used(
            jvm_seconds=processes.cpu_seconds(self.jvm_pid),
            python_seconds=processes.descendants_cpu_seconds(self.jvm_pid),
        )


@contextmanager
def running_spark() -> Iterator[Spark]:
    """A session with the Kafka source; Maven gets its jars the first time."""
    with TemporaryDirectory(prefix="kafscale-bench-jars-") as directory:
        session = start_spark(jars=resolve_jars(POM, Path(directory)), **SETTINGS)
        try:
            gateway = session.sparkContext._gateway
            assert gateway is not None, "the session runs"
            yield Spark(session=session, jvm_pid=_java_below(gateway.proc.pid))
        finally:
            session.stop()


def _java_below(pid: int) -> int:
    """pyspark starts the JVM by a shell script, which becomes it or stays its parent."""
    while (PROC / str(pid) / "comm").read_text().strip() != "java":
        pid = int((PROC / str(pid) / "task" / str(pid) / "children").read_text().split()[0])
    return pid
