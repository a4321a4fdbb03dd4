"""`kafscale partitions list|move|balance`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import attrs
import click

from kafscale.cli.options import INDEX, Bootstrap, bootstrap_option, json_option, run_with_client
from kafscale.cli.output import say, show, show_json
from kafscale.cli.progress import timeout_option, wait_until_none_is_left
from kafscale.errors import NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.brokers import At, Place
    from kafscale.wire.messages.replicas import BalancedBroker

CALM_SECONDS = 12.0  # without a move, after which there is none to come: balance is looked at every 5 s


@attrs.frozen(kw_only=True)
class PartitionRow:
    """One partition. `waits_for` is a broker that does not serve just now."""

    topic: str
    partition: int
    leader: int | None
    moves_to: int | None
    waits_for: int | None


@attrs.frozen(kw_only=True)
class MoveRow:
    """A partition that would move. `bytes_per_second` is told where it is among the busiest."""

    topic: str
    partition: int
    leader: int | None
    moves_to: int
    bytes_per_second: int | None


@attrs.frozen(kw_only=True)
class BalanceRow:
    """A broker, what it leads and has to do in bytes a second, and what it would."""

    broker: int
    leads: int
    bytes_per_second: int | None
    then_leads: int
    then_bytes_per_second: int | None


@click.group("partitions")
def command() -> None:
    """List which broker leads which partition, and move partitions between brokers."""


@command.command("list")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@bootstrap_option
@json_option
def list_command(topics: tuple[str, ...], bootstrap: Bootstrap, as_json: bool) -> None:
    """List who leads the partitions of TOPIC, or of all topics, and which are on their way."""

    async def use(client: Client) -> None:
        from kafscale.client.brokers import NOBODY, list_reassignments

        moving = await list_reassignments(client)
        rows = [
            PartitionRow(
                topic=each.topic,
                partition=each.partition,
                leader=None if each.leader == NOBODY else each.leader,
                moves_to=moving.get((each.topic, each.partition)),
                waits_for=None if each.waits_for == NOBODY else each.waits_for,
            )
            for each in await _places(client, topics)
        ]
        show(PartitionRow, rows, as_json=as_json)

    run_with_client(bootstrap, use)


@command.command("move")
@click.argument("topic")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1, type=INDEX)
@click.option("--to", "broker_id", metavar="ID", type=INDEX, required=True, help="The broker that is to lead them.")
@timeout_option
@bootstrap_option
def move_command(
    topic: str, partitions: tuple[int, ...], broker_id: int, timeout_seconds: float, bootstrap: Bootstrap
) -> None:
    """Have each PARTITION of TOPIC, or all of them, led by broker --to, and wait until it leads them.

    They stay there as long as that broker serves and is not drained, until `kafscale partitions balance`.
    """

    async def use(client: Client) -> None:
        wanted = [each for each in await _places(client, [topic]) if not partitions or each.partition in partitions]
        missing = sorted(set(partitions) - {each.partition for each in wanted})
        if missing:
            raise NotFound(f"topic '{topic}' has no partition {missing[0]}; `kafscale partitions list {topic}`")
        await _move(client, wanted, broker_id, timeout_seconds)

    run_with_client(bootstrap, use)


@command.command("balance")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show what would move, and what brokers would have to do then.")
@timeout_option
@json_option
@bootstrap_option
def balance_command(
    topics: tuple[str, ...], dry_run: bool, timeout_seconds: float, as_json: bool, bootstrap: Bootstrap
) -> None:
    """Forget which brokers partitions of TOPIC, or of all topics, were moved to by hand, and wait for balance.

    Partitions move until all brokers have about as much to do: by what is written to their partitions and read from
    them, and by the number of those. What was moved by hand of other topics stays. --json is of --dry-run.
    """

    async def use(client: Client) -> None:
        places = await _places(client, topics)
        if dry_run:
            await _show_balance(client, places, topics, as_json)
            return
        await _release(client, places)
        await _wait_for_balance(client, timeout_seconds)

    run_with_client(bootstrap, use)


async def _places(client: Client, topics: Collection[str]) -> list[Place]:
    """Raises NotFound for a topic that there is not."""
    from kafscale.client.brokers import list_places

    found = await list_places(client, topics)
    missing = sorted(set(topics) - {each.topic for each in found})
    if missing:
        raise NotFound(f"there is no topic '{missing[0]}'; `kafscale topics list` shows them")
    return found


async def _move(client: Client, wanted: Collection[Place], broker_id: int, timeout_seconds: float) -> None:
    from kafscale.client.brokers import list_places, reassign

    factors = {each.at: max(1, len(each.replicas)) for each in wanted}
    refused = await reassign(client, {at: [broker_id] * factor for at, factor in factors.items()})
    for error in refused.values():
        raise error

    async def look() -> int:
        places = await list_places(client, {each.topic for each in wanted})
        return sum(each.leader != broker_id for each in places if each.at in factors)

    await wait_until_none_is_left(
        look,
        timeout_seconds,
        otherwise=lambda left_count: (
            f"broker {broker_id} does not lead {left_count} of the partitions yet; they go on to move, and the logs of "
            "the brokers that lead them say what fails"
        ),
    )
    say(f"broker {broker_id} leads {len(factors)} of {len(factors)} partitions")


async def _release(client: Client, places: Collection[Place]) -> None:
    from kafscale.client.brokers import list_reassignments, reassign
    from kafscale.wire.error_codes import NO_REASSIGNMENT_IN_PROGRESS

    moving = await list_reassignments(client)
    wanted: dict[At, None] = {each.at: None for each in places if each.at not in moving}
    refused = await reassign(client, wanted)
    for error in refused.values():
        if error.code != NO_REASSIGNMENT_IN_PROGRESS:  # that one was not moved by hand
            raise error
    say(f"{len(wanted) - len(refused)} partitions had been moved by hand, and may move again")


async def _show_balance(client: Client, places: Collection[Place], topics: Collection[str], as_json: bool) -> None:
    from kafscale.client.brokers import find_balance, list_places

    balance = await find_balance(client, topics or None)
    if balance is None:
        raise click.ClickException(
            "no broker tells what would move: none decides for all just now, so try again in some seconds; or it is of "
            "an earlier version, so upgrade it (`kafscale brokers list` shows the controller, and all versions)"
        )
    leaders = {each.at: each.broker_id for each in (await list_places(client) if topics else places)}
    moves = [
        MoveRow(
            topic=at[0],
            partition=at[1],
            leader=leaders.get(at),
            moves_to=target,
            bytes_per_second=balance.busiest.get(at),
        )
        for at, target in balance.moves.items()
    ]
    brokers = [_balance_row(each) for each in balance.brokers.values()]
    if as_json:
        show_json({"moves": list(map(attrs.asdict, moves)), "brokers": list(map(attrs.asdict, brokers))})
        return
    if balance.is_waiting:
        say("brokers are measuring what they have to do: nothing moves before they have, which takes half a minute")
    show(MoveRow, moves)
    click.echo()
    show(BalanceRow, brokers)


def _balance_row(told: BalancedBroker) -> BalanceRow:
    from kafscale.client.brokers import known

    return BalanceRow(
        broker=told.broker_id,
        leads=told.partition_count,
        bytes_per_second=known(told.bytes_per_second),
        then_leads=told.planned_partition_count,
        then_bytes_per_second=known(told.planned_bytes_per_second),
    )


async def _wait_for_balance(client: Client, timeout_seconds: float) -> None:
    """Wait until brokers lead alike, or as much so as what was moved by hand allows."""
    balance = _Balance(client)
    await wait_until_none_is_left(
        balance.look,
        timeout_seconds,
        otherwise=lambda left_count: f"{left_count} partitions move still; they go on to",
    )
    led = ", ".join(f"broker {each} leads {count}" for each, count in sorted(balance.led.items()))
    say(f"no partition moves any more: {led}")


@attrs.define
class _Balance:
    """How many partitions move, or are to; `led` is what each broker that may lead partitions leads.

    Where nobody tells what is to move, it is over when all lead as many, or when nothing has moved for a while.
    """

    client: Client
    led: Counter[int] = attrs.field(factory=Counter)
    _calm_since: float | None = None

    async def look(self) -> int:
        from kafscale.client.brokers import DRAINING, broker_configs, find_balance, list_brokers

        live = [each.broker_id for each in await list_brokers(self.client) if not each.is_fenced]
        configs = await broker_configs(self.client, live)
        self.led = Counter({each: 0 for each in live if configs.get(each, {}).get(DRAINING) != "true"})
        balance = await find_balance(self.client)
        if balance is None:
            return await self._look_at_numbers()
        self.led.update({each: balance.brokers[each].partition_count for each in self.led if each in balance.brokers})
        return balance.moving_count + len(balance.moves) + balance.is_waiting

    async def _look_at_numbers(self) -> int:
        import trio

        from kafscale.client.brokers import list_places, list_reassignments

        self.led.update(each.leader for each in await list_places(self.client) if each.leader in self.led)
        moving_count = len(await list_reassignments(self.client))
        if moving_count:
            self._calm_since = None
            return moving_count
        uneven_count = max(self.led.values(), default=0) - min(self.led.values(), default=0)
        if self._calm_since is None:
            self._calm_since = trio.current_time()
        is_over = uneven_count < 2 or trio.current_time() - self._calm_since > CALM_SECONDS
        return 0 if is_over else uneven_count
