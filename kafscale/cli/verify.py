"""`kafscale verify`: read a bucket, prove that it is whole, and rebuild what can be rebuilt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.adopt import STORE_OPTIONS
from kafscale.cli.connecting import json_option
from kafscale.cli.output import show, show_json
from kafscale.cli.progress import measuring
from kafscale.cli.serve import settings_flags
from kafscale.config import Settings, load
from kafscale.errors import DamagedObject, StartupError

if TYPE_CHECKING:
    from kafscale.log.verification import KnownTopic, Report


@attrs.frozen(kw_only=True)
class FindingRow:
    """What was found, one line each."""

    what: str
    kind: str
    where: str
    position: int | None
    message: str


@click.command("verify")
@click.option(
    "--repair", is_flag=True, help="Rebuild what can be rebuilt from what is good; batches are never changed."
)
@click.option(
    "--bucket-only",
    is_flag=True,
    help="Leave the data directory out: its metadata and its write-ahead log, for which its broker must be stopped.",
)
@json_option
@settings_flags(only=STORE_OPTIONS)
def command(repair: bool, bucket_only: bool, as_json: bool, config_file: str | None, **flags: Any) -> None:
    """Read every object of a bucket and prove that it is whole.

    With a --data-dir, given as flag, variable or in the file, its write-ahead log and metadata are held against the
    bucket as well. Exits with 1 if anything is damaged and was not repaired.
    """
    import trio

    loaded = load(flags, os.environ, config_file)
    with_data_dir = "data_dir" in loaded.sources and not bucket_only
    report = trio.run(_verify, loaded.settings, with_data_dir, repair)
    _show(report, as_json=as_json)
    if not report.is_whole:
        damaged = [finding for finding in report.findings if finding.damage and not finding.repaired]
        more = f" (and {len(damaged) - 1} more)" if damaged[1:] else ""
        raise DamagedObject(f"{damaged[0].name}: {damaged[0].message}{more}")


def _show(report: Report, *, as_json: bool) -> None:
    summary = attrs.asdict(report, filter=lambda field, _: field.name != "findings")
    if as_json:
        show_json({"whole": report.is_whole, **summary, "findings": [attrs.asdict(each) for each in report.findings]})
        return
    rows = [
        FindingRow(
            what="repaired" if each.repaired else "damage" if each.damage else "note",
            kind=each.kind,
            where=each.name,
            position=each.position,
            message=each.message + (" (--repair rebuilds it)" if each.can_repair and not each.repaired else ""),
        )
        for each in report.findings
    ]
    if rows:
        show(FindingRow, rows)
        click.echo()
    counts = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in summary.items())
    click.echo(f"{'whole' if report.is_whole else 'damaged'}; {counts}")


async def _verify(settings: Settings, with_data_dir: bool, repair: bool) -> Report:
    from kafscale.log.data_directory import lock_data_directory
    from kafscale.log.disk import RealDisk
    from kafscale.log.verification import Verifier
    from kafscale.store.opening import store_of_command

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_of_command(settings))
        topics: Mapping[bytes, KnownTopic] | None = None
        if with_data_dir:
            if not (settings.data_dir / "metadata.db").is_file():
                raise StartupError(f"--data-dir {settings.data_dir} is no broker's data directory")
            stack.enter_context(lock_data_directory(settings.data_dir))
            topics = await _known_topics(settings)
        verifier = Verifier(store=store, namespace=settings.namespace, topics=topics)
        total_bytes = await verifier.list_bucket()
        with measuring("verifying", total_bytes) as report_progress:
            await verifier.read_bucket(report_progress)
        if topics is not None and (settings.data_dir / "wal").is_dir():
            disk = RealDisk(settings.data_dir / "wal")
            stack.callback(disk.close)
            await verifier.read_wal(disk)
        if repair:
            await verifier.repair()
        return verifier.report


async def _known_topics(settings: Settings) -> Mapping[bytes, KnownTopic]:
    from kafscale.broker import check_same_store
    from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
    from kafscale.cluster.topics import TopicPolicy, TopicRegistry
    from kafscale.log.verification import KnownTopic

    async with SqliteMetadataStore.open(settings.data_dir / "metadata.db") as metadata:
        await check_same_store(metadata, settings)
        topics = TopicRegistry(store=metadata, policy=TopicPolicy.of(settings))
        await topics.load()
        return {
            topic.topic_id: KnownTopic(
                name=topic.name,
                partition_count=topic.partition_count,
                log_start_offsets=topics.log_start_offsets(topic.topic_id),
                compacted=topic.config.compact,
            )
            for topic in topics.all()
        }
