"""The brokers that a load is sent to: one of ours, started for it, or a peer that runs already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs
import httpx
import trio

from bench import processes
from bench.points import TOPIC
from bench.secured.sasl_ssl import SaslSsl
from kafscale.client import admin
from kafscale.client.client import Client, connect
from kafscale.client.consumer import LATEST, list_offsets
from kafscale.config import Address
from kafscale.errors import KafkaError
from kafscale.login.security import PLAINTEXT
from tests.devtools.processes.process import rss_mib

os.environ.setdefault("KAFSCALE_CONSOLE", "none")  # its address is one for all brokers
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
READY = re.compile(r"kafscale is ready: kafka ([^\s:]+):(\d+)(?:,\S+)? admin (\S+)")
TOPIC_SECONDS = 60
FLUSH_SECONDS = 120
OWN_NAME = "kafscale"


@attrs.frozen(kw_only=True)
class Usage:
    """Usage of a broker until now; None where it does not report a figure."""

    cpu_seconds: float | None
    syncs: int | None
    puts: int | None
    gets: int | None


@attrs.frozen(kw_only=True)
class RunningBroker:
    """A broker to send loads to, or several below one process, of which `address` is the first one's.

    `metrics_url` is None for a peer, and `security` where there is no TLS.
    """

    name: str
    address: Address
    pid: int | None
    metrics_url: str | None
    security: SaslSsl | None = None
    processes_count: int = 1

    def usage(self) -> Usage:
        samples = self.samples()
        return Usage(
            cpu_seconds=None if self.pid is None else processes.with_descendants_cpu_seconds(self.pid),
            syncs=_total(samples, "kafscale_wal_syncs_total"),
            puts=_total(samples, "kafscale_store_operations_total", 'operation="put'),
            gets=_total(samples, "kafscale_store_operations_total", 'operation="get'),
        )

    def rss_mib(self) -> float | None:
        if self.pid is None:
            return None
        return sum(map(rss_mib, {self.pid, *processes.descendants(self.pid)}))

    def samples(self) -> dict[str, float]:
        """Return what /metrics says now; nothing for a peer."""
        if self.metrics_url is None:
            return {}
        lines = httpx.get(self.metrics_url).raise_for_status().text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def flush(self) -> None:
        """Bring everything into the bucket; does nothing for a peer."""
        if self.metrics_url is not None:
            httpx.post(self.metrics_url.replace("/metrics", "/flush"), timeout=FLUSH_SECONDS).raise_for_status()

    def create_topic(self, partitions: int) -> None:
        """An empty topic, in place of one that an earlier load has left."""
        trio.run(_create_topic, self, partitions)

    def remove_topic(self) -> None:
        """Remove the topic, so that what a load has left need not be written to the disk."""
        trio.run(_remove_topic, self)


class Startable(Protocol):
    """A broker that `running` starts, or finds running."""

    @property
    def name(self) -> str: ...

    def running(self) -> AbstractContextManager[RunningBroker]: ...


def _total(samples: dict[str, float], name: str, label: str = "") -> int | None:
    """Return the sum of all samples of a name that have the label, None where there are no samples at all."""
    if not samples:
        return None
    return int(sum(value for sample, value in samples.items() if sample.startswith(name) and label in sample))


def _connect(broker: RunningBroker) -> AbstractAsyncContextManager[Client]:
    security = PLAINTEXT if broker.security is None else broker.security.client()
    return connect(broker.address, "bench", security=security)


async def _create_topic(broker: RunningBroker, partitions: int) -> None:
    async with _connect(broker) as client:
        with suppress(KafkaError):
            await admin.delete_topic(client, TOPIC)
        new = admin.TopicToCreate(name=TOPIC, partition_count=partitions, replication_factor=1)
        with trio.fail_after(TOPIC_SECONDS):
            await _until_done(partial(admin.create_topic, client, new))
            await _until_done(partial(list_offsets, client, TOPIC, dict.fromkeys(range(partitions), LATEST)))


async def _remove_topic(broker: RunningBroker) -> None:
    async with _connect(broker) as client:
        await admin.delete_topic(client, TOPIC)


async def _until_done(attempt: Callable[[], Awaitable[object]]) -> None:
    """Apache Kafka deletes a topic, and makes a new one, after it has said that it has."""
    while True:
        try:
            await attempt()
        except KafkaError:
            await trio.sleep(0.1)
        else:
            return


@attrs.frozen
class Peer:
    """A broker that runs already, by the address of its listener."""

    name: str
    address: Address

    @classmethod
    def parse(cls, text: str) -> Peer:
        """`name=host:port`. Raises ValueError."""
        name, equals, address = text.partition("=")
        host, colon, port = address.rpartition(":")
        if not (equals and colon):
            raise ValueError(f"'{text}' is not a peer; allowed: NAME=HOST:PORT")
        return cls(name, Address(host, int(port)))

    @contextmanager
    def running(self) -> Iterator[RunningBroker]:
        pid = processes.listener_pid(self.address.port)
        yield RunningBroker(name=self.name, address=self.address, pid=pid, metrics_url=None)


@attrs.frozen(kw_only=True)
class OwnBroker:
    """`kafscale serve`, started in an empty directory, which is removed with it.

    Or in `data_dir`, which stays. `environ` is set on top of this process's own. `checkout`: another one than this,
    whose code runs in the virtual environment that it has. `security`: of its listener, which is without TLS and SASL
    if it has none. `processes_count`: brokers of one supervisor, if more than one.
    """

    options: Sequence[str] = ()
    directory: Path | None = None
    name: str = OWN_NAME
    data_dir: Path | None = None
    environ: Mapping[str, str] = attrs.field(factory=dict)
    checkout: Path | None = None
    security: SaslSsl | None = None
    processes_count: int = 1

    @contextmanager
    def running(self) -> Iterator[RunningBroker]:
        with ExitStack() as stack:
            data_dir = self.data_dir or stack.enter_context(
                tempfile.TemporaryDirectory(prefix="kafscale-bench-", dir=self.directory)
            )
            listener = ["--listen", "127.0.0.1:0"]
            if self.security is not None:
                listener = [*self.security.serve_options]
                self._add_user(data_dir, self.security)
            if self.processes_count > 1:
                listener += ["--processes", str(self.processes_count)]
                listener += ["--inter-broker-config", str(self.security.properties_file)] if self.security else []
            where = ["--data-dir", str(data_dir), "--log-level", "warning", "--admin-listen", "127.0.0.1:0"]
            command = [*self._program, "serve", *where, *listener, *self.options]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=self._environ, cwd=self.checkout
            ) as process:
                try:
                    yield self._when_ready(process)
                finally:
                    processes.stop(process)

    @property
    def _environ(self) -> Mapping[str, str]:
        """Return a user's environment, where Python keeps compiled modules: a start is not the time of a compiler."""
        return {**{name: value for name, value in os.environ.items() if name != _NO_BYTECODE}, **self.environ}

    @property
    def _program(self) -> Sequence[str]:
        python = sys.executable if self.checkout is None else str(self.checkout / ".venv" / "bin" / "python")
        return [python, "-m", "kafscale"]

    def _add_user(self, data_dir: Path | str, security: SaslSsl) -> None:
        add = [*self._program, "users", "add", "--data-dir", str(data_dir), *security.add_user_options]
        subprocess.run(add, check=True, env=self._environ, cwd=self.checkout, capture_output=True)

    def _when_ready(self, process: subprocess.Popen[str]) -> RunningBroker:
        assert process.stdout is not None
        ready = READY.match(process.stdout.readline())
        if ready is None:
            raise RuntimeError("the broker did not start")
        return RunningBroker(
            name=self.name,
            address=Address(ready[1], int(ready[2])),
            pid=process.pid,
            metrics_url=f"http://{ready[3]}/metrics",
            security=self.security,
            processes_count=self.processes_count,
        )
