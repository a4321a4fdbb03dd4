"""`kafscale verify`: check every object of a bucket, and repair what can be rebuilt."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.offline import copied_metadata, previewed_topics
from kafscale.cli.options import STORE_OPTIONS, json_option, with_settings
from kafscale.cli.output import measuring, show, show_json
from kafscale.config import Loaded, Settings
from kafscale.errors import DamagedObject, NotFound, StartupError

if TYPE_CHECKING:
    from kafscale.log.check.verification import Report, Verifier
    from kafscale.log.repair.verify_segment import Finding


@click.command("verify")
@click.option(
    "--repair", is_flag=True, help="Rebuild damaged objects from undamaged ones; record batches are never changed."
)
@click.option(
    "--bucket-only", is_flag=True, help="Don't check the data directory, for which its broker must be stopped."
)
@json_option
@with_settings(only=STORE_OPTIONS)
def command(repair: bool, bucket_only: bool, as_json: bool, loaded: Loaded) -> None:
    """Check every object of a bucket.

    Segments, write-ahead log and checkpoints are compared with each other; with a --data-dir, given as flag, variable
    or in the file, its write-ahead log and metadata too. The exit code is 1 for damage that was not repaired.
    """
    import trio

    with_data_dir = "data_dir" in loaded.sources and not bucket_only
    report = trio.run(_verify, loaded.settings, with_data_dir, repair)
    _show(report, as_json=as_json)
    if not report.is_whole:
        damaged = [finding for finding in report.findings if finding.damage and not finding.repaired]
        more = f" (and {len(damaged) - 1} more)" if damaged[1:] else ""
        raise DamagedObject(f"{damaged[0].name}: {damaged[0].message}{more}")


def _show(report: Report, *, as_json: bool) -> None:
    summary = attrs.asdict(report, filter=lambda field, _: field.name != "findings")
    findings = report.findings
    if as_json:
        show_json({"whole": report.is_whole, **summary, "findings": [*map(attrs.asdict, findings)]})
        return
    if findings:
        show(("what", "kind", "where", "position", "message"), [*map(_row, findings)])
        click.echo()
    counts = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in summary.items())
    click.echo(f"{'whole' if report.is_whole else 'damaged'}; {counts}")


def _row(finding: Finding) -> tuple[Any, ...]:
    what = "repaired" if finding.repaired else "damage" if finding.damage else "note"
    advice = " (--repair rebuilds it)" if finding.can_repair and not finding.repaired else ""
    return what, finding.kind, finding.name, finding.position, finding.message + advice


async def _verify(settings: Settings, with_data_dir: bool, repair: bool) -> Report:
    from kafscale.cluster.membership.start.own_objects import OwnObjects
    from kafscale.formats.wal_runs import list_log
    from kafscale.log.check.verification import Verifier
    from kafscale.log.wal.data_directory import keep_files_private, lock_data_directory
    from kafscale.store.opening.opening import store_of_command

    keep_files_private()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_of_command(settings))
        verifier = Verifier(store=store, namespace=settings.namespace)
        if with_data_dir:
            _check_metadata_file(verifier, settings)
            stack.enter_context(lock_data_directory(settings.data_dir))
        own_objects = OwnObjects(store=store, namespace=settings.namespace)
        log = await list_log(store, settings.namespace)
        kept_until = await own_objects.read()
        verifier.manifests = own_objects.manifests
        log_bytes = sum(sum(sizes.values()) for sizes in log.values())
        with measuring("verifying the write-ahead log", log_bytes) as report_progress:
            await verifier.read_log(log, kept_until, report_progress, is_shared=own_objects.has_head)
        if with_data_dir:
            await _read_wal(verifier, settings)
        total_bytes = await verifier.list_bucket()
        await _learn_topics(verifier, settings, with_data_dir=with_data_dir)
        verifier.metadata_is_current = with_data_dir or await own_objects.has_all_metadata()
        with measuring("verifying the segments", total_bytes) as report_progress:
            await verifier.read_bucket(report_progress)
        await own_objects.check_claim(verifier.last_epoch)
        if repair:
            await verifier.repair()
            await own_objects.repair()
        verifier.report.add(own_objects.findings)
        return verifier.report


def _check_metadata_file(verifier: Verifier, settings: Settings) -> None:
    """Report a missing metadata.db beside a write-ahead log. Raises StartupError if both are missing."""
    from kafscale.log.repair.verify_segment import Finding, FindingKind
    from kafscale.log.wal.data_directory import METADATA_NAME, WAL_NAME

    path = settings.data_dir / METADATA_NAME
    if path.is_file():
        return
    if not (settings.data_dir / WAL_NAME).is_dir():
        raise StartupError(
            f"--data-dir: {settings.data_dir} is not a broker's data directory; it has no {METADATA_NAME}"
        )
    message = (
        "is missing, and there is a write-ahead log: changes after the newest checkpoint in the bucket are lost, "
        "unless you restore the file from a copy before the next start"
    )
    verifier.report.add([Finding(name=str(path), kind=FindingKind.METADATA, message=message)])


async def _read_wal(verifier: Verifier, settings: Settings) -> None:
    from kafscale.cluster.membership.start.recovery import MetadataExtents
    from kafscale.log.wal.disk import RealDisk

    directory = settings.data_dir / "wal"
    with closing(RealDisk(directory)) as disk:
        async with copied_metadata(settings, with_data_dir=True) as metadata:
            await verifier.read_wal(disk, MetadataExtents(metadata))


async def _learn_topics(verifier: Verifier, settings: Settings, *, with_data_dir: bool) -> None:
    """Read the metadata after the listing, so that segments before a moved log start count as deleted."""
    from kafscale.cluster.membership.leading.leading import begun
    from kafscale.cluster.membership.state import ClusterState
    from kafscale.log.check.verification import VerifiedTopic
    from kafscale.log.repair.verify_segment import Finding, FindingKind

    try:
        async with previewed_topics(settings, verifier.store, with_data_dir=with_data_dir) as topics:
            if topics is not None:
                verifier.topics = {
                    topic.topic_id: VerifiedTopic(
                        name=topic.name,
                        partition_count=topic.partition_count,
                        log_start_offsets=topics.log_start_offsets(topic.topic_id),
                        lost_offsets=topics.lost_offsets(topic.topic_id),
                    )
                    for topic in topics.all()
                }
                verifier.deleted = set(topics.deleted)
                state = ClusterState(topics.store)
                await state.load()
                verifier.begun = lambda at: () if (found := state.placement(*at)) is None else begun(found)
    except (DamagedObject, NotFound) as exc:
        message = f"the topics can't be read, so that fewer checks are possible: {exc}"
        verifier.report.add([Finding(name="metadata", kind=FindingKind.CHECKPOINT, message=message, damage=False)])
