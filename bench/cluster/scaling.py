"""`kafscale serve --processes N` under the same clients: requests a second, and what a request costs all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster.jobs import SCALING, Job, Target
from bench.options import RunOptions
from bench.points import TOPIC, Point
from bench.processes import with_descendants_cpu_seconds
from bench.produce_load import ProduceLoad, Share, run_produce
from bench.runner import Runner
from bench.spreading import TOPIC_SECONDS, shares_of
from kafscale.config.units import MIB
from tests.devtools.processes.cluster_load import QUIET
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.devtools.processes.several_processes import several_broker_processes

COUNTS = (1, 2, 4)
CONNECTIONS = 4  # each to one process, with `in_flight` requests under way
# Processes and connections: as many of these for all counts; and one process with its share of them, and of partitions.
SHAPES = [*((count, CONNECTIONS) for count in COUNTS), *((1, CONNECTIONS // count) for count in COUNTS[1:])]
POINTS = (Point.parse("16KiB/64/16"), Point.parse("1KiB/64/16"))
CPU, RATE = "CPU us/request", "requests/s"
MOST_COST = 1.15  # of a request, beside one process


def system_of(count: int) -> str:
    """Return the name of a number of processes."""
    return f"{count} process{'' if count == 1 else 'es'}"


def load_of(point: Point, connections: int = CONNECTIONS) -> str:
    """Return the name of the load."""
    return f"produce {point}, {connections} connection{'' if connections == 1 else 's'}"


def jobs() -> Sequence[Job]:
    """Return what is measured."""
    return [
        Job(
            group=SCALING,
            load=load_of(point, connections),
            system=system_of(count),
            measure=partial(measure, point, count, connections),
        )
        for point in POINTS
        for count, connections in SHAPES
    ]


TARGETS = [
    Target(
        group=SCALING,
        load=load_of(point),
        system=system_of(count),
        figure=CPU,
        factor=MOST_COST,
        peer=system_of(1),
        peer_load=load_of(point, connections),
    )
    for point in POINTS
    for count in COUNTS[1:]
    for connections in (CONNECTIONS, CONNECTIONS // count)
]


def measure(point: Point, count: int, connections: int, options: RunOptions) -> Mapping[str, float]:
    """Start the processes, and send them a load."""
    with (
        TemporaryDirectory(prefix="kafscale-bench-", dir=options.directory) as directory,
        _running(count, Path(directory), options) as broker,
        closing(Runner()) as runner,
    ):
        shares = spread(broker.bootstrap, point.partitions * connections // CONNECTIONS, connections)
        load = ProduceLoad(address=broker.kafka, point=point, seconds=options.seconds, shares=shares)
        runner.send(run_produce, attrs.evolve(load, seconds=options.warm_up_seconds))
        before = with_descendants_cpu_seconds(broker.pid)
        figures = runner.send(run_produce, load)
        used = with_descendants_cpu_seconds(broker.pid) - before
    return {
        RATE: figures.requests / figures.seconds,
        "MiB/s": figures.size_bytes / MIB / figures.seconds,
        "p50 ms": figures.p50_ms,
        "p99 ms": figures.p99_ms,
        CPU: used / figures.requests * 1e6,
        "cores used": used / figures.seconds,
        "client's cores": figures.client_cpu_seconds / figures.seconds,
    }


def _running(count: int, directory: Path, options: RunOptions) -> AbstractContextManager[BrokerProcess]:
    """Run one broker as it is alone, or as many as one supervisor watches over."""
    if count == 1:
        return broker_process(*options.broker_options, directory=directory)
    return several_broker_processes(count, *options.broker_options, directory=directory)


def spread(bootstrap: str, partitions: int, connections: int) -> Sequence[Share]:
    """Make the topic, and as many connections to its leaders, each with partitions of its own."""
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions)])[TOPIC].result(TOPIC_SECONDS)
    return shares_of(admin, connections)
