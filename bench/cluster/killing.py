"""A broker of three is killed (SIGKILL) under load: for how long produces waited, and what was lost or repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from bench.cluster.clusters import BROKERS, KAFKA, OWN_S3_WAL, Three, three_of_kafka, three_of_ours
from bench.cluster.jobs import KILLING, Job, Target
from bench.cluster.steady import SteadyLoad, read_back, steadily
from bench.options import RunOptions
from kafscale.config.units import KIB

PARTITIONS = 12
RECORDS_PER_SECOND = 500
AFTER_SECONDS = 15.0  # Kafka's brokers take others for dead after 9 s
GAP = "longest gap s"
WANTED_SECONDS = 5.0
MEMBER, CONTROLLER = "a member", "the controller"


def load_of(who: str) -> str:
    """Return the name of the load."""
    return f"{who} is killed"


def jobs() -> Sequence[Job]:
    """Return what is measured."""
    return [
        Job(group=KILLING, load=load_of(who), system=system, measure=partial(measure, who, system),
            needs_java=system == KAFKA)
        for who in (MEMBER, CONTROLLER)
        for system in (OWN_S3_WAL, KAFKA)
    ]  # fmt: skip


TARGETS = [
    *(
        Target(group=KILLING, load=load_of(who), system=OWN_S3_WAL, figure=GAP, factor=WANTED_SECONDS)
        for who in (MEMBER, CONTROLLER)
    ),
    *(
        Target(group=KILLING, load=load_of(who), system=OWN_S3_WAL, figure=figure, factor=0)
        for who in (MEMBER, CONTROLLER)
        for figure in ("lost", "repeated")
    ),
]


def three_of(system: str, options: RunOptions) -> AbstractContextManager[Three]:
    """Run three brokers of ours, or of Kafka's."""
    if system == KAFKA:
        return three_of_kafka(options.directory)
    return three_of_ours("--durability", "s3-wal", *options.broker_options, on_s3=True)


def measure(who: str, system: str, options: RunOptions) -> Mapping[str, float]:
    """Kill one of three under load, and read everything back."""
    with three_of(system, options) as three:
        three.create_topic(PARTITIONS)
        load = SteadyLoad(
            bootstrap=three.bootstrap,
            partitions=PARTITIONS,
            records_per_second=RECORDS_PER_SECOND,
            record_bytes=KIB,
            seconds=options.warm_up_seconds + AFTER_SECONDS,
        )
        with steadily(load) as sending:
            time.sleep(options.warm_up_seconds)
            controller = three.controller()
            victim = controller if who == CONTROLLER else controller % BROKERS + 1
            killed_at = time.monotonic()
            three.kill(victim)
            three.wait_led_by({1, 2, 3} - {victim})
            led_at = time.monotonic()
        found = sending.done()
        read = read_back(load)
    acknowledged = set(found.numbers)
    gaps = found.longest((killed_at - 1.0, killed_at + AFTER_SECONDS))
    return {
        GAP: max(gaps.values()),
        "led by others after s": led_at - killed_at,
        "p99 ms before": found.p99_ms((killed_at - options.warm_up_seconds, killed_at - 1.0)),
        "acknowledged": len(acknowledged),
        "refused": len(found.failed),
        "lost": len(acknowledged - read.keys()),
        "repeated": sum(count > 1 for count in read.values()),
    }
