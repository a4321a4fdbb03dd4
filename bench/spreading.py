"""Assignment of connections to several brokers: each partition's records go to the one that leads it."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import AdminClient

from bench.points import TOPIC
from bench.produce_load import Share
from kafscale.config import Address

TOPIC_SECONDS = 60


def shares_of(admin: AdminClient, connections: int) -> Sequence[Share]:
    """Return the work of each connection to the leaders of the topic."""
    listed = admin.list_topics(TOPIC, timeout=TOPIC_SECONDS)
    led: dict[int, list[int]] = {}
    for index, found in sorted(listed.topics[TOPIC].partitions.items()):
        led.setdefault(found.leader, []).append(index)
    each = connections // len(led)
    addresses = {id: Address(str(node.host), int(node.port or 0)) for id, node in listed.brokers.items()}
    return [
        Share(addresses[leader], tuple(indexes[number::each]))
        for leader, indexes in led.items()
        for number in range(each)
    ]
