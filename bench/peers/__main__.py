"""`python -m bench.peers`: KafScale beside Apache Kafka, under loads of ours and of unmodified clients.

All brokers run during the whole run, since a JVM needs to warm up; the loads alternate between them. Before each one
the disk is given the time to write what an earlier one has left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import click

from bench.brokers import OwnBroker, Peer, RunningBroker, Startable
from bench.figures import Result, middle
from bench.options import common_options
from bench.peers.disk import synced_mib_per_second
from bench.peers.endpoint import Endpoint
from bench.peers.kafka import DEFAULT, DURABLE, KafkaBroker, find_java
from bench.peers.loads import KAFKA_DEFAULT, KAFKA_DURABLE, Context, Load, all_loads
from bench.peers.page import write_page
from bench.peers.targets import OWN, OWN_MEMORY, show_targets
from bench.report import save, show
from bench.runner import Runner
from kafscale.testing.s3_processes import minio_server

MEMORY_STORE = "memory:4GiB"
OWN_MINIO = "kafscale minio"
DISK_SECONDS = 5.0


@click.command()
@click.option("--load", "wanted", multiple=True, metavar="TEXT", help="Only loads whose name begins with TEXT.")
@click.option("--broker", "names", multiple=True, metavar="NAME", help="Only these brokers.")
@click.option("--docs", is_flag=True, help="Write docs/benchmarks/peers.md, .json and .svg, and not bench/results.")
@common_options
def main(
    *,
    docs: bool,
    wanted: Sequence[str],
    names: Sequence[str],
    seconds: float,
    warm_up_seconds: float,
    rounds: int,
    peers: Sequence[Peer],
    directory: Path | None,
    broker_options: Sequence[str],
) -> None:
    """Alternate each load between the brokers, and show medians, spread, and what must be reached."""
    if missing := find_java():
        raise click.ClickException(missing)
    loads = [load for load in all_loads() if not wanted or any(load.name.startswith(text) for text in wanted)]
    disk = [synced_mib_per_second(directory, DISK_SECONDS)]
    run = _Run(seconds=seconds, warm_up_seconds=warm_up_seconds)
    with ExitStack() as stack:
        brokers = [
            (startable, stack.enter_context(startable.running()))
            for startable in _brokers(directory, broker_options, peers, stack)
            if not names or startable.name in names
        ]
        endpoint = Endpoint()
        with_endpoint = [*brokers, (endpoint, stack.enter_context(endpoint.running()))]
        for load in loads:
            for round in range(rounds):
                for startable, running in with_endpoint if load.at_endpoint else brokers:
                    click.echo(f"{load.name}, round {round + 1} of {rounds}, {startable.name}", err=True)
                    run.measure(load, startable, running, round)
            run.learn(load)
    run.runner.close()
    disk.append(synced_mib_per_second(directory, DISK_SECONDS))
    show(run.results, "peers: medians of the rounds")
    click.echo(f"the disk takes {disk[0]:.0f} MiB/s synced before the run, {disk[1]:.0f} after it")
    targets = show_targets(run.results, min(disk))
    options = {**click.get_current_context().params, "disk_mib_per_second": int(min(disk))}
    click.echo(write_page(run.results, targets, options) if docs else save("peers", run.results, options))


@attrs.define(eq=False, kw_only=True)
class _Run:
    """What is known of all loads by now."""

    seconds: float
    warm_up_seconds: float
    runner: Runner = attrs.field(factory=Runner)
    results: list[Result] = attrs.field(factory=list)
    medians: dict[tuple[str, str], float] = attrs.field(factory=dict)

    def measure(self, load: Load, startable: Startable, running: RunningBroker, round: int) -> None:
        """One round of one load against one broker."""
        with ExitStack() as stack:
            if load.serve_options and isinstance(startable, OwnBroker):
                options = [*load.serve_options, *startable.options]
                running = stack.enter_context(attrs.evolve(startable, options=options).running())
            running.create_topic(load.partitions)
            context = Context(
                runner=self.runner,
                broker=running,
                seconds=self.seconds,
                warm_up_seconds=self.warm_up_seconds,
                mib_per_second=self.medians,
            )
            task = load.task(context)
            if task is None:
                click.echo("left out: what its rate is a share of was not measured", err=True)
                return
            if task.warm_up is not None:
                self.runner.send(task.run, task.warm_up)
            _let_disk_rest(running)
            self.results.append(self.runner.measure(task.run, task.load, running, point=load.name, round=round))
            _let_disk_rest(running)

    def learn(self, load: Load) -> None:
        """All rounds of a load are done."""
        for name in {each.broker for each in self.results if each.point == load.name}:
            rates = [each.mib_per_second for each in self.results if (each.point, each.broker) == (load.name, name)]
            self.medians[load.name, name] = middle(rates) or 0.0


def _let_disk_rest(running: RunningBroker) -> None:
    """So that no broker pays for what another one, or its own warm-up, has written."""
    running.flush()
    os.sync()


def _brokers(
    directory: Path | None, broker_options: Sequence[str], peers: Sequence[Peer], stack: ExitStack
) -> Iterator[Startable]:
    yield OwnBroker(broker_options, directory, OWN)
    yield OwnBroker(["--store", MEMORY_STORE, *broker_options], directory, OWN_MEMORY)
    if shutil.which("minio"):
        yield stack.enter_context(_on_minio(directory, broker_options))
    yield KafkaBroker(KAFKA_DURABLE, DURABLE, directory)
    yield KafkaBroker(KAFKA_DEFAULT, DEFAULT, directory)
    yield from peers


@contextmanager
def _on_minio(directory: Path | None, broker_options: Sequence[str]) -> Iterator[OwnBroker]:
    with minio_server() as server:
        environ = {
            "AWS_ACCESS_KEY_ID": server.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.credentials.secret_access_key,
        }
        options = ["--store", "s3://bench", "--s3-endpoint", server.endpoint, "--s3-create-bucket", *broker_options]
        yield OwnBroker(options, directory, OWN_MINIO, environ)


if __name__ == "__main__":
    main()
