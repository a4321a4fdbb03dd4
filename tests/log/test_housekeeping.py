"""Idempotent producers are forgotten when they have been silent long enough, and not before."""

from __future__ import annotations

import time

import trio
import trio.testing

from kafscale.formats.transactions import Producer
from kafscale.log.log import PRODUCER_EXPIRATION_CHECK_SECONDS, TopicSpec
from kafscale.log.partition.log_config import LogConfig
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts


async def test_silent_producers_expire_by_the_topics_setting(autojump_clock: trio.testing.MockClock) -> None:
    async with memory_broker(memory_parts()) as running:
        log = running.broker.services.log
        config = LogConfig(producer_id_expiration_ms=60_000)
        log.open_topic(
            TopicSpec(
                name="orders",
                topic_id=b"i" * 16,
                partition_count=1,
                config=config,
                log_start_offsets={},
                leader_epochs={0: 1},
            )
        )
        partition = log.by_name["orders"][0]
        now_ms = time.time_ns() // 1_000_000
        partition.producers.restore(
            [
                Producer(producer_id=1, epoch=0, batches=[], last_timestamp_ms=now_ms - 120_000),
                Producer(producer_id=2, epoch=0, batches=[], last_timestamp_ms=now_ms),
            ]
        )
        await trio.sleep(PRODUCER_EXPIRATION_CHECK_SECONDS - 1)
        assert set(partition.producers.producers) == {1, 2}
        await trio.sleep(2)
        assert set(partition.producers.producers) == {2}
