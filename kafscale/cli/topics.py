"""`kafscale topics list|create|describe|delete|alter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kafscale.cli.completion import TOPIC
from kafscale.cli.options import (
    COUNT,
    INT16_MAX,
    SETTING,
    Bootstrap,
    ListOption,
    bootstrap_option,
    json_option,
    number,
    run_with_client,
    with_client,
)
from kafscale.cli.output import show, show_described
from kafscale.errors import KafkaError

if TYPE_CHECKING:
    from kafscale.client import Client

_TOPIC_SOURCE = 1  # in DescribeConfigs, a config that is set on the topic itself


PARTITION_COLUMNS = ("partition", "leader", "replicas", "in_sync", "start_offset", "end_offset")


@click.group("topics")
def command() -> None:
    """List, create, describe, change and delete topics."""


@command.command("list")
@json_option
@with_client
async def list_command(client: Client, as_json: bool) -> None:
    """List all topics."""
    from kafscale.client.admin import list_topics
    from kafscale.store.paths import topic_id_text

    rows = []
    for topic in await list_topics(client):
        factor = max((len(partition.replica_nodes) for partition in topic.partitions), default=0)
        rows.append((topic.name or "", len(topic.partitions), factor, topic_id_text(topic.topic_id)))
    show(("topic", "partitions", "replication_factor", "id"), rows, as_json=as_json)


@command.command("create")
@click.argument("topic")
@click.option("--partitions", type=COUNT, help="Number of partitions.  [default: the broker's]")
@click.option("--replication-factor", type=number(1, INT16_MAX), help="Number of replicas.  [default: the broker's]")
@click.option("--config", "configs", type=SETTING, multiple=True, help="A topic config; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@with_client
async def create_command(
    client: Client,
    topic: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
) -> None:
    """Create TOPIC."""
    from kafscale.client.admin import BROKER_DEFAULT, TopicToCreate, create_topic
    from kafscale.wire.error_codes import TOPIC_ALREADY_EXISTS

    new = TopicToCreate(
        name=topic,
        partition_count=partitions or BROKER_DEFAULT,
        replication_factor=replication_factor or BROKER_DEFAULT,
        configs=dict(configs),
    )
    try:
        await create_topic(client, new)
    except KafkaError as exc:
        if not (if_not_exists and exc.code == TOPIC_ALREADY_EXISTS):
            raise


@command.command("describe")
@click.argument("topic", type=TOPIC)
@click.option("--all-configs", is_flag=True, help="Include configs that have their defaults.")
@json_option
@with_client
async def describe_command(client: Client, topic: str, *, all_configs: bool, as_json: bool) -> None:
    """Show the partitions of TOPIC with their first and next offset, and its configs."""
    from kafscale.client.admin import topic_configs

    partitions = await _partition_rows(client, topic)
    configs = [
        (config.name, config.value, config.config_source == _TOPIC_SOURCE)
        for config in await topic_configs(client, topic)
        if all_configs or config.config_source == _TOPIC_SOURCE
    ]
    show_described(
        {"topic": topic},
        {"partitions": (PARTITION_COLUMNS, partitions), "configs": (("config", "value", "set_on_topic"), configs)},
        as_json=as_json,
    )


async def _partition_rows(client: Client, topic: str) -> list[tuple[Any, ...]]:
    from kafscale.client.admin import describe_topics
    from kafscale.client.consumer import EARLIEST, LATEST, list_offsets

    (described,) = await describe_topics(client, [topic])
    partitions = sorted(described.partitions, key=lambda partition: partition.partition_index)
    indexes = [partition.partition_index for partition in partitions]
    earliest = await list_offsets(client, topic, dict.fromkeys(indexes, EARLIEST))
    latest = await list_offsets(client, topic, dict.fromkeys(indexes, LATEST))
    return [
        (index, partition.leader_id, partition.replica_nodes, partition.isr_nodes, earliest[index], latest[index])
        for index, partition in zip(indexes, partitions, strict=True)
    ]


@command.command("delete")
@click.argument("topics", type=TOPIC, metavar="TOPIC...", nargs=-1, required=True)
@with_client
async def delete_command(client: Client, topics: tuple[str, ...]) -> None:
    """Delete each TOPIC with all of its records."""
    from kafscale.client.admin import delete_topic

    for topic in topics:
        await delete_topic(client, topic)


@command.command("alter")
@click.argument("topic", type=TOPIC)
@click.option("--partitions", type=COUNT, help="New number of partitions, at least the current one.")
@click.option("--config", "configs", type=SETTING, multiple=True, help="A topic config; repeatable.")
@click.option("--delete-config", "deleted", metavar="NAME", cls=ListOption, help="Reset a config to its default.")
@bootstrap_option
def alter_command(
    topic: str,
    bootstrap: Bootstrap,
    *,
    partitions: int | None,
    configs: tuple[tuple[str, str], ...],
    deleted: tuple[str, ...],
) -> None:
    """Change the configs of TOPIC or add partitions."""
    changes: dict[str, str | None] = {**dict(configs), **dict.fromkeys(deleted)}
    if not (partitions or changes):
        raise click.UsageError("nothing to change; give --partitions, --config or --delete-config")

    async def use(client: Client) -> None:
        from kafscale.client.admin import add_partitions, alter_topic_configs

        if changes:
            await alter_topic_configs(client, topic, changes)
        if partitions:
            await add_partitions(client, topic, partitions)

    run_with_client(bootstrap, use)
