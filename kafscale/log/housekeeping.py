"""Periodic work on all partitions."""

from __future__ import annotations

import time

import trio

from kafscale.log.log import Log

PRODUCER_EXPIRATION_CHECK_SECONDS = 600.0  # Kafka: producer.id.expiration.check.interval.ms, the same
PARTITIONS_PER_STEP_COUNT = 1_000  # then others may run


async def expire_producers(log: Log) -> None:
    """Forget idempotent producers that have been silent for `producer.id.expiration.ms` (KIP-854), until cancelled."""
    while True:
        await trio.sleep(PRODUCER_EXPIRATION_CHECK_SECONDS)
        now_ms = time.time_ns() // 1_000_000
        for count, partition in enumerate(list(log.partitions.values()), start=1):
            partition.producers.expire(now_ms - partition.config.producer_id_expiration_ms)
            if not count % PARTITIONS_PER_STEP_COUNT:
                await trio.lowlevel.checkpoint()
