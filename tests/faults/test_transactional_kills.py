"""kill -9 at random moments under transactions: all of a transaction is there or nothing, and zombies write nothing.

TRANSACTIONAL_KILLS_COUNT kills in each durability mode. Each transactional id has two producers, which fence each other
again and again; a producer that gets no answer says the same again to the next broker. FAULTS_SEED chooses the seed,
which is printed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from kafscale.client.connection import Connection, connect_to
from kafscale.config import Settings
from kafscale.store.file.store import FileStore
from tests.devtools.history.bucket import read_bucket, transaction_faults
from tests.devtools.history.history import History
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.world.transactional.clients import TopicKind, TransactionalClients
from tests.devtools.world.workload import marker_offsets
from tests.faults.ordeal import OPTIONS, SETTLE_SECONDS, chosen_seed

TRANSACTIONAL_KILLS_COUNT = 50
LIFE_MAX_SECONDS = 0.6
LEAST_COMMITTED_COUNT = 5  # otherwise nothing was tried; under `segment` a transaction takes three flushes
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "min.compaction.lag.ms": "0"}
INTERNAL = ("--offsets-topic-num-partitions", "3", "--transaction-state-log-num-partitions", "3")


class Load:
    """The transactional clients of one broker, over its lives."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.random = Random(chosen_seed())
        self.history = History()
        self.clients = TransactionalClients(
            connect=self.connect,
            connect_newest=self.connect,
            history=self.history,
            random=Random(self.random.random()),
            kinds=[TopicKind(), TopicKind(configs=COMPACTED, keys_count=20)],
            has_lost=False,
            has_rivals=True,
        )

    async def connect(self) -> Connection:
        """Raises BrokerUnavailable while the broker is down."""
        return await connect_to(self.broker.kafka, "transactional")

    async def run(self, kills_count: int) -> None:
        """Kill the running broker as often under load, and read everything when it stays."""
        await self.clients.create_topics()
        stopping = trio.Event()
        async with trio.open_nursery() as readers:
            self.clients.start_readers(readers)
            with trio.fail_after(kills_count * (LIFE_MAX_SECONDS + SETTLE_SECONDS)):
                async with trio.open_nursery() as writers:
                    self.clients.start_writers(writers, stopping)
                    for _ in range(kills_count):
                        await self._kill_and_restart()
                    stopping.set()
            readers.cancel_scope.cancel()
        await self.clients.read_back("after the last kill")
        await trio.to_thread.run_sync(self.broker.stop)
        await self._look_at_bucket()
        await trio.to_thread.run_sync(self.broker.start)
        await self.clients.read_back("after the last start")

    async def _kill_and_restart(self) -> None:
        await trio.sleep(self.random.uniform(0, LIFE_MAX_SECONDS))
        assert self.broker.returncode is None, f"the broker ended by itself: {self.broker.log[-2000:]}"
        await trio.to_thread.run_sync(self.broker.kill)
        await trio.to_thread.run_sync(self.broker.start)

    async def _look_at_bucket(self) -> None:
        store = await FileStore.open(self.broker.data_dir / "bucket")
        for partition, found in (await read_bucket(store, Settings().namespace)).items():
            self.history.marked(partition, marker_offsets(found.batches))
            self.history.sought("bucket", partition)
            self.history.polled("bucket", partition, found.reads)
            self.clients.faults += found.faults
            self.clients.faults += [f"{partition}: {each}" for each in transaction_faults(found.segments)]


async def run_kills(directory: Path, durability: str, kills_count: int) -> Load:
    with BrokerProcess(directory=directory, options=[*OPTIONS, *INTERNAL, "--durability", durability]) as broker:
        load = Load(broker)
        await load.run(kills_count)
        assert [*map(str, load.history.anomalies()), *load.clients.problems()] == []
        committed, all_count = load.clients.seen.committed_count, len(load.clients.seen.attempts)
        print(f"{durability}: {kills_count} kills, {committed} of {all_count} transactions committed")
        return load


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("durability", ["wal", "s3-wal", "segment"])
async def test_many_kills_under_transactions(tmp_path: Path, durability: str) -> None:
    load = await run_kills(tmp_path, durability, TRANSACTIONAL_KILLS_COUNT)
    assert load.clients.seen.committed_count > LEAST_COMMITTED_COUNT
