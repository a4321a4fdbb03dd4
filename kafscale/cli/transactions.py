"""`kafscale transactions list|describe|abort`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafscale.cli.options import ListOption, json_option, with_client
from kafscale.cli.output import say, show, show_described
from kafscale.errors import KafkaError

if TYPE_CHECKING:
    from kafscale.client import Client

ONGOING = "Ongoing"


@click.group("transactions")
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@click.option("--state", "states", cls=ListOption, help="Only ids in this state, such as Ongoing; repeatable.")
@json_option
@with_client
async def list_command(client: Client, states: tuple[str, ...], as_json: bool) -> None:
    """List all transactional ids."""
    from kafscale.client.transactions import list_transactions

    rows = [
        (found.transactional_id, found.producer_id, found.transaction_state)
        for found in await list_transactions(client, list(states))
    ]
    show(("transactional_id", "producer_id", "state"), rows, as_json=as_json)


@command.command("describe")
@click.argument("transactional_id", metavar="ID")
@json_option
@with_client
async def describe_command(client: Client, transactional_id: str, as_json: bool) -> None:
    """Show the producer of transactional ID, and the partitions of its transaction."""
    from kafscale.client.transactions import describe_transaction

    found = await describe_transaction(client, transactional_id)
    partitions = [(topic.topic, index) for topic in found.topics for index in topic.partitions]
    show_described(
        {
            "transactional_id": transactional_id,
            "state": found.transaction_state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.transaction_timeout_ms,
            "start_time_ms": found.transaction_start_time_ms,
        },
        {"partitions": (("topic", "partition"), partitions)},
        as_json=as_json,
        heading=f"transactional id {transactional_id} is {found.transaction_state}; producer {found.producer_id}, "
        f"epoch {found.producer_epoch}; partitions: {len(partitions)}",
    )


@command.command("abort")
@click.argument("transactional_id", metavar="ID")
@with_client
async def abort_command(client: Client, transactional_id: str) -> None:
    """Abort the open transaction of transactional ID, and fence its producer."""
    from kafscale.client.transactions import abort_transaction, describe_transaction
    from kafscale.wire.error_codes import INVALID_TXN_STATE

    found = await describe_transaction(client, transactional_id)
    if found.transaction_state != ONGOING:
        raise KafkaError(
            INVALID_TXN_STATE,
            f"transactional id {transactional_id} has no open transaction: it is {found.transaction_state}",
        )
    await abort_transaction(client, transactional_id, found.transaction_timeout_ms)
    say(f"aborted the transaction of {transactional_id}")
