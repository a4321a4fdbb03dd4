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
    Number,
    bootstrap_option,
    json_option,
    run_with_client,
    take,
)
from kafscale.cli.output import say, show, show_json
from kafscale.errors import KafkaError, NotFound

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.client.groups import GroupMember, TopicPartition


@attrs.frozen(kw_only=True)
class GroupRow:
    group: str
    type: str
    state: str
    protocol: str


@attrs.frozen(kw_only=True)
class OffsetRow:
    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    client: str | None
    host: str | None


@attrs.frozen(kw_only=True)
class MemberRow:
    member: str
    client: str
    host: str
    partitions: int


@attrs.frozen(kw_only=True)
class ResetRow:
    topic: str
    partition: int
    before: int | None
    after: int


@attrs.frozen(kw_only=True)
class Selection:
    """What to reset: all partitions of all topics that have offsets, unless topics or partitions are given."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Target:
    """Where to reset to: one of these is given."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None

    @property
    def is_one(self) -> bool:
        given = [self.earliest, self.latest, *(each is not None for each in (self.offset, self.time_ms, self.shift))]
        return given.count(True) == 1


@click.group("groups")
def command() -> None:
    """List, describe and delete consumer groups, and move their offsets."""


@command.command("list")
@bootstrap_option
@json_option
def list_command(bootstrap: Bootstrap, as_json: bool) -> None:
    """List all consumer groups."""

    async def use(client: Client) -> None:
        from kafscale.client.groups import CLASSIC, list_groups

        rows = [
            GroupRow(
                group=each.group_id,
                type=each.group_type or CLASSIC,  # a broker that does not tell has only these
                state=each.group_state,
                protocol=each.protocol_type,
            )
            for each in await list_groups(client)
        ]
        show(GroupRow, rows, as_json=as_json)

    run_with_client(bootstrap, use)


@command.command("describe")
@click.argument("group")
@bootstrap_option
@json_option
def describe_command(group: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show the members of GROUP, its committed offsets, and how far they are behind."""

    async def use(client: Client) -> None:
        from kafscale.client.groups import describe_group

        described = await describe_group(client, group)
        offsets = await _offset_rows(client, group, described.owners)
        members = [
            MemberRow(
                member=each.member_id,
                client=each.client_id,
                host=each.client_host,
                partitions=len(each.partitions),
            )
            for each in described.members
        ]
        if as_json:
            found = {"members": [*map(attrs.asdict, members)], "offsets": [*map(attrs.asdict, offsets)]}
            show_json({"group": group, "type": described.type, "state": described.state, **found})
            return
        say(f"group {group} ({described.type}) is {described.state}; members: {len(members)}")
        for row_class, rows in ((MemberRow, members), (OffsetRow, offsets)):
            if rows:
                click.echo()
                show(row_class, rows)

    run_with_client(bootstrap, use)


@command.command("delete")
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True)
@bootstrap_option
def delete_command(groups: tuple[str, ...], bootstrap: Bootstrap) -> None:
    """Delete each GROUP, which must have no members, with its offsets."""

    async def use(client: Client) -> None:
        from kafscale.client.groups import delete_group

        for group in groups:
            await delete_group(client, group)

    run_with_client(bootstrap, use)


@command.command("reset-offsets")
@click.argument("group")
@click.option("--topic", "topics", cls=ListOption, help="Topic to reset; repeatable. All with offsets without it.")
@click.option("--partition", "partitions", type=INDEX, cls=ListOption, help="Only these partitions; repeatable.")
@click.option("--to-earliest", "earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", "latest", is_flag=True, help="To the end.")
@click.option("--to-offset", "offset", type=OFFSET, help="To an offset.")
@click.option("--to-time", "time_ms", type=TIME, help="To the first record not older; 15m means that long ago.")
@click.option("--shift", type=Number(-INT64_MAX, INT64_MAX), help="Forward, or backward if negative, by this many.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@bootstrap_option
@json_option
def reset_command(
    group: str,
    bootstrap: Bootstrap,
    *,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Move the committed offsets of GROUP, which must have no members.

    An offset outside of a partition's log becomes the nearer end of it.
    """
    selection, target = take(options, Selection), take(options, Target)
    if not target.is_one:
        raise click.UsageError(
            "where to is not clear; allowed: one of --to-earliest, --to-latest, --to-offset, --to-time, --shift"
        )

    async def use(client: Client) -> None:
        from kafscale.client.groups import TopicPartition, commit_offsets, committed_offsets

        before = await committed_offsets(client, group)
        if not (before or selection.topics):
            raise NotFound(f"group '{group}' has no offsets to move; allowed: --topic, for those that it is to have")
        wanted = await _wanted(client, selection.topics or {each.topic for each in before}, selection.partitions)
        if target.shift is not None:
            wanted = [each for each in wanted if each in before]
        after = await _targets(client, wanted, before, target)
        rows = [
            ResetRow(topic=each.topic, partition=each.partition, before=before.get(each), after=after[each])
            for each in wanted
        ]
        if not dry_run and after:
            await commit_offsets(client, group, {TopicPartition(r.topic, r.partition): r.after for r in rows})
        show(ResetRow, rows, as_json=as_json)

    run_with_client(bootstrap, use)


async def _offset_rows(client: Client, group: str, owners: Mapping[TopicPartition, GroupMember]) -> list[OffsetRow]:
    from kafscale.client.groups import committed_offsets
    from kafscale.wire.client_rules import lag

    committed = await committed_offsets(client, group)
    partitions = sorted({*committed, *owners})
    starts, ends = await _bounds(client, partitions)
    rows = []
    for each in partitions:
        owner, offset, end = owners.get(each), committed.get(each), ends.get(each)
        rows.append(
            OffsetRow(
                topic=each.topic,
                partition=each.partition,
                committed=offset,
                end=end,
                lag=None
                if offset is None or end is None
                else lag(offset, log_start_offset=starts[each], end_offset=end),
                member=owner.member_id if owner else None,
                client=owner.client_id if owner else None,
                host=owner.client_host if owner else None,
            )
        )
    return rows


async def _bounds(
    client: Client, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where logs begin and where they end; topics that were deleted since a commit are left out."""
    from kafscale.client.consumer import EARLIEST, LATEST
    from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION

    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for each in partitions:
        try:
            starts |= await _offsets_at(client, [each], EARLIEST)
            ends |= await _offsets_at(client, [each], LATEST)
        except KafkaError as exc:
            if exc.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return starts, ends


async def _wanted(client: Client, topics: Iterable[str], partitions: tuple[int, ...]) -> list[TopicPartition]:
    """Raises NotFound for a partition that none of the topics has."""
    from kafscale.client.groups import TopicPartition

    found = [await client.topic(name) for name in sorted(topics)]
    missing = set(partitions).difference(*(topic.leaders for topic in found))
    if missing:
        raise NotFound(f"--partition: no topic that is to be reset has a partition {min(missing)}")
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
    moved = {each: before[each] + target.shift if target.shift is not None else target.offset or 0 for each in wanted}
    return {each: min(max(offset, earliest[each]), latest[each]) for each, offset in moved.items()}


async def _offsets_at(client: Client, wanted: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    from kafscale.client.consumer import list_offsets
    from kafscale.client.groups import TopicPartition

    by_topic: dict[str, dict[int, int]] = {}
    for each in wanted:
        by_topic.setdefault(each.topic, {})[each.partition] = timestamp
    return {
        TopicPartition(topic, partition): offset
        for topic, timestamps in by_topic.items()
        for partition, offset in (await list_offsets(client, topic, timestamps)).items()
    }
