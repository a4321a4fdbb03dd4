"""A partition of committed transactions, to be fetched at either isolation level."""

from __future__ import annotations

import trio

from bench.brokers import RunningBroker
from bench.consume import BACKLOG, DATA_BYTES, FETCH_BYTES, LOAD_MAX_SECONDS
from bench.fetch_load import FetchLoad
from bench.frames import CLIENT_ID, batch_of
from bench.points import TOPIC, Point
from bench.runner import Runner
from bench.transactions.producer_load import TransactionsLoad, run_transactions
from kafscale.client.client import connect
from kafscale.client.consumer import LATEST, list_offsets
from kafscale.config import Address
from kafscale.config.units import KIB

POINT = Point(batch_bytes=16 * KIB, in_flight=5, partitions=1)
BATCHES_PER_TRANSACTION = 16


def fill_committed(runner: Runner, broker: RunningBroker, source: str) -> FetchLoad:
    """Fill partition 0 by transactions that are committed; a backlog is waited for until it is in the bucket."""
    batch_bytes = len(batch_of(POINT))
    count = DATA_BYTES // batch_bytes
    load = TransactionsLoad(
        address=broker.address,
        point=POINT,
        seconds=LOAD_MAX_SECONDS,
        count=count,
        commit_every_batches=BATCHES_PER_TRANSACTION,
    )
    filled = runner.send(run_transactions, load)
    if filled.requests < count:
        raise RuntimeError(f"{filled.requests} of {count} batches were there after {LOAD_MAX_SECONDS} s")
    if source == BACKLOG:
        broker.flush()
    return FetchLoad(
        address=broker.address,
        partitions=1,
        batch_bytes=batch_bytes,
        end_offset=trio.run(_end_offset, broker.address),
        max_bytes=FETCH_BYTES,
        seconds=0,
        has_markers=True,
    )


async def _end_offset(address: Address) -> int:
    async with connect(address, CLIENT_ID) as client:
        return (await list_offsets(client, TOPIC, {0: LATEST}))[0]
