"""This broker's settings under Kafka's names."""

from __future__ import annotations

from kafscale.cluster.configs.broker_configs import broker_entries
from kafscale.config import Listener, Settings


def test_listeners_are_written_as_kafka_writes_them() -> None:
    settings = Settings(
        listeners=(Listener("IN", "127.0.0.1", 9092), Listener("OUT", "::1", 9093)),
        advertised_listeners=(Listener("OUT", "broker.example", 19093),),
    )
    values = {entry.definition.name: entry.value for entry in broker_entries(settings)}
    assert values["listeners"] == "IN://127.0.0.1:9092,OUT://[::1]:9093"
    assert values["advertised.listeners"] == "OUT://broker.example:19093"
