"""`kafscale brokers list|describe|drain|undrain|replace|remove|unshare`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import click

from kafscale.cli.options import INDEX, WRITING_OPTIONS, json_option, timeout_option, with_client, with_settings
from kafscale.cli.output import say, show, show_described, wait_until_none_is_left
from kafscale.config import Loaded, Settings
from kafscale.errors import NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.broker_rows import BrokerRow

STARTED_AGAIN = {"wal": "on its data directory", "s3-wal": "on any machine, with the same --broker-id"}


LED_COLUMNS = ("topic", "partition", "moves_to", "bytes_per_second")  # known for the busiest only

_id_argument = click.argument("broker_id", metavar="ID", type=INDEX)


@click.group("brokers")
def command() -> None:
    """List, drain, replace and remove brokers."""


@command.command("list")
@json_option
@with_client
async def list_command(client: Client, as_json: bool) -> None:
    """List all brokers, including those that don't serve."""
    from kafscale.client.broker_rows import BrokerRow, describe_brokers
    from kafscale.client.brokers import find_balance, list_places

    rows = await describe_brokers(client, await list_places(client), await find_balance(client))
    show(BrokerRow, rows, as_json=as_json)


@command.command("describe")
@_id_argument
@json_option
@with_client
async def describe_command(client: Client, broker_id: int, as_json: bool) -> None:
    """Show broker ID and the partitions that it leads, or that wait for it."""
    from kafscale.client.broker_rows import BrokerRow, describe_brokers
    from kafscale.client.brokers import find_balance, list_places, list_reassignments

    balance = await find_balance(client)
    places = await list_places(client)
    row = _row_of(await describe_brokers(client, places, balance), broker_id)
    moving = await list_reassignments(client)
    busiest = {} if balance is None else balance.busiest
    led = [
        (place.topic, place.partition, moving.get(place.at), busiest.get(place.at))
        for place in places
        if place.broker_id == broker_id
    ]
    if as_json:
        show_described(attrs.asdict(row), {"partitions": (LED_COLUMNS, led)}, as_json=True)
        return
    show(BrokerRow, [row])
    if led:
        click.echo()
        show(LED_COLUMNS, led)


@command.command("drain")
@_id_argument
@timeout_option
@with_client
async def drain_command(client: Client, broker_id: int, timeout_seconds: float) -> None:
    """Move all partitions of broker ID to others, one after the other, and wait until it leads none.

    It serves meanwhile. It gets no new partitions until `kafscale brokers undrain ID`, even after a restart.
    """
    from kafscale.client.broker_rows import SERVING, describe_brokers
    from kafscale.client.brokers import list_places, set_draining

    row = _row_of(await describe_brokers(client, await list_places(client)), broker_id)
    if row.state not in SERVING and row.leads:
        raise click.ClickException(
            f"broker {broker_id} doesn't serve ({row.state}), and {row.leads} partitions wait for it: start it and "
            f"then drain it, or `kafscale brokers replace {broker_id}` if it doesn't come back"
        )
    await set_draining(client, broker_id, True)
    advice = f"The drain goes on; see the broker's log, or cancel it by `kafscale brokers undrain {broker_id}`"
    await wait_until_none_is_left(
        partial(_led_count, client, broker_id),
        timeout_seconds,
        otherwise=lambda left_count: f"broker {broker_id} still leads {left_count} partitions. {advice}",
    )
    say(f"broker {broker_id} leads no partitions; {row.leads} have moved to others")


@command.command("undrain")
@_id_argument
@with_client
async def undrain_command(client: Client, broker_id: int) -> None:
    """Let broker ID lead partitions again; they move to it until the load is balanced."""
    from kafscale.client.broker_rows import describe_brokers
    from kafscale.client.brokers import list_places, set_draining

    row = _row_of(await describe_brokers(client, await list_places(client)), broker_id)
    await set_draining(client, broker_id, False)
    say(f"broker {broker_id} may lead partitions" + ("" if row.draining else "; it was not drained"))


