"""`kafscale adopt`: register topics of the bucket or the local log that the metadata doesn't have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.offline import copied_metadata, led_metadata, loaded_topics
from kafscale.cli.options import SETTING, WRITING_OPTIONS, json_option, with_settings
from kafscale.cli.output import counting, show
from kafscale.config import Loaded, Settings
from kafscale.errors import NotFound, StartupError

if TYPE_CHECKING:
    from kafscale.cluster.membership.start.adoption import Adoption, UnknownTopic


COLUMNS = ("topic", "id", "versions", "partitions", "segments", "bytes", "wal_batches", "outcome")


@click.command("adopt")
@click.argument("chosen", metavar="[TOPIC-OR-ID]...", nargs=-1)
@click.option("--as", "new_name", metavar="NAME", help="Name for the one chosen topic, if its own is taken or unknown.")
@click.option("--dry-run", is_flag=True, help="Show the outcome, and change nothing.")
@click.option(
    "--topic-config",
    "configs",
    type=SETTING,
    multiple=True,
    help="A config of the adopted topics; repeatable.  [default: retention.ms=-1, which deletes nothing]",
)
@json_option
@with_settings(only=WRITING_OPTIONS)
def command(
    chosen: tuple[str, ...],
    new_name: str | None,
    dry_run: bool,
    configs: tuple[tuple[str, str], ...],
    as_json: bool,
    loaded: Loaded,
) -> None:
    """Register topics that the metadata lacks.

    They are in the bucket, or in the write-ahead log of --data-dir. This is for a bucket of KafScale's Go broker
    (version 1), and for lost metadata. Segments stay where they are. Record batches that a start has set aside because
    their topic was unknown go back into the write-ahead log, before new records. The broker of --data-dir must be
    stopped.
    """
    import trio

    if new_name is not None and len(chosen) != 1:
        raise click.UsageError("--as is for one topic; name it, or give its id")
    plan = _AdoptionPlan(chosen=chosen, new_name=new_name, configs=dict(configs), dry_run=dry_run)
    adoptions = trio.run(_adopt, loaded.settings, plan)
    show(COLUMNS, [_row(adoption, dry_run=dry_run) for adoption in adoptions], as_json=as_json)
    refused = [adoption for adoption in adoptions if adoption.refusal is not None]
    if chosen and refused:
        raise StartupError(f"{refused[0].topic.name} can't be adopted: {refused[0].refusal}")


@attrs.frozen(kw_only=True)
class _AdoptionPlan:
    chosen: Sequence[str]
    new_name: str | None
    configs: Mapping[str, str]
    dry_run: bool

    def choose(self, found: Sequence[UnknownTopic], store: str) -> Sequence[UnknownTopic]:
        from kafscale.store.paths import topic_id_text

        if not self.chosen:
            return found
        names = {name for topic in found for name in (topic.name, topic_id_text(topic.topic_id))}
        if unknown := [name for name in self.chosen if name not in names]:
            raise NotFound(f"{unknown[0]}: {store} has no topic of this name or id to adopt")
        found = [topic for topic in found if {topic.name, topic_id_text(topic.topic_id)} & {*self.chosen}]
        if self.new_name is None:
            return found
        if found[1:]:
            raise StartupError(f"{self.chosen[0]}: several topics have this name; give an id")
        if found[0].segment_count:
            raise StartupError(f"{found[0].name}: --as can't rename a topic with objects in the bucket")
        return [attrs.evolve(found[0], name=self.new_name)]


def _row(adoption: Adoption, *, dry_run: bool) -> tuple[Any, ...]:
    from kafscale.store.paths import topic_id_text

    topic = adoption.topic
    partitions = topic.partitions.values()
    outcome = "would be adopted" if dry_run else "adopted"
    return (
        topic.name,
        topic_id_text(topic.topic_id),
        list(topic.versions),
        topic.partition_count,
        topic.segment_count,
        sum(partition.size_bytes for partition in partitions),
        sum(partition.batch_count for partition in partitions),
        outcome if adoption.refusal is None else f"refused: {adoption.refusal}",
    )


async def _adopt(settings: Settings, plan: _AdoptionPlan) -> Sequence[Adoption]:
    """Adopt the chosen topics. The lead is claimed only if there are any, since a live broker would lose it."""
    from kafscale.cluster.membership.start.adoption import UnknownBatches, adopt, find_unknown_topics, give_nothing_back
    from kafscale.cluster.membership.start.recovery import MetadataExtents, preview
    from kafscale.log.wal.data_directory import keep_files_private, lock_data_directory
    from kafscale.log.wal.disk import RealDisk
    from kafscale.store.opening.opening import store_of_command

    keep_files_private()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_of_command(settings))
        if settings.data_dir.is_dir() or not plan.dry_run:
            stack.enter_context(lock_data_directory(settings.data_dir))
        batches: UnknownBatches | None = None
        async with copied_metadata(settings, with_data_dir=True) as copy:
            await preview(store, settings.namespace, copy)
            topics = await loaded_topics(copy, settings)
            with counting("objects listed:") as report:
                found = await find_unknown_topics(store, settings.namespace, topics.has, report)
            if (settings.data_dir / "wal").is_dir():
                disk = stack.enter_context(closing(RealDisk(settings.data_dir / "wal")))
                batches = UnknownBatches(disk, topics.knows)
                found = await batches.find(found)
            found = plan.choose(found, str(settings.store))
            planned = await adopt(topics, found, plan.configs, broker_id=settings.broker_id, give_back=None)
        if plan.dry_run or all(adoption.refusal is not None for adoption in planned):
            return planned
        metadata = await stack.enter_async_context(led_metadata(settings, store))
        topics = await loaded_topics(metadata, settings)
        give_back = give_nothing_back
        if batches is not None:
            batches.extents = MetadataExtents(metadata)
            give_back = partial(batches.give_back, segment_bytes=settings.wal_segment_bytes)
        found = [topic for topic in found if not all(topics.has(topic.topic_id, index) for index in topic.partitions)]
        return await adopt(topics, found, plan.configs, broker_id=settings.broker_id, give_back=give_back)
