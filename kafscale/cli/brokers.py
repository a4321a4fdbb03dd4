"""`kafscale brokers list|describe|drain|undrain|replace|remove|unshare`."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.adopt import WRITING_OPTIONS
from kafscale.cli.options import INDEX, Bootstrap, bootstrap_option, json_option, run_with_client
from kafscale.cli.output import say, show, show_json
from kafscale.cli.progress import timeout_option, wait_until_none_is_left
from kafscale.cli.serve import settings_flags
from kafscale.config import Address, Settings, load
from kafscale.errors import NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.brokers import Balance

LIVE, FENCED = "live", "fenced"
SERVING = (LIVE, "full")  # the last: its disk takes no more
STARTED_AGAIN = {"wal": "on its data directory", "s3-wal": "on any machine, with the same --broker-id"}


@attrs.frozen(kw_only=True)
class BrokerRow:
    """One broker. `leads` counts the partitions that it leads or, while it does not serve, that wait for it.

    `bytes_per_second` are written and read, as far as that is known.
    """

    broker: int
    address: str
    rack: str | None
    state: str
    controller: bool
    draining: bool
    leads: int
    durability: str | None
    version: str | None
    bytes_per_second: int | None


@attrs.frozen(kw_only=True)
class LedRow:
    """A partition. `bytes_per_second` is told of those only which are among the busiest."""

    topic: str
    partition: int
    moves_to: int | None
    bytes_per_second: int | None


_id_argument = click.argument("broker_id", metavar="ID", type=INDEX)


@click.group("brokers")
def command() -> None:
    """List and describe the brokers that share a bucket, and have partitions leave one."""


@command.command("list")
@bootstrap_option
@json_option
def list_command(bootstrap: Bootstrap, as_json: bool) -> None:
    """List all brokers, also those that do not serve just now."""

    async def use(client: Client) -> None:
        from kafscale.client.brokers import find_balance

        show(BrokerRow, await _rows(client, await find_balance(client)), as_json=as_json)

    run_with_client(bootstrap, use)


@command.command("describe")
@_id_argument
@bootstrap_option
@json_option
def describe_command(broker_id: int, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show broker ID and the partitions that it leads, or that wait for it."""

    async def use(client: Client) -> None:
        from kafscale.client.brokers import find_balance, list_places, list_reassignments

        balance = await find_balance(client)
        row = _row_of(await _rows(client, balance), broker_id)
        moving = await list_reassignments(client)
        led = [
            LedRow(
                topic=each.topic,
                partition=each.partition,
                moves_to=moving.get(each.at),
                bytes_per_second=None if balance is None else balance.busiest.get(each.at),
            )
            for each in await list_places(client)
            if each.broker_id == broker_id
        ]
        if as_json:
            show_json({**attrs.asdict(row), "partitions": [attrs.asdict(each) for each in led]})
            return
        show(BrokerRow, [row])
        if led:
            click.echo()
            show(LedRow, led)

    run_with_client(bootstrap, use)


@command.command("drain")
@_id_argument
@click.option("--undo", is_flag=True, help="Have it lead partitions again, as `kafscale brokers undrain`.")
@timeout_option
@bootstrap_option
def drain_command(broker_id: int, undo: bool, timeout_seconds: float, bootstrap: Bootstrap) -> None:
    """Have all partitions of broker ID led by others, one after the other, and wait until it leads none.

    It serves meanwhile, and gets no new ones until `kafscale brokers undrain ID`, also when it is started again.
    """

    async def use(client: Client) -> None:
        if undo:
            await _undrain(client, broker_id)
        else:
            await _drain(client, broker_id, timeout_seconds)

    run_with_client(bootstrap, use)


@command.command("undrain")
@_id_argument
@bootstrap_option
def undrain_command(broker_id: int, bootstrap: Bootstrap) -> None:
    """Have broker ID lead partitions again: they move to it until all brokers have as much to do."""

    async def use(client: Client) -> None:
        await _undrain(client, broker_id)

    run_with_client(bootstrap, use)


@command.command("replace")
@_id_argument
@click.option("--accept-loss", is_flag=True, help="Lose what the broker has acknowledged and not uploaded.")
@timeout_option
@bootstrap_option
def replace_command(broker_id: int, accept_loss: bool, timeout_seconds: float, bootstrap: Bootstrap) -> None:
    """Have others lead what broker ID led, which has died, and wait until they do.

    With --durability segment they do so by themselves, and with s3-wal if one of them has that, too. Otherwise records
    that it has acknowledged may be nowhere else than on its disk (wal), or in its part of the log in the bucket
    (s3-wal): better start it again.
    """

    async def use(client: Client) -> None:
        await _replace(client, broker_id, accept_loss, timeout_seconds)

    run_with_client(bootstrap, use)


@command.command("remove")
@_id_argument
@bootstrap_option
def remove_command(broker_id: int, bootstrap: Bootstrap) -> None:
    """Forget broker ID, which has stopped and leads nothing; started again, it would join anew."""

    async def use(client: Client) -> None:
        from kafscale.client.brokers import unregister_broker

        _row_of(await _rows(client), broker_id)
        await unregister_broker(client, broker_id)
        say(f"broker {broker_id} is forgotten")

    run_with_client(bootstrap, use)


