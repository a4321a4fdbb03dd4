"""`kafscale groups list|describe|delete|reset-offsets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

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
from kafscale.errors import KafkaError, NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.groups import GroupMember, TopicPartition


OFFSET_COLUMNS = ("topic", "partition", "committed", "end", "lag", "member", "client", "host")


@attrs.frozen(kw_only=True)
class Target:
    """The new position of offsets: one field is given."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None


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
@click.argument("group")
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
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True)
@with_client
async def delete_command(client: Client, groups: tuple[str, ...]) -> None:
    """Delete each GROUP with its offsets. It must have no members."""
    from kafscale.client.groups import delete_group

    for group in groups:
        await delete_group(client, group)


@command.command("reset-offsets")
@click.argument("group")
@click.option("--topic", "topics", cls=ListOption, help="Topic to reset; repeatable.  [default: all with offsets]")
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

    before = await committed_offsets(client, group)
    if not (before or topics):
        raise NotFound(f"group '{group}' has no committed offsets; give --topic for the topics to set")
    wanted = await _wanted(client, topics or {place.topic for place in before}, partitions)
    if target.shift is not None:
        wanted = [place for place in wanted if place in before]
    after = await _targets(client, wanted, before, target)
    if not dry_run and after:
        await commit_offsets(client, group, {place: after[place] for place in wanted})
    return [(place.topic, place.partition, before.get(place), after[place]) for place in wanted]


async def _offset_rows(
    client: Client, group: str, owners: Mapping[TopicPartition, GroupMember]
) -> list[tuple[Any, ...]]:
    from kafscale.client.groups import committed_offsets
    from kafscale.wire.client_rules import lag

    committed = await committed_offsets(client, group)
    partitions = sorted({*committed, *owners})
    starts, ends = await _bounds(client, partitions)
    rows = []
    for place in partitions:
        owner, offset, end = owners.get(place), committed.get(place), ends.get(place)
        behind = None
        if offset is not None and end is not None:
            behind = lag(offset, log_start_offset=starts[place], end_offset=end)
        member = (owner.member_id, owner.client_id, owner.client_host) if owner else (None, None, None)
        rows.append((place.topic, place.partition, offset, end, behind, *member))
    return rows


async def _bounds(
    client: Client, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    from kafscale.client.consumer import EARLIEST, LATEST
    from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION

    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for place in partitions:
        try:
            starts |= await _offsets_at(client, [place], EARLIEST)
            ends |= await _offsets_at(client, [place], LATEST)
        except KafkaError as exc:
            if exc.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return starts, ends


async def _wanted(client: Client, topics: Iterable[str], partitions: tuple[int, ...]) -> list[TopicPartition]:
    """Return all partitions of topics, or those given. Raises NotFound for a partition that no topic has."""
    from kafscale.client.groups import TopicPartition

    found = [await client.topic(name) for name in sorted(topics)]
    missing = set(partitions).difference(*(topic.leaders for topic in found))
    if missing:
        raise NotFound(f"--partition: none of the topics has a partition {min(missing)}")
    return [
        TopicPartition(topic.name, partition)
        for topic in found
        for partition in sorted(topic.leaders)
        if not partitions or partition in partitions
    ]


async def _targets(
    client: Client, wanted: list[TopicPartition], before: dict[TopicPartition, int], target: Target
) -> dict[TopicPartition, int]:
    from kafscale.client.consumer import EARLIEST, LATEST

    earliest = await _offsets_at(client, wanted, EARLIEST)
    latest = await _offsets_at(client, wanted, LATEST)
    if target.earliest:
        return earliest
    if target.latest:
        return latest
    if target.time_ms is not None:
        return await _offsets_at(client, wanted, target.time_ms)
    if target.shift is not None:
        moved = {place: before[place] + target.shift for place in wanted}
    else:
        moved = dict.fromkeys(wanted, target.offset or 0)
    return {place: min(max(offset, earliest[place]), latest[place]) for place, offset in moved.items()}


async def _offsets_at(client: Client, wanted: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    from kafscale.client.consumer import list_offsets
    from kafscale.client.groups import TopicPartition

    by_topic: dict[str, dict[int, int]] = {}
    for place in wanted:
        by_topic.setdefault(place.topic, {})[place.partition] = timestamp
    return {
        TopicPartition(topic, partition): offset
        for topic, timestamps in by_topic.items()
        for partition, offset in (await list_offsets(client, topic, timestamps)).items()
    }
