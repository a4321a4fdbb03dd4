"""`kafscale storage`: the size of each topic in the bucket, and its cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.offline import previewed_topics
from kafscale.cli.options import STORE_OPTIONS, Parsed, json_option, with_settings
from kafscale.cli.output import counting, iso_time, show, show_json
from kafscale.config import Loaded, Settings
from kafscale.errors import DamagedObject, NotFound

if TYPE_CHECKING:
    from kafscale.log.check.usage import TopicUsage, Usage
    from kafscale.store.base import ObjectStore

DOLLARS = "USD"


@attrs.frozen
class Price:
    amount: float
    currency: str = DOLLARS

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read NUMBER, in US dollars, or NUMBER CURRENCY. Raises ValueError."""
        found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([A-Za-z]{3})?\s*", text)
        if found is None:
            raise ValueError(f"'{text}' is not a price; allowed: a number, such as 0.023, or '0.021 EUR'")
        return cls(float(found[1]), (found[2] or DOLLARS).upper())


PRICE_DEFAULT = "0.023"  # USD for a GB-month: S3 Standard, the first 50 TB, us-east-1, 2025


# Times are those of uploads. Pending bytes are in the write-ahead log only, deletable ones not read any more.
COLUMNS = (
    "topic",
    "id",
    "partitions",
    "segments",
    "bytes",
    "deletable",
    "oldest",
    "newest",
    "pending",
    "cost_per_month",
)


@click.command("storage")
@click.option(
    "--price",
    type=Parsed("PRICE", Price.parse),
    default=PRICE_DEFAULT,
    help="Price of a GB (2^30 bytes) for a month, in US dollars or as '0.021 EUR'; requests are not counted.  "
    f"[default: {PRICE_DEFAULT} {DOLLARS}]",
)
@json_option
@with_settings(only=STORE_OPTIONS)
def command(price: Price, as_json: bool, loaded: Loaded) -> None:
    """Show the size and cost of each topic.

    It shows segments, bytes, oldest and newest, and the cost per month. Deletable bytes were merged or deleted, and are
    no longer read. Pending bytes are in the write-ahead log of --data-dir and not yet in the bucket. The broker may run
    meanwhile.
    """
    import trio

    usage, pending, is_known = trio.run(_measure, loaded.settings, "data_dir" in loaded.sources)
    rows = [_row(topic, pending, price, is_known=is_known) for topic in usage.topics]
    known = {topic.topic_id for topic in usage.topics}
    others_pending = sum(size_bytes for topic_id, size_bytes in (pending or {}).items() if topic_id not in known)
    size_bytes = usage.wal_bytes + usage.own_bytes + sum(topic.size_bytes for topic in usage.topics)
    cost = _cost(size_bytes, price.amount)
    if as_json:
        show_json(
            {
                "topics": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
                "wal_objects": usage.wal_object_count,
                "wal_bytes": usage.wal_bytes,
                "own_bytes": usage.own_bytes,
                "pending_of_other_topics": None if pending is None else others_pending,
                "price": price.amount,
                "currency": price.currency,
                "cost_per_month": cost,
            }
        )
        return
    show(COLUMNS, rows)
    click.echo()
    if usage.wal_object_count:
        click.echo(f"write-ahead log in the bucket: {usage.wal_object_count} objects, {usage.wal_bytes} bytes")
    if usage.own_bytes:
        click.echo(f"checkpoints and claims: {usage.own_bytes} bytes")
    if others_pending:
        click.echo(f"pending bytes of topics that are not in the bucket yet: {others_pending}")
    click.echo(f"total: {cost:.2f} {price.currency} per month, at {price} for a GB-month, without requests")


def _row(topic: TopicUsage, pending: Mapping[bytes, int] | None, price: Price, *, is_known: bool) -> tuple[Any, ...]:
    from kafscale.store.paths import topic_id_text

    return (
        topic.name,
        topic_id_text(topic.topic_id),
        len(topic.partitions),
        topic.segment_count,
        topic.size_bytes,
        topic.deletable_bytes if is_known else None,
        iso_time(topic.oldest_ms) if topic.segment_count else "-",
        iso_time(topic.newest_ms) if topic.segment_count else "-",
        None if pending is None else pending.get(topic.topic_id, 0),
        _cost(topic.size_bytes, price.amount),
    )


def _cost(size_bytes: int, price: float) -> float:
    from kafscale.log.check.usage import BYTES_PER_GB

    return round(size_bytes / BYTES_PER_GB * price, 4)


async def _measure(settings: Settings, with_data_dir: bool) -> tuple[Usage, Mapping[bytes, int] | None, bool]:
    """Return the usage, the pending bytes by topic, and whether deletable bytes are known."""
    from kafscale.log.check.usage import measure_usage, pending_bytes
    from kafscale.log.wal.disk import RealDisk
    from kafscale.store.opening.opening import store_of_command

    wal = settings.data_dir / "wal"
    async with store_of_command(settings) as store:
        with counting("objects listed:") as report:
            usage = await measure_usage(store, settings.namespace, report)
        pending = await pending_bytes(store, usage, RealDisk(wal)) if with_data_dir and wal.is_dir() else None
        return usage, pending, await _find_deletable(settings, store, usage)


async def _find_deletable(settings: Settings, store: ObjectStore, usage: Usage) -> bool:
    """Count deletable bytes. Returns False if the bucket has no readable metadata."""
    from kafscale.log.check.usage import find_deletable

    try:
        async with previewed_topics(settings, store, with_data_dir=False) as topics:
            if topics is None:
                return False
            for topic in usage.topics:
                if topic.topic_id in topics.deleted:
                    topic.deletable_bytes = topic.size_bytes
                else:
                    await find_deletable(store, topic, topics.log_start_offsets(topic.topic_id))
    except (DamagedObject, NotFound):
        return False
    return True
