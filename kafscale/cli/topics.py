"""`kafscale topics list|create|describe|delete|alter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import (
    COUNT,
    INT16_MAX,
    SETTING,
    Bootstrap,
    ListOption,
    Number,
    bootstrap_option,
    json_option,
    run_with_client,
    take,
)
from kafscale.cli.output import show, show_json
from kafscale.errors import KafkaError

if TYPE_CHECKING:
    from kafscale.client import Client

_TOPIC_SOURCE = 1  # a config that was set on the topic itself, in DescribeConfigs


@attrs.frozen(kw_only=True)
class TopicRow:
    topic: str
    partitions: int
    replication_factor: int
    id: str


@attrs.frozen(kw_only=True)
class PartitionRow:
    partition: int
    leader: int
    replicas: list[int]
    in_sync: list[int]
    start_offset: int
    end_offset: int


@attrs.frozen(kw_only=True)
class ConfigRow:
    config: str
    value: str | None
    set_on_topic: bool


@attrs.frozen(kw_only=True)
class Shape:
    """What a new topic is to be; the broker's default for what is None."""

    partitions: int | None
    replication_factor: int | None
    configs: tuple[tuple[str, str], ...]


@click.group("topics")
def command() -> None:
    """List, create, describe, change and delete topics."""


@command.command("list")
@bootstrap_option
@json_option
def list_command(bootstrap: Bootstrap, as_json: bool) -> None:
    """List all topics."""

    async def use(client: Client) -> None:
        from kafscale.client.admin import list_topics
        from kafscale.store.paths import topic_id_text

        rows = [
            TopicRow(
                topic=topic.name or "",
                partitions=len(topic.partitions),
                replication_factor=max((len(each.replica_nodes) for each in topic.partitions), default=0),
                id=topic_id_text(topic.topic_id),
            )
            for topic in await list_topics(client)
        ]
        show(TopicRow, rows, as_json=as_json)

    run_with_client(bootstrap, use)


@command.command("create")
@click.argument("topic")
@click.option("--partitions", type=COUNT, help="Number of partitions; the broker's default without it.")
@click.option("--replication-factor", type=Number(1, INT16_MAX), help="Replicas; the broker's default without it.")
@click.option("--config", "configs", type=SETTING, multiple=True, help="A topic setting; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@bootstrap_option
def create_command(
    topic: str,
    bootstrap: Bootstrap,
    *,
    if_not_exists: bool,
    **options: Any,
) -> None:
    """Create TOPIC."""
    shape = take(options, Shape)

    async def use(client: Client) -> None:
        from kafscale.client.admin import BROKER_DEFAULT, NewTopic, create_topic
        from kafscale.wire.error_codes import TOPIC_ALREADY_EXISTS

        new = NewTopic(
            name=topic,
            partition_count=shape.partitions or BROKER_DEFAULT,
            replication_factor=shape.replication_factor or BROKER_DEFAULT,
            configs=dict(shape.configs),
        )
        try:
            await create_topic(client, new)
        except KafkaError as exc:
            if not (if_not_exists and exc.code == TOPIC_ALREADY_EXISTS):
                raise

    run_with_client(bootstrap, use)


@command.command("describe")
@click.argument("topic")
@click.option("--all-configs", is_flag=True, help="Show settings that are at their defaults, too.")
@bootstrap_option
@json_option
def describe_command(topic: str, bootstrap: Bootstrap, *, all_configs: bool, as_json: bool) -> None:
    """Show the partitions of TOPIC, their first and next offset, and its settings."""

    async def use(client: Client) -> None:
        from kafscale.client.admin import topic_configs

        partitions = await _partition_rows(client, topic)
        configs = [
            ConfigRow(config=each.name, value=each.value, set_on_topic=each.config_source == _TOPIC_SOURCE)
            for each in await topic_configs(client, topic)
            if all_configs or each.config_source == _TOPIC_SOURCE
        ]
        if as_json:
            found = {"partitions": [*map(attrs.asdict, partitions)], "configs": [*map(attrs.asdict, configs)]}
            show_json({"topic": topic, **found})
            return
        show(PartitionRow, partitions)
        if configs:
            click.echo()
            show(ConfigRow, configs)

    run_with_client(bootstrap, use)


@command.command("delete")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@bootstrap_option
def delete_command(topics: tuple[str, ...], bootstrap: Bootstrap) -> None:
    """Delete each TOPIC and all of its data."""

    async def use(client: Client) -> None:
        from kafscale.client.admin import delete_topic

        for topic in topics:
            await delete_topic(client, topic)

    run_with_client(bootstrap, use)


@command.command("alter")
@click.argument("topic")
@click.option("--partitions", type=COUNT, help="New number of partitions; it can only grow.")
@click.option("--config", "configs", type=SETTING, multiple=True, help="A topic setting; repeatable.")
@click.option("--delete-config", "deleted", metavar="NAME", cls=ListOption, help="Put a setting back to its default.")
@bootstrap_option
def alter_command(
    topic: str,
    bootstrap: Bootstrap,
    *,
    partitions: int | None,
    configs: tuple[tuple[str, str], ...],
    deleted: tuple[str, ...],
) -> None:
    """Change the settings of TOPIC or add partitions."""
    changes: dict[str, str | None] = {**dict(configs), **dict.fromkeys(deleted)}
    if not (partitions or changes):
        raise click.UsageError("nothing to change; allowed: --partitions, --config, --delete-config")

    async def use(client: Client) -> None:
        from kafscale.client.admin import add_partitions, alter_topic_configs

        if changes:
            await alter_topic_configs(client, topic, changes)
        if partitions:
            await add_partitions(client, topic, partitions)

    run_with_client(bootstrap, use)


async def _partition_rows(client: Client, topic: str) -> list[PartitionRow]:
    from kafscale.client.admin import describe_topics
    from kafscale.client.consumer import EARLIEST, LATEST, list_offsets

    (described,) = await describe_topics(client, [topic])
    partitions = sorted(described.partitions, key=lambda each: each.partition_index)
    indexes = [each.partition_index for each in partitions]
    earliest = await list_offsets(client, topic, dict.fromkeys(indexes, EARLIEST))
    latest = await list_offsets(client, topic, dict.fromkeys(indexes, LATEST))
    return [
        PartitionRow(
            partition=each.partition_index,
            leader=each.leader_id,
            replicas=each.replica_nodes,
            in_sync=each.isr_nodes,
            start_offset=earliest[each.partition_index],
            end_offset=latest[each.partition_index],
        )
        for each in partitions
    ]