@command.command("replace")
@_id_argument
@click.option("--accept-loss", is_flag=True, help="Lose records that the broker acknowledged and didn't upload.")
@timeout_option
@with_client
async def replace_command(client: Client, broker_id: int, accept_loss: bool, timeout_seconds: float) -> None:
    """Let others lead the partitions of broker ID, which has died, and wait until they do.

    With --durability segment they do so by themselves, and with s3-wal if one of them has s3-wal too. Otherwise
    acknowledged records may be on its disk only (wal), or in its part of the log in the bucket (s3-wal): better start
    it again.
    """
    from kafscale.client.broker_rows import SERVING, describe_brokers
    from kafscale.client.brokers import elect_any_leader, list_places

    row = _row_of(await describe_brokers(client, await list_places(client)), broker_id)
    if row.state in SERVING:
        raise click.ClickException(
            f"broker {broker_id} serves: `kafscale brokers drain {broker_id}` moves its partitions without loss. A "
            "dead broker is fenced after --broker-session-timeout"
        )
    if row.leads and row.durability in STARTED_AGAIN and not accept_loss:
        raise click.ClickException(
            f"{row.leads} partitions wait for broker {broker_id}: start it again {STARTED_AGAIN[row.durability]} to "
            "lose nothing. If that is impossible, --accept-loss moves them without the records that it didn't upload"
        )
    if accept_loss:
        waiting = [place.at for place in await list_places(client) if place.waits_for == broker_id]
        await elect_any_leader(client, waiting)
    await wait_until_none_is_left(
        partial(_led_count, client, broker_id),
        timeout_seconds,
        otherwise=lambda left_count: (
            f"{left_count} partitions of broker {broker_id} have no new leader yet; see the log of the controller, "
            "which `kafscale brokers list` shows"
        ),
    )
    say(f"others lead the {row.leads} partitions that broker {broker_id} led")


@command.command("remove")
@_id_argument
@with_client
async def remove_command(client: Client, broker_id: int) -> None:
    """Forget broker ID, which has stopped and leads nothing. If it starts again, it joins as a new broker."""
    from kafscale.client.broker_rows import describe_brokers
    from kafscale.client.brokers import list_places, unregister_broker

    _row_of(await describe_brokers(client, await list_places(client)), broker_id)
    await unregister_broker(client, broker_id)
    say(f"broker {broker_id} is removed")


@command.command("unshare")
@with_settings(only=WRITING_OPTIONS)
def unshare_command(loaded: Loaded) -> None:
    """Give the bucket to the last of several brokers alone.

    That is the broker of --broker-id and --data-dir, which must be stopped, and the others removed. Then start it
    without --several-brokers. If the command is interrupted, run it again or start the broker to finish it.
    """
    import trio

    trio.run(_unshare, loaded.settings)
    say(f"broker {loaded.settings.broker_id} has the bucket to itself; start it without --several-brokers")


async def _unshare(settings: Settings) -> None:
    from kafscale.cluster.membership.start.recovery import check_same_store, directory_id
    from kafscale.cluster.membership.start.unsharing import Unsharing
    from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
    from kafscale.log.wal.data_directory import keep_files_private, lock_data_directory
    from kafscale.store.opening.opening import store_of_command

    keep_files_private()
    with lock_data_directory(settings.data_dir):
        async with (
            store_of_command(settings) as store,
            SqliteMetadataStore.open(settings.data_dir / "metadata.db") as local,
        ):
            await check_same_store(local, settings)
            ending = Unsharing(store=store, namespace=settings.namespace, local=local)
            await ending.run(settings.broker_id, await directory_id(local))


def _row_of(rows: list[BrokerRow], broker_id: int) -> BrokerRow:
    for row in rows:
        if row.broker == broker_id:
            return row
    known = ", ".join(str(row.broker) for row in rows)
    raise NotFound(f"there is no broker {broker_id}; the brokers are {known}, see `kafscale brokers list`")


async def _led_count(client: Client, broker_id: int) -> int:
    from kafscale.client.brokers import list_places

    return sum(place.broker_id == broker_id for place in await list_places(client))
