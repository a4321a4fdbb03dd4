"""Brokers with their states, configs and loads, from several requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs

from kafscale.client.brokers import (
    DRAINING,
    DURABILITY,
    STATE,
    VERSION,
    Balance,
    PartitionPlace,
    broker_configs,
    known,
    list_brokers,
)
from kafscale.client.client import Client
from kafscale.config import Address

LIVE, FENCED = "live", "fenced"
SERVING = (LIVE, "full")  # a full broker's disk takes no more records


@attrs.frozen(kw_only=True)
class BrokerRow:
    """A broker. `leads` counts the partitions that it leads, or that wait for it; loads are None if unknown."""

    broker: int
    address: str
    rack: str | None
    state: str
    controller: bool
    draining: bool
    leads: int
    durability: str | None
    version: str | None
    bytes_per_second: int | None


async def describe_brokers(
    client: Client, places: Iterable[PartitionPlace], balance: Balance | None = None
) -> list[BrokerRow]:
    """Describe all brokers by id; `places` are those of all partitions. Raises KafkaError, BrokerUnavailable."""
    brokers = await list_brokers(client)
    configs = await broker_configs(client, [broker.broker_id for broker in brokers])
    led = Counter(place.broker_id for place in places)
    rows = []
    for broker in brokers:
        config = configs.get(broker.broker_id, {})
        load = None if balance is None else balance.brokers.get(broker.broker_id)
        rows.append(
            BrokerRow(
                broker=broker.broker_id,
                address=str(Address(broker.host, broker.port)),
                rack=broker.rack,
                state=config.get(STATE) or (FENCED if broker.is_fenced else LIVE),
                controller=broker.is_controller,
                draining=config.get(DRAINING) == "true",
                leads=led[broker.broker_id],
                durability=config.get(DURABILITY),
                version=config.get(VERSION),
                bytes_per_second=None if load is None else known(load.bytes_per_second),
            )
        )
    return rows
