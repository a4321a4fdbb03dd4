"""`python -m bench.groups`: what a start takes that reads 100,000 groups, and what committing an offset costs.

CPU time of the broker's process, all threads together, in `wal`. Each group has an offset; they are in 50
partitions of `__consumer_offsets`. A start without groups is measured beside. Offsets are committed outside of
transactions, in one long transaction, and in a transaction each.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

import attrs
import click
import trio
from rich.table import Table

from bench import processes
from bench.brokers import OwnBroker, RunningBroker
from bench.places import RESULTS
from bench.report import console, machine
from kafscale import __version__
from kafscale.client.client import Client, connect
from kafscale.client.connection import Connection, Reply
from kafscale.wire import error_codes
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kafscale.wire.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

TOPIC = "bench"
IN_FLIGHT_COUNT = 100
TRANSACTIONAL_ID = "bench"
ASKED_COUNT = 500  # groups: some of each partition
RESTORE_MAX_SECONDS = 5.0  # of CPU, for 100,000 groups


@attrs.frozen(kw_only=True)
class Findings:
    """Seconds and microseconds of CPU; a start is until the groups can be asked for."""

    group_count: int
    empty_start_cpu_seconds: Sequence[float]
    start_cpu_seconds: Sequence[float]
    commit_cpu_us: float
    transactional_commit_cpu_us: float
    transaction_cpu_us: float  # of one commit, and its end

    @property
    def restore_cpu_seconds(self) -> float:
        """The cost that groups add to a start."""
        return median(self.start_cpu_seconds) - median(self.empty_start_cpu_seconds)


@click.command()
@click.option("--groups", "group_count", default=100_000, show_default=True)
@click.option("--commits", "commit_count", default=10_000, show_default=True, help="How many are measured.")
@click.option("--starts", "start_count", default=3, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where the broker's directory is made.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS / "groups.json", show_default=True)
def main(*, group_count: int, commit_count: int, start_count: int, directory: Path | None, output: Path) -> None:
    """Fill a broker with groups, start it again and again, and show what that took."""
    with tempfile.TemporaryDirectory(prefix="kafscale-bench-", dir=directory) as data_dir:
        # Further ones commit while costs are measured.
        broker = OwnBroker(data_dir=Path(data_dir))
        with broker.running() as running:
            costs = trio.run(_measure_commits, running, commit_count)
        empty = [_start(broker) for _ in range(start_count)]
        with broker.running() as running:
            trio.run(_fill, running, group_count)
        full = [_start(broker) for _ in range(start_count)]
    findings = Findings(
        group_count=group_count,
        empty_start_cpu_seconds=empty,
        start_cpu_seconds=full,
        commit_cpu_us=costs[0],
        transactional_commit_cpu_us=costs[1],
        transaction_cpu_us=costs[2],
    )
    show(findings)
    content = {"version": __version__, "machine": machine(), **attrs.asdict(findings)}
    output.write_text(json.dumps(content, indent=1) + "\n")
    click.echo(output)


def _start(broker: OwnBroker) -> float:
    with broker.running() as running:
        trio.run(_wait_loaded, running)
        return processes.cpu_seconds(_pid(running))


async def _wait_loaded(running: RunningBroker) -> None:
    """Ask for the offsets of a group of each of many partitions until none is being read any more."""
    groups = [OffsetFetchRequestGroup(group_id=_group(number), topics=None) for number in range(ASKED_COUNT)]
    request = OffsetFetchRequest(groups=groups)
    async with connect(running.address) as client:
        connection = await client.coordinator(_group(0))
        while True:
            response = await connection.request(request, OffsetFetchResponse)
            if all(group.error_code != error_codes.COORDINATOR_LOAD_IN_PROGRESS for group in response.groups):
                return
            await trio.sleep(0.2)


async def _fill(running: RunningBroker, group_count: int) -> None:
    async with connect(running.address) as client:
        connection = await _ready(client)
        await _pipelined(
            range(group_count), lambda number: connection.send(_commit(_group(number)), OffsetCommitResponse)
        )


async def _measure_commits(running: RunningBroker, count: int) -> Sequence[float]:
    """CPU of the broker, in microseconds, of each commit: plain, in a transaction, and as a transaction."""
    async with connect(running.address) as client:
        connection = await _ready(client)
        await client.transaction_coordinator(TRANSACTIONAL_ID)
        producer = await _init(connection)

        async def plain() -> None:
            await _pipelined(range(count), lambda _: connection.send(_commit("plain"), OffsetCommitResponse))

        async def in_one() -> None:
            request = _transactional(producer)
            await _pipelined(range(count), lambda _: connection.send(request, TxnOffsetCommitResponse))
            await _end(connection, producer)

        async def each_alone() -> None:
            for _ in range(count // 10):
                response = await connection.request(_transactional(producer), TxnOffsetCommitResponse)
                _check(response.topics[0].partitions[0].error_code)
                await _end(connection, producer)

        return [
            await _cpu_us(running, plain, count),
            await _cpu_us(running, in_one, count),
            await _cpu_us(running, each_alone, count // 10),
        ]


async def _cpu_us(running: RunningBroker, work: Callable[[], Awaitable[None]], count: int) -> float:
    before = processes.cpu_seconds(_pid(running))
    await work()
    return 1e6 * (processes.cpu_seconds(_pid(running)) - before) / count


async def _pipelined(
    numbers: range, send: Callable[[int], Awaitable[Reply[OffsetCommitResponse] | Reply[TxnOffsetCommitResponse]]]
) -> None:
    replies: deque[Reply[OffsetCommitResponse] | Reply[TxnOffsetCommitResponse]] = deque()
    for number in numbers:
        replies.append(await send(number))
        if len(replies) >= IN_FLIGHT_COUNT:
            _check((await replies.popleft().wait()).topics[0].partitions[0].error_code)
    while replies:
        _check((await replies.popleft().wait()).topics[0].partitions[0].error_code)


async def _ready(client: Client) -> Connection:
    await client.topic(TOPIC, create=True)
    return await client.coordinator(_group(0))


async def _init(connection: Connection) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=600_000)
    while (response := await connection.request(request, InitProducerIdResponse)).error_code:
        assert response.error_code in error_codes.RETRIABLE
        await trio.sleep(0.1)
    return response


async def _end(connection: Connection, producer: InitProducerIdResponse) -> None:
    request = EndTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    response = await connection.request(request, EndTxnResponse)
    _check(response.error_code)
    producer.producer_id, producer.producer_epoch = response.producer_id, response.producer_epoch


def _commit(group: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return OffsetCommitRequest(
        group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    )


def _transactional(producer: InitProducerIdResponse) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id=TRANSACTIONAL_ID,
        group_id="transactional",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )


def _check(error_code: int) -> None:
    assert not error_code, error_codes.name(error_code)


def _group(number: int) -> str:
    return f"group-{number:06d}"


def _pid(running: RunningBroker) -> int:
    assert running.pid is not None
    return running.pid


def show(findings: Findings) -> None:
    """Print the table."""
    table = Table(title=f"{findings.group_count:,} groups, and commits of one offset: CPU of the broker")
    table.add_column("")
    table.add_column("least", justify="right")
    table.add_column("median", justify="right")
    for name, seconds in (
        ("start without groups, s", findings.empty_start_cpu_seconds),
        ("start with groups, s", findings.start_cpu_seconds),
    ):
        table.add_row(name, f"{min(seconds):.2f}", f"{median(seconds):.2f}")
    added = f"{findings.restore_cpu_seconds:.2f}"
    table.add_row(f"what the groups add, s (at most {RESTORE_MAX_SECONDS:g})", "", added)
    for name, cost in (
        ("OffsetCommit, µs", findings.commit_cpu_us),
        ("TxnOffsetCommit in a long transaction, µs", findings.transactional_commit_cpu_us),
        ("a transaction of one TxnOffsetCommit with EndTxn, µs", findings.transaction_cpu_us),
    ):
        table.add_row(name, "", f"{cost:.0f}")
    console().print(table)


if __name__ == "__main__":
    main()
