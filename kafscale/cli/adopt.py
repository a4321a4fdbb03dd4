"""`kafscale adopt`: register topics that the bucket holds and the metadata does not know."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.connecting import SETTING, json_option
from kafscale.cli.offline import led_metadata
from kafscale.cli.output import show
from kafscale.cli.previewing import copied_metadata
from kafscale.cli.progress import counting
from kafscale.cli.serve import settings_flags
from kafscale.config import Settings, load
from kafscale.errors import NotFound, StartupError

if TYPE_CHECKING:
    from kafscale.cluster.start.adoption import Adoption

STORE_OPTIONS = (
    "data_dir",
    "store",
    "namespace",
    "s3_endpoint",
    "s3_region",
    "s3_path_style",
    "s3_ca_file",
    "s3_concurrency",
)
WRITING_OPTIONS = (*STORE_OPTIONS, "s3_sse", "broker_id")  # of commands that take the place of a stopped broker


@attrs.frozen(kw_only=True)
class AdoptedRow:
    """A topic that was found, and what became of it."""

    topic: str
    id: str
    versions: list[int]
    partitions: int
    segments: int
    bytes: int
    outcome: str


@click.command("adopt")
@click.argument("chosen", metavar="[TOPIC-OR-ID]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@click.option(
    "--topic-config",
    "configs",
    type=SETTING,
    multiple=True,
    help="A config of the adopted topics; repeatable.  [default: retention.ms=-1, so that nothing is deleted]",
)
@json_option
@settings_flags(only=WRITING_OPTIONS)
def command(
    chosen: tuple[str, ...],
    dry_run: bool,
    configs: tuple[tuple[str, str], ...],
    as_json: bool,
    config_file: str | None,
    **flags: Any,
) -> None:
    """Register topics that the bucket holds and the metadata does not know.

    For a bucket that KafScale's Go broker has written (version 1), and for one whose metadata was lost. The data stays
    where it is; what is appended goes behind it. The broker of this --data-dir must be stopped.
    """
    import trio

    settings = load(flags, os.environ, config_file).settings
    adoptions = trio.run(_adopt, settings, chosen, dict(configs), dry_run)
    show(AdoptedRow, [_row(each, dry_run=dry_run) for each in adoptions], as_json=as_json)
    refused = [each for each in adoptions if each.refusal is not None]
    if chosen and refused:
        raise StartupError(f"{refused[0].topic.name} can't be adopted: {refused[0].refusal}")


def _row(adoption: Adoption, *, dry_run: bool) -> AdoptedRow:
    from kafscale.store.paths import topic_id_text

    topic = adoption.topic
    partitions = topic.partitions.values()
    outcome = "would be adopted" if dry_run else "adopted"
    return AdoptedRow(
        topic=topic.name,
        id=topic_id_text(topic.topic_id),
        versions=list(topic.versions),
        partitions=topic.partition_count,
        segments=sum(partition.segment_count for partition in partitions),
        bytes=sum(partition.size_bytes for partition in partitions),
        outcome=outcome if adoption.refusal is None else f"refused: {adoption.refusal}",
    )


async def _adopt(
    settings: Settings, chosen: Sequence[str], configs: dict[str, str], dry_run: bool
) -> Sequence[Adoption]:
    from kafscale.cluster.metadata.base import MetadataStore
    from kafscale.cluster.start.adoption import adopt, find_unknown_topics
    from kafscale.cluster.start.recovery import preview
    from kafscale.cluster.topics.topics import TopicPolicy, TopicRegistry
    from kafscale.log.wal.data_directory import keep_files_private, lock_data_directory
    from kafscale.store.opening.opening import store_of_command
    from kafscale.store.paths import topic_id_text

    keep_files_private()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_of_command(settings))
        if settings.data_dir.is_dir() or not dry_run:
            stack.enter_context(lock_data_directory(settings.data_dir))
        metadata: MetadataStore
        if dry_run:
            metadata = await stack.enter_async_context(copied_metadata(settings, with_data_dir=True))
            await preview(store, settings.namespace, metadata)
        else:
            metadata = await stack.enter_async_context(led_metadata(settings, store))
        topics = TopicRegistry(store=metadata, policy=TopicPolicy.of(settings))
        await topics.load()
        known = {topic.topic_id for topic in topics.all()}
        with counting("objects listed:") as report:
            found = await find_unknown_topics(store, settings.namespace, known, report)
        if chosen:
            names = {name: topic for topic in found for name in (topic.name, topic_id_text(topic.topic_id))}
            if unknown := [name for name in chosen if name not in names]:
                raise NotFound(f"{unknown[0]}: no topic of this name or id that is to be adopted in {settings.store}")
            found = [topic for topic in found if {topic.name, topic_id_text(topic.topic_id)} & {*chosen}]
        return await adopt(topics, found, configs, broker_id=settings.broker_id, dry_run=dry_run)
