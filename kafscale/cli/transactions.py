"""`kafscale transactions list|describe|abort`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from kafscale.cli.options import Bootstrap, ListOption, bootstrap_option, json_option, run_with_client
from kafscale.cli.output import say, show, show_json
from kafscale.errors import KafkaError

if TYPE_CHECKING:
    from kafscale.client import Client

ONGOING = "Ongoing"


@attrs.frozen(kw_only=True)
class TransactionRow:
    transactional_id: str
    producer_id: int
    state: str


@attrs.frozen(kw_only=True)
class PartitionRow:
    topic: str
    partition: int


@click.group("transactions")
def command() -> None:
    """List and describe transactional ids, and abort their transactions."""


@command.command("list")
@click.option("--state", "states", cls=ListOption, help="Only ids in this state, such as Ongoing; may be repeated.")
@bootstrap_option
@json_option
def list_command(states: tuple[str, ...], bootstrap: Bootstrap, as_json: bool) -> None:
    """List all transactional ids."""

    async def use(client: Client) -> None:
        from kafscale.client.transactions import list_transactions

        rows = [
            TransactionRow(
                transactional_id=each.transactional_id, producer_id=each.producer_id, state=each.transaction_state
            )
            for each in await list_transactions(client, list(states))
        ]
        show(TransactionRow, rows, as_json=as_json)

    run_with_client(bootstrap, use)


@command.command("describe")
@click.argument("transactional_id", metavar="ID")
@bootstrap_option
@json_option
def describe_command(transactional_id: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show who has the transactional ID, and which partitions its transaction has written to."""

    async def use(client: Client) -> None:
        from kafscale.client.transactions import describe_transaction

        found = await describe_transaction(client, transactional_id)
        partitions = [
            PartitionRow(topic=each.topic, partition=index) for each in found.topics for index in each.partitions
        ]
        if as_json:
            show_json(
                {
                    "transactional_id": transactional_id,
                    "state": found.transaction_state,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.producer_epoch,
                    "timeout_ms": found.transaction_timeout_ms,
                    "start_time_ms": found.transaction_start_time_ms,
                    "partitions": [*map(attrs.asdict, partitions)],
                }
            )
            return
        say(
            f"transactional id {transactional_id} is {found.transaction_state}; producer {found.producer_id}, epoch "
            f"{found.producer_epoch}; partitions: {len(partitions)}"
        )
        if partitions:
            click.echo()
            show(PartitionRow, partitions)

    run_with_client(bootstrap, use)


@command.command("abort")
@click.argument("transactional_id", metavar="ID")
@bootstrap_option
def abort_command(transactional_id: str, bootstrap: Bootstrap) -> None:
    """Abort the transaction that the transactional ID has open; its producer is fenced."""

    async def use(client: Client) -> None:
        from kafscale.client.transactions import abort_transaction, describe_transaction
        from kafscale.wire.error_codes import INVALID_TXN_STATE

        found = await describe_transaction(client, transactional_id)
        if found.transaction_state != ONGOING:
            state = found.transaction_state
            raise KafkaError(INVALID_TXN_STATE, f"transactional id {transactional_id} has nothing open: it is {state}")
        await abort_transaction(client, transactional_id, found.transaction_timeout_ms)
        say(f"aborted the transaction of {transactional_id}")

    run_with_client(bootstrap, use)
