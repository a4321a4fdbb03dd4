"""Brokers are restarted one by one, as for an upgrade, while clients of the world outside work on."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.devtools.clients import wait_until
from tests.devtools.process_cluster import bootstrap_of, broker_processes
from tests.devtools.steady_load import PARTITIONS, QUIET, TOPIC, Load, leaders_of, read_all

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

LATE_SECONDS = 5.0  # which a produce may take on a busy machine while its partition moves


@pytest.mark.parametrize("durability", ["wal", "s3-wal", "segment"])
def test_brokers_that_are_restarted_one_by_one_fail_no_produce(durability: str) -> None:
    with broker_processes(3, "--durability", durability) as brokers:
        bootstrap = bootstrap_of(brokers)
        admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
            created.result(30)
        load = Load(Producer({**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}))
        with load.running():
            time.sleep(1)
            for broker in brokers:
                broker.stop()
                time.sleep(LATE_SECONDS + 1)  # nobody waits for it
                broker.start()
                wait_until(lambda: leaders_of(admin) == {1, 2, 3}, "the broker leads again")
        assert load.failed == []
        print(f"{len(load.seconds)} produces, the slowest in {max(load.seconds):.2f} s")
        assert max(load.seconds) < LATE_SECONDS
        read = read_all(bootstrap)
        assert read == load.sent
