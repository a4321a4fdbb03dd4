"""Several brokers as processes: those that share a bucket, and those of `kafscale serve --processes N` on one machine.

`pytest tests/clients --processes 3` runs the tests of clients on the latter: `install` makes `broker_process` start
them.
"""

from __future__ import annotations

import re
import socket
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest

from kafscale.cluster.membership.start.member import LOOK_SECONDS
from kafscale.config import Address
from tests.devtools.external.s3_processes import S3Process
from tests.devtools.processes import process
from tests.devtools.processes.process import BrokerProcess, _first_line

RESERVE_ATTEMPTS_COUNT = 100
# Why a test, or a module, has nothing to say of several brokers, or needs one.
LEFT_OUT: Mapping[str, str] = {
    "test_end_hole.py": "a broker alone has a checkpoint of the manifests, by which it finds what is missing",
    "test_the_cluster_is_described": "it describes a cluster of one",
    "test_partition_reassignment_to_another_broker_is_refused": "it moves, where there is another broker",
    "test_a_replica_is_in_the_only_directory": "each broker has one",
    "test_consumers_notice_nothing_of_segments_that_are_merged_and_deleted": "metrics have no label of a broker there",
}

_READY = re.compile(r"kafscale is ready: kafka (\S+) admin (\S+)(.*)")


@attrs.define(kw_only=True, eq=False)
class SeveralBrokerProcesses(BrokerProcess):
    """A supervisor and its brokers. `kafka` is the address of the first; `pid` is the supervisor's."""

    processes_count: int
    addresses: list[Address] = attrs.field(factory=list, init=False)

    @property
    def bootstrap(self) -> str:
        return ",".join(map(str, self.addresses))

    @property
    def broker_ids(self) -> Sequence[int]:
        return range(self.processes_count)

    def pid_of(self, broker_id: int) -> int:
        return int(re.findall(rf"broker {broker_id} is ready, as process (\d+)", self.log)[-1])

    def settle(self) -> None:
        time.sleep(2 * LOOK_SECONDS)  # as long as any of them may take to hear of it, and to look

    def start(self, timeout_seconds: float = process.START_TIMEOUT_SECONDS) -> None:
        running = self.launch()
        ready = _READY.match(_first_line(running, time.monotonic() + timeout_seconds))
        if ready is None:
            raise self._not_ready(running, timeout_seconds)
        self.addresses = [Address.parse(address) for address in ready[1].split(",")]
        self.admin = Address.parse(ready[2])
        self.further_listeners = ready[3].split()

    def _reserved_kafka(self) -> Address:
        for _ in range(RESERVE_ATTEMPTS_COUNT):
            with ExitStack() as stack:
                first = _reserve(stack, 0)
                try:
                    for number in range(1, self.processes_count):
                        _reserve(stack, first.port + number)
                except OSError:
                    continue
                weakref.finalize(self, stack.pop_all().close)
                return first
        raise OSError("no ports that are free, one behind the other")

    def _command(self) -> list[str]:
        return [*super()._command(), "--processes", str(self.processes_count)]


def _reserve(stack: ExitStack, port: int) -> Address:
    reservation = stack.enter_context(socket.socket())
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", port))
    return Address(*reservation.getsockname())


@contextmanager
def several_broker_processes(
    count: int,
    *options: str,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    program: Sequence[str] = process.KAFSCALE,
) -> Iterator[SeveralBrokerProcesses]:
    """Run the brokers for the block, in a temporary directory by default; they are killed at the end."""
    with nullcontext(directory) if directory is not None else TemporaryDirectory(prefix="kafscale-") as used:
        brokers = SeveralBrokerProcesses(
            directory=Path(used), options=options, environ=environ or {}, program=program, processes_count=count
        )
        with brokers:
            yield brokers


def left_out(item: pytest.Item) -> str | None:
    return LEFT_OUT.get(item.path.name) or LEFT_OUT.get(item.name.partition("[")[0])


def install(count: int) -> None:
    """Make `broker_process` start `count` brokers in this process; modules that imported it before are unaffected."""
    process.broker_process = partial(several_broker_processes, count)


@contextmanager
def broker_processes(
    count: int,
    *options: str,
    store: S3Process | None = None,
    protocol: str = "PLAINTEXT",
    bucket: Path | None = None,
    package: Path | None = None,
) -> Iterator[Sequence[BrokerProcess]]:
    """Run brokers 1 to `count` for the block, each with its own directory; they are killed at the end.

    The bucket is one of `store`, or the directory `bucket`, or a temporary one; `protocol` is that of their listeners.
    """
    with TemporaryDirectory(prefix="kafscale-") as used, ExitStack() as running:
        directory = Path(used)
        at = ["--store", f"file:{bucket or directory / 'bucket'}"]
        environ = {}
        if store is not None:
            at = ["--store", "s3://events", "--s3-endpoint", store.endpoint, "--s3-create-bucket", "true"]
            environ = {
                "AWS_ACCESS_KEY_ID": store.credentials.access_key_id,
                "AWS_SECRET_ACCESS_KEY": store.credentials.secret_access_key,
            }
        yield [
            running.enter_context(
                BrokerProcess(
                    directory=directory / str(broker_id),
                    options=("--several-brokers", "--broker-id", str(broker_id), *at, *options),
                    environ=environ,
                    protocol=protocol,
                    package=package,
                )
            )
            for broker_id in range(1, count + 1)
        ]


def bootstrap_of(brokers: Sequence[BrokerProcess]) -> str:
    return ",".join(broker.bootstrap for broker in brokers)
