"""A hundred partitions are led by another broker, all at once, under load: for how long each had no leader."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

import trio

from bench.cluster.clusters import OWN_S3_WAL, OWN_WAL, three_of_ours
from bench.cluster.jobs import MOVING, Job, Target
from bench.cluster.steady import SteadyLoad, steadily
from bench.figures import percentile
from bench.options import RunOptions
from bench.points import TOPIC
from kafscale.client.brokers import reassign
from kafscale.client.client import connect
from kafscale.config import Address
from kafscale.config.units import KIB, MIB

PARTITIONS = 100
RECORDS_PER_SECOND = 2000
RECORD_BYTES = 4 * KIB
PRODUCERS = 10
AFTER_SECONDS = 6.0
LONGEST = "longest gap ms"
WANTED_MS = 500
SYSTEMS = {OWN_WAL: "wal", OWN_S3_WAL: "s3-wal"}  # and their durability
LOAD = f"{PARTITIONS} partitions move, {RECORDS_PER_SECOND * RECORD_BYTES / MIB:.0f} MiB/s"


def jobs() -> Sequence[Job]:
    """Return what is measured."""
    return [Job(group=MOVING, load=LOAD, system=system, measure=partial(measure, system)) for system in SYSTEMS]


TARGETS = [Target(group=MOVING, load=LOAD, system=system, figure=LONGEST, factor=WANTED_MS) for system in SYSTEMS]


def measure(system: str, options: RunOptions) -> Mapping[str, float]:
    """Move all partitions to broker 1, then to broker 2, while records come."""
    durability = SYSTEMS[system]
    with three_of_ours("--durability", durability, *options.broker_options, on_s3=durability == "s3-wal") as three:
        three.create_topic(PARTITIONS)
        trio.run(_assign, three.bootstrap, 1)
        three.wait_led_by({1})
        load = SteadyLoad(
            bootstrap=three.bootstrap,
            partitions=PARTITIONS,
            records_per_second=RECORDS_PER_SECOND,
            record_bytes=RECORD_BYTES,
            producers=PRODUCERS,
            seconds=options.warm_up_seconds + options.seconds + AFTER_SECONDS,
        )
        with steadily(load) as sending:
            time.sleep(options.warm_up_seconds)
            before_at = time.monotonic()
            time.sleep(options.seconds)
            began_at = time.monotonic()
            trio.run(_assign, three.bootstrap, 2)
            three.wait_led_by({2})
            ended_at = time.monotonic()
    found = sending.done()
    if found.failed:
        raise RuntimeError(f"{len(found.failed)} records failed: {found.failed[0]}")
    during = began_at, ended_at + 1.0
    gaps = sorted(found.longest(during).values())
    return {
        LONGEST: gaps[-1] * 1000,
        "median gap ms": percentile(gaps, 0.5) * 1000,
        "all moved after ms": (ended_at - began_at) * 1000,
        "p99 ms before": found.p99_ms((before_at, began_at)),
        "p99 ms during": found.p99_ms(during),
        "p99 ms after": found.p99_ms((during[1], during[1] + AFTER_SECONDS)),
        "records": len(found.numbers),
    }


async def _assign(bootstrap: str, broker_id: int) -> None:
    async with connect(Address.parse(bootstrap.split(",")[0]), "bench") as client:
        wanted = {(TOPIC, index): [broker_id] for index in range(PARTITIONS)}
        if refused := await reassign(client, wanted):
            raise RuntimeError(f"{len(refused)} partitions can't be moved: {next(iter(refused.values()))}")
