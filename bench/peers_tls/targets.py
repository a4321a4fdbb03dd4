"""Targets that KafScale must reach over TLS beside Apache Kafka in the same run: as much, produced and fetched."""

from __future__ import annotations

from collections.abc import Sequence

from bench.consume import BACKLOG, TAIL
from bench.figures import Reading, mib_per_second, requests_per_second
from bench.peers.java_loads import ARTICLE, java_name
from bench.peers.load import Load
from bench.peers.loads import (
    LARGE_BATCHES,
    MANY_PARTITIONS,
    all_loads,
    java_consume_name,
    librdkafka_name,
    produce_name,
)
from bench.peers.names import KAFKA_DEFAULT, KAFKA_DURABLE, KAFKA_ON_MEMORY, OWN, OWN_ON_MEMORY, OWN_TWO
from bench.peers.targets import Target
from bench.points import Point
from kafscale.config.units import KIB

_PRODUCED_BY_REQUESTS = [produce_name(Point.parse(point)) for point in ("1KiB/64/1", "16KiB/64/16")]
_PRODUCED_BY_BYTES = [
    produce_name(LARGE_BATCHES),
    java_name(KIB, 16 * KIB, MANY_PARTITIONS),
    ARTICLE,
    librdkafka_name(KIB),
]
_CONSUMED = [
    *(f"fetch {source}/{shape}" for source in (TAIL, BACKLOG) for shape in ("960KiB/1", "16KiB/1", "16KiB/16")),
    *(java_consume_name(source) for source in (TAIL, BACKLOG)),
]
# How brokers compare where syncs take no time: loads whose clients wait for them, and one without such waits.
_ON_MEMORY = [java_name(KIB, 16 * KIB, MANY_PARTITIONS), ARTICLE, librdkafka_name(KIB), java_consume_name(TAIL)]


def _as_good(
    load: str, peers: Sequence[str], *, reading: Reading = mib_per_second, unit: str = "MiB/s"
) -> Sequence[Target]:
    return [
        Target(load=load, reading=reading, unit=unit, broker=broker, peer=peer, factor=1)
        for broker in (OWN, OWN_TWO)
        for peer in peers
    ]


_BOTH = (KAFKA_DURABLE, KAFKA_DEFAULT)
_ONE = (KAFKA_DEFAULT,)  # where nothing is written there is nothing to sync, and both are the same

TARGETS: Sequence[Target] = [
    *(
        target
        for load in _PRODUCED_BY_REQUESTS
        for target in _as_good(load, _BOTH, reading=requests_per_second, unit="requests/s")
    ),
    *(target for load in _PRODUCED_BY_BYTES for target in _as_good(load, _BOTH)),
    *(target for load in _CONSUMED for target in _as_good(load, _ONE)),
    *(
        Target(load=load, reading=mib_per_second, unit="MiB/s", broker=OWN_ON_MEMORY, peer=KAFKA_ON_MEMORY, factor=1)
        for load in _ON_MEMORY
    ),
]


def loads() -> Sequence[Load]:
    """The loads of `bench.peers` that the targets need."""
    wanted = {target.load for target in TARGETS}
    return [load for load in all_loads() if load.name in wanted]
