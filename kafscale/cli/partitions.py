"""`kafscale partitions list|move|balance`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import attrs
import click

from kafscale.cli.completion import TOPIC
from kafscale.cli.options import INDEX, json_option, timeout_option, with_client
from kafscale.cli.output import say, show, show_described, wait_until_none_is_left
from kafscale.errors import NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.brokers import PartitionPlace

CALM_SECONDS = 12.0  # without a move; brokers look at the balance every 5 s


# `waits_for` is a broker that doesn't serve at present. The bytes of a partition are known for the busiest only.
PLACEMENT_COLUMNS = ("topic", "partition", "leader", "moves_to", "waits_for")
MOVE_COLUMNS = ("topic", "partition", "leader", "moves_to", "bytes_per_second")
BALANCE_COLUMNS = ("broker", "leads", "bytes_per_second", "then_leads", "then_bytes_per_second")


@click.group("partitions")
def command() -> None:
    """List, move and balance partitions."""


@command.command("list")
@click.argument("topics", type=TOPIC, metavar="[TOPIC]...", nargs=-1)
@json_option
@with_client
async def list_command(client: Client, topics: tuple[str, ...], as_json: bool) -> None:
    """List the leaders of the partitions of TOPIC, or of all topics, and the partitions that are moving."""
    from kafscale.client.brokers import NO_BROKER, list_reassignments

    moving = await list_reassignments(client)
    rows = []
    for place in await _places(client, topics):
        leader, waits_for = (None if id_ == NO_BROKER else id_ for id_ in (place.leader, place.waits_for))
        rows.append((place.topic, place.partition, leader, moving.get(place.at), waits_for))
    show(PLACEMENT_COLUMNS, rows, as_json=as_json)


@command.command("move")
@click.argument("topic", type=TOPIC)
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1, type=INDEX)
@click.option("--to", "broker_id", metavar="ID", type=INDEX, required=True, help="The new leader.")
@timeout_option
@with_client
async def move_command(
    client: Client, topic: str, partitions: tuple[int, ...], broker_id: int, timeout_seconds: float
) -> None:
    """Move each PARTITION of TOPIC, or all of them, to broker --to, and wait until it leads them.

    They stay there while that broker serves and is not drained, until `kafscale partitions balance`.
    """
    wanted = [place for place in await _places(client, [topic]) if not partitions or place.partition in partitions]
    missing = sorted(set(partitions) - {place.partition for place in wanted})
    if missing:
        raise NotFound(f"topic '{topic}' has no partition {missing[0]}; see `kafscale partitions list {topic}`")
    await _move(client, wanted, broker_id, timeout_seconds)


@command.command("balance")
@click.argument("topics", type=TOPIC, metavar="[TOPIC]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Show which partitions would move, and the load of brokers afterwards.")
@timeout_option
@json_option
@with_client
async def balance_command(
    client: Client, topics: tuple[str, ...], dry_run: bool, timeout_seconds: float, as_json: bool
) -> None:
    """Undo moves by hand of partitions of TOPIC, or of all topics, and wait until the load is balanced.

    Partitions move until all brokers have about the same load: bytes written and read, and number of partitions.
    Partitions of other topics that were moved by hand stay. --json is for --dry-run.
    """
    from kafscale.client.brokers import release_moved

    places = await _places(client, topics)
    if dry_run:
        await _show_balance(client, places, topics, as_json)
        return
    say(f"{await release_moved(client, places)} partitions that were moved by hand may move again")
    await _wait_for_balance(client, timeout_seconds)


async def _places(client: Client, topics: Collection[str]) -> list[PartitionPlace]:
    """Return the places of partitions of topics, or of all. Raises NotFound for an unknown topic."""
    from kafscale.client.brokers import list_places

    found = await list_places(client, topics)
    missing = sorted(set(topics) - {place.topic for place in found})
    if missing:
        raise NotFound(f"there is no topic '{missing[0]}'; see `kafscale topics list`")
    return found


async def _move(client: Client, wanted: Collection[PartitionPlace], broker_id: int, timeout_seconds: float) -> None:
    from kafscale.client.brokers import list_places, reassign

    factors = {place.at: max(1, len(place.replicas)) for place in wanted}
    refused = await reassign(client, {at: [broker_id] * factor for at, factor in factors.items()})
    for error in refused.values():
        raise error

    async def look() -> int:
        places = await list_places(client, {place.topic for place in wanted})
        return sum(place.leader != broker_id for place in places if place.at in factors)

    await wait_until_none_is_left(
        look,
        timeout_seconds,
        otherwise=lambda left_count: (
            f"broker {broker_id} doesn't lead {left_count} of the partitions yet. The move goes on; see the logs of "
            "the brokers that lead them"
        ),
    )
    say(f"broker {broker_id} leads {len(factors)} of {len(factors)} partitions")


async def _show_balance(
    client: Client, places: Collection[PartitionPlace], topics: Collection[str], as_json: bool
) -> None:
    from kafscale.client.brokers import find_balance, known, list_places

    balance = await find_balance(client, topics or None)
    if balance is None:
        raise click.ClickException(
            "no broker has a plan: there is no controller at present, so try again in some seconds; or its version is "
            "too old, so upgrade it (`kafscale brokers list` shows the controller and all versions)"
        )
    leaders = {place.at: place.broker_id for place in (await list_places(client) if topics else places)}
    moves = [(*at, leaders.get(at), target, balance.busiest.get(at)) for at, target in balance.moves.items()]
    brokers = [
        (
            broker.broker_id,
            broker.partition_count,
            known(broker.bytes_per_second),
            broker.planned_partition_count,
            known(broker.planned_bytes_per_second),
        )
        for broker in balance.brokers.values()
    ]
    if as_json:
        show_described({}, {"moves": (MOVE_COLUMNS, moves), "brokers": (BALANCE_COLUMNS, brokers)}, as_json=True)
        return
    if balance.is_waiting:
        say("brokers are measuring their load, which takes half a minute; nothing moves before that")
    show(MOVE_COLUMNS, moves)
    click.echo()
    show(BALANCE_COLUMNS, brokers)


async def _wait_for_balance(client: Client, timeout_seconds: float) -> None:
    balance = _Balance(client)
    await wait_until_none_is_left(
        balance.look,
        timeout_seconds,
        otherwise=lambda left_count: f"{left_count} partitions are still moving. The moves go on",
    )
    led = ", ".join(f"broker {broker_id} leads {count}" for broker_id, count in sorted(balance.led.items()))
    say(f"all moves are done: {led}")


@attrs.define
class _Balance:
    """Counts moving partitions; `led` counts those of each broker that may lead some.

    Without a plan of the controller, it is done when all lead the same number, or nothing has moved for CALM_SECONDS.
    """

    client: Client
    led: Counter[int] = attrs.field(factory=Counter)
    _calm_since: float | None = None

    async def look(self) -> int:
        from kafscale.client.brokers import DRAINING, broker_configs, find_balance, list_brokers

        live = [broker.broker_id for broker in await list_brokers(self.client) if not broker.is_fenced]
        configs = await broker_configs(self.client, live)
        self.led = Counter({broker_id: 0 for broker_id in live if configs.get(broker_id, {}).get(DRAINING) != "true"})
        balance = await find_balance(self.client)
        if balance is None:
            return await self._look_at_numbers()
        known = {id_: balance.brokers[id_].partition_count for id_ in self.led if id_ in balance.brokers}
        self.led.update(known)
        return balance.moving_count + len(balance.moves) + balance.is_waiting

    async def _look_at_numbers(self) -> int:
        import trio

        from kafscale.client.brokers import list_places, list_reassignments

        places = await list_places(self.client)
        self.led.update(place.leader for place in places if place.leader in self.led)
        moving_count = len(await list_reassignments(self.client))
        if moving_count:
            self._calm_since = None
            return moving_count
        uneven_count = max(self.led.values(), default=0) - min(self.led.values(), default=0)
        if self._calm_since is None:
            self._calm_since = trio.current_time()
        is_over = uneven_count < 2 or trio.current_time() - self._calm_since > CALM_SECONDS
        return 0 if is_over else uneven_count
