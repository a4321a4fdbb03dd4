"""`python -m bench.consume`: fetches of 1 MiB from the memory tail, and from the bucket after a flush.

One connection per partition, one request in flight on each, as clients do it. Each partition is read again and again.
Options after `--` go to `kafscale serve`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import click
from confluent_kafka.admin import AdminClient

from bench.brokers import OwnBroker, RunningBroker, Startable
from bench.fetch_load import FetchLoad, run_fetch
from bench.figures import Result
from bench.frames import batch_of
from bench.options import RunOptions, common_options, parsed
from bench.points import LARGE_BATCH_BYTES, Point
from bench.produce_load import ProduceLoad, Share, run_produce
from bench.report import save, show
from bench.runner import Runner
from bench.spreading import shares_of
from kafscale.config.units import KIB, MIB, format_size, parse_size
from tests.devtools.processes.cluster_load import QUIET

TAIL, BACKLOG = "tail", "backlog"
DATA_BYTES = 128 * MIB  # of all partitions; the default chunk pool holds it without pressure
FETCH_BYTES = MIB
LOAD_IN_FLIGHT = 64
LOAD_MAX_SECONDS = 300
SOURCE_OPTIONS = {
    TAIL: ("--flush-interval", "1h", "--segment-bytes", "1GiB"),
    BACKLOG: ("--flush-interval", "2s"),
}


@attrs.frozen(kw_only=True)
class FetchPoint:
    """Fetches of batches of about `batch_bytes` from `partitions` partitions at once."""

    source: str
    batch_bytes: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.source}/{format_size(self.batch_bytes)}/{self.partitions}"

    @classmethod
    def parse(cls, text: str) -> FetchPoint:
        """`tail/16KiB/1`: source, batch size, partitions. Raises ValueError."""
        source, size, partitions = text.split("/")
        if source not in SOURCE_OPTIONS:
            raise ValueError(f"the source is {TAIL} or {BACKLOG}, not '{source}'")
        return cls(source=source, batch_bytes=parse_size(size), partitions=int(partitions))

    @property
    def loaded(self) -> Point:
        """Return how its partitions are filled."""
        return Point(batch_bytes=self.batch_bytes, in_flight=LOAD_IN_FLIGHT, partitions=self.partitions)


def standard_points() -> list[FetchPoint]:
    return [
        FetchPoint(source=source, batch_bytes=batch_bytes, partitions=partitions)
        for source in SOURCE_OPTIONS
        for partitions in (1, 16)
        for batch_bytes in (LARGE_BATCH_BYTES, 16 * KIB, KIB)
    ]


@click.command()
@click.option(
    "--point", "points", multiple=True, metavar="tail|backlog/SIZE/PARTITIONS", callback=parsed(FetchPoint.parse)
)
@common_options
def main(points: Sequence[FetchPoint], options: RunOptions) -> None:
    """Fill partitions, fetch them from a broker that is started for it, and from peers, and show what it took."""
    runner = Runner()
    results: list[Result] = []
    for round in range(options.rounds):
        for point in points or standard_points():
            serve_options = [*SOURCE_OPTIONS[point.source], *options.broker_options]
            own = OwnBroker(options=serve_options, directory=options.directory)
            brokers: list[Startable] = [own, *options.peers]
            for broker in brokers:
                with broker.running() as running:
                    running.create_topic(point.partitions)
                    load = fill(runner, running, point)
                    runner.send(run_fetch, attrs.evolve(load, seconds=options.warm_up_seconds))
                    load = attrs.evolve(load, seconds=options.seconds)
                    results.append(runner.measure(run_fetch, load, running, point=str(point), round=round))
    runner.close()
    show(results, "consume: source / batch size / partitions")
    click.echo(save("consume", results, click.get_current_context().params))


def fill(runner: Runner, broker: RunningBroker, point: FetchPoint, *, data_bytes: int = DATA_BYTES) -> FetchLoad:
    """Produce what is to be fetched to an empty topic; a backlog is waited for until all of it is in the bucket."""
    batch_bytes = len(batch_of(point.loaded))
    batches_per_partition = data_bytes // batch_bytes // point.partitions
    load = ProduceLoad(
        address=broker.address,
        security=broker.security,
        point=point.loaded,
        seconds=LOAD_MAX_SECONDS,
        count=batches_per_partition * point.partitions,
        shares=_shares(broker),
    )
    filled = runner.send(run_produce, load)
    if filled.requests < load.count:
        raise RuntimeError(f"{filled.requests} of {load.count} batches were there after {LOAD_MAX_SECONDS} s")
    if point.source == BACKLOG:
        broker.flush()
    return FetchLoad(
        address=broker.address,
        security=broker.security,
        partitions=point.partitions,
        batch_bytes=batch_bytes,
        end_offset=batches_per_partition * point.loaded.record_count,
        max_bytes=FETCH_BYTES,
        seconds=0,
    )


def _shares(broker: RunningBroker) -> Sequence[Share]:
    """Return one connection to each leader, nothing for a broker alone."""
    if broker.processes_count == 1:
        return ()
    secured = {} if broker.security is None else broker.security.librdkafka
    return shares_of(
        AdminClient({**QUIET, **secured, "bootstrap.servers": str(broker.address)}), broker.processes_count
    )


if __name__ == "__main__":
    main()