@command.command("unshare")
@settings_flags(only=WRITING_OPTIONS)
def unshare_command(config_file: str | None, **flags: Any) -> None:
    """Have the last of several brokers have the bucket to itself again.

    That is the broker of --broker-id and --data-dir, which has stopped; the others have been removed. From then on it
    is started without --several-brokers. Interrupted, the command or the next start finishes.
    """
    import trio

    settings = load(flags, os.environ, config_file).settings
    trio.run(_unshare, settings)
    say(f"broker {settings.broker_id} has the bucket to itself: start it without --several-brokers")


async def _unshare(settings: Settings) -> None:
    from kafscale.cluster.membership.start.directory_notes import check_same_store
    from kafscale.cluster.membership.start.takeover import StartSteps
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
            directory_id = await StartSteps(settings=settings, store=store, local=local).directory_id()
            ending = Unsharing(store=store, namespace=settings.namespace, local=local)
            await ending.run(settings.broker_id, directory_id)


async def _rows(client: Client, balance: Balance | None = None) -> list[BrokerRow]:
    from kafscale.client.brokers import DRAINING, DURABILITY, STATE, VERSION, broker_configs, list_brokers, list_places

    brokers = await list_brokers(client)
    configs = await broker_configs(client, [each.broker_id for each in brokers])
    led = Counter(each.broker_id for each in await list_places(client))
    rows = []
    for each in brokers:
        known = configs.get(each.broker_id, {})
        rows.append(
            BrokerRow(
                broker=each.broker_id,
                address=str(Address(each.host, each.port)),
                rack=each.rack,
                state=known.get(STATE) or (FENCED if each.is_fenced else LIVE),
                controller=each.is_controller,
                draining=known.get(DRAINING) == "true",
                leads=led[each.broker_id],
                durability=known.get(DURABILITY),
                version=known.get(VERSION),
                bytes_per_second=_load(balance, each.broker_id),
            )
        )
    return rows


def _load(balance: Balance | None, broker_id: int) -> int | None:
    from kafscale.client.brokers import known

    told = None if balance is None else balance.brokers.get(broker_id)
    return None if told is None else known(told.bytes_per_second)


def _row_of(rows: list[BrokerRow], broker_id: int) -> BrokerRow:
    """Raises NotFound."""
    for row in rows:
        if row.broker == broker_id:
            return row
    known = ", ".join(str(row.broker) for row in rows)
    raise NotFound(f"there is no broker {broker_id}; there are {known}: `kafscale brokers list` shows them")


async def _drain(client: Client, broker_id: int, timeout_seconds: float) -> None:
    from kafscale.client.brokers import set_draining

    row = _row_of(await _rows(client), broker_id)
    if row.state not in SERVING and row.leads:
        raise click.ClickException(
            f"broker {broker_id} does not serve ({row.state}), and {row.leads} partitions wait for it: start it, and "
            f"drain it then; or `kafscale brokers replace {broker_id}`, if it does not come back"
        )
    await set_draining(client, broker_id, True)
    await wait_until_none_is_left(
        partial(_led_count, client, broker_id),
        timeout_seconds,
        otherwise=lambda left_count: (
            f"broker {broker_id} leads {left_count} partitions still; it goes on until it leads none, and its log says "
            f"what fails, and `kafscale brokers undrain {broker_id}` takes it back"
        ),
    )
    say(f"broker {broker_id} leads nothing any more: {row.leads} partitions are led by others")


async def _led_count(client: Client, broker_id: int) -> int:
    from kafscale.client.brokers import list_places

    return sum(each.broker_id == broker_id for each in await list_places(client))


async def _replace(client: Client, broker_id: int, accept_loss: bool, timeout_seconds: float) -> None:
    from kafscale.client.brokers import elect_any_leader, list_places

    row = _row_of(await _rows(client), broker_id)
    if row.state in SERVING:
        raise click.ClickException(
            f"broker {broker_id} serves: `kafscale brokers drain {broker_id}` has others lead what it leads, and loses "
            "nothing; one that has died is known to be away after --broker-session-timeout"
        )
    if row.leads and row.durability in STARTED_AGAIN and not accept_loss:
        raise click.ClickException(
            f"{row.leads} partitions wait for broker {broker_id}: start it again {STARTED_AGAIN[row.durability]}, and "
            "nothing is lost. Where that can't be, --accept-loss has others lead them, without what it had not uploaded"
        )
    if accept_loss:
        await elect_any_leader(client, [each.at for each in await list_places(client) if each.waits_for == broker_id])
    await wait_until_none_is_left(
        partial(_led_count, client, broker_id),
        timeout_seconds,
        otherwise=lambda left_count: (
            f"{left_count} partitions of broker {broker_id} have no other leader yet; the log of the controller, which "
            "`kafscale brokers list` names, says why"
        ),
    )
    say(f"others lead the {row.leads} partitions that broker {broker_id} led")


async def _undrain(client: Client, broker_id: int) -> None:
    from kafscale.client.brokers import set_draining

    row = _row_of(await _rows(client), broker_id)
    await set_draining(client, broker_id, False)
    say(f"broker {broker_id} may lead partitions" + ("" if row.draining else ", as before: it was not drained"))
