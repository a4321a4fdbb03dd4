"""`python -m bench.produce`: batches of three sizes, one to 64 in flight, to one partition and to 16.

Each point of each round has a broker of its own. Options after `--` go to `kafscale serve`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import click

from bench.brokers import OwnBroker, Startable
from bench.figures import Result
from bench.options import RunOptions, common_options, parsed
from bench.points import Point, standard_points
from bench.produce_load import ProduceLoad, run_produce
from bench.report import save, show
from bench.runner import Runner


@click.command()
@click.option("--point", "points", multiple=True, metavar="SIZE/IN_FLIGHT/PARTITIONS", callback=parsed(Point.parse))
@common_options
def main(points: Sequence[Point], options: RunOptions) -> None:
    """Produce to a broker that is started for it, and to peers, and show what it took."""
    runner = Runner()
    results: list[Result] = []
    for round in range(options.rounds):
        for point in points or standard_points():
            own = OwnBroker(options=options.broker_options, directory=options.directory)
            brokers: list[Startable] = [own, *options.peers]
            for broker in brokers:
                with broker.running() as running:
                    running.create_topic(point.partitions)
                    load = ProduceLoad(address=running.address, point=point, seconds=options.seconds)
                    runner.send(run_produce, attrs.evolve(load, seconds=options.warm_up_seconds))
                    results.append(runner.measure(run_produce, load, running, point=str(point), round=round))
    runner.close()
    show(results, "produce: batch size / in flight / partitions")
    click.echo(save("produce", results, click.get_current_context().params))


if __name__ == "__main__":
    main()
