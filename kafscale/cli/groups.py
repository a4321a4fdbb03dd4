"""`kafscale groups list|describe|delete|reset-offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from kafscale.cli.completion import GROUP, TOPIC
from kafscale.cli.options import (
    INDEX,
    INT64_MAX,
    OFFSET,
    TIME,
    Bootstrap,
    ListOption,
    bootstrap_option,
    given_count,
    json_option,
    number,
    run_with_client,
    take,
    with_client,
)
from kafscale.cli.output import show, show_described
from kafscale.errors import NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.groups import GroupMember, TopicPartition
    from kafscale.client.resetting import Target


OFFSET_COLUMNS = ("topic", "partition", "committed", "end", "lag", "member", "client", "host")


@click.group("groups")
def command() -> None:
    """List, describe, reset and delete groups."""


@command.command("list")
@json_option
@with_client
async def list_command(client: Client, as_json: bool) -> None:
    """List all consumer groups."""
    from kafscale.client.groups import CLASSIC, list_groups

    rows = [  # older brokers know only classic groups, and name no type
        (group.group_id, group.group_type or CLASSIC, group.group_state, group.protocol_type)
        for group in await list_groups(client)
    ]
    show(("group", "type", "state", "protocol"), rows, as_json=as_json)


@command.command("describe")
@click.argument("group", type=GROUP)
@json_option
@with_client
async def describe_command(client: Client, group: str, as_json: bool) -> None:
    """Show the members of GROUP, its committed offsets and their lag."""
    from kafscale.client.groups import describe_group

    described = await describe_group(client, group)
    offsets = await _offset_rows(client, group, described.owners)
    members = [
        (member.member_id, member.client_id, member.client_host, len(member.partitions)) for member in described.members
    ]
    show_described(
        {"group": group, "type": described.type, "state": described.state},
        {"members": (("member", "client", "host", "partitions"), members), "offsets": (OFFSET_COLUMNS, offsets)},
        as_json=as_json,
        heading=f"group {group} ({described.type}) is {described.state}; members: {len(members)}",
    )


@command.command("delete")
@click.argument("groups", type=GROUP, metavar="GROUP...", nargs=-1, required=True)
@with_client
async def delete_command(client: Client, groups: tuple[str, ...]) -> None:
    """Delete each GROUP with its offsets. It must have no members."""
    from kafscale.client.groups import delete_group

    for group in groups:
        await delete_group(client, group)


@command.command("reset-offsets")
@click.argument("group", type=GROUP)
@click.option(
    "--topic", "topics", type=TOPIC, cls=ListOption, help="Topic to reset; repeatable.  [default: all with offsets]"
)
@click.option("--partition", "partitions", type=INDEX, cls=ListOption, help="Only these partitions; repeatable.")
@click.option("--to-earliest", "earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", "latest", is_flag=True, help="To the end.")
@click.option("--to-offset", "offset", type=OFFSET, help="To an offset.")
@click.option("--to-time", "time_ms", type=TIME, help="To the first record at or after a time; 15m is that long ago.")
@click.option("--shift", type=number(-INT64_MAX, INT64_MAX), help="By this many records, backward if negative.")
@click.option("--dry-run", is_flag=True, help="Show the new offsets, and change nothing.")
@json_option
@bootstrap_option
def reset_command(bootstrap: Bootstrap, *, as_json: bool, **given: Any) -> None:
    """Move the committed offsets of GROUP, which must have no members.

    An offset outside a partition's log becomes the nearer end of the log.
    """
    from kafscale.client.resetting import Target

    target = take(given, Target)
    if given_count(target) != 1:
        raise click.UsageError(
            "no single target; give one of --to-earliest, --to-latest, --to-offset, --to-time, --shift"
        )

    async def use(client: Client) -> None:
        columns = ("topic", "partition", "before", "after")
        show(columns, await _reset(client, target, **given), as_json=as_json)

    run_with_client(bootstrap, use)


async def _reset(
    client: Client, target: Target, *, group: str, topics: tuple[str, ...], partitions: tuple[int, ...], dry_run: bool
) -> list[tuple[Any, ...]]:
    from kafscale.client.groups import commit_offsets, committed_offsets
    from kafscale.client.resetting import all_partitions, target_offsets

    before = await committed_offsets(client, group)
    if not (before or topics):
        raise NotFound(f"group '{group}' has no committed offsets; give --topic for the topics to set")
    wanted = await all_partitions(client, topics or {place.topic for place in before}, partitions)
    if target.shift is not None:
        wanted = [place for place in wanted if place in before]
    after = await target_offsets(client, wanted, before, target)
    if not dry_run and after:
        await commit_offsets(client, group, {place: after[place] for place in wanted})
    return [(place.topic, place.partition, before.get(place), after[place]) for place in wanted]


async def _offset_rows(
    client: Client, group: str, owners: Mapping[TopicPartition, GroupMember]
) -> list[tuple[Any, ...]]:
    from kafscale.client.groups import committed_offsets
    from kafscale.client.lag import lags_of

    committed = await committed_offsets(client, group)
    rows = []
    for place, position in (await lags_of(client, {group: committed}, owners))[group].positions.items():
        owner = owners.get(place)
        member = (owner.member_id, owner.client_id, owner.client_host) if owner else (None, None, None)
        rows.append((place.topic, place.partition, position.committed, position.end, position.lag, *member))
    return rows
