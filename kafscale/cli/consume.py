"""`kafscale consume`: records to stdout, from the beginning, an offset, a time or the end on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.connecting import TIME, bootstrap_option, run_with_client, take
from kafscale.cli.records import FORMAT_HELP, Formatter, json_formatter, text_formatter, unescape
from kafscale.config import Address

if TYPE_CHECKING:
    from kafscale.client import Client, Consumer


@attrs.frozen(kw_only=True)
class Start:
    """Where to begin in each partition; at the end if nothing is given."""

    beginning: bool = False
    offset: int | None = None
    last: int | None = None
    time_ms: int | None = None

    @property
    def given_count(self) -> int:
        return [self.beginning, *(each is not None for each in (self.offset, self.last, self.time_ms))].count(True)


@attrs.frozen(kw_only=True)
class Style:
    """How a record is written."""

    as_json: bool
    raw: bool
    key_separator: str | None
    template: str | None

    def formatter(self, topic: str) -> Formatter:
        """The function that writes a record."""
        if self.as_json:
            return json_formatter(topic)
        if self.template is not None:
            return text_formatter(topic, unescape(self.template))
        if self.raw:
            return text_formatter(topic, "%v")
        separator = "" if self.key_separator is None else unescape(self.key_separator).replace("%", "%%")
        return text_formatter(topic, f"%k{separator}%v\n" if separator else "%v\n")


@click.command("consume")
@click.argument("topic")
@click.option("--from-beginning", "beginning", is_flag=True, help="Begin at the first record.")
@click.option("--offset", type=click.IntRange(0), help="Begin at this offset.")
@click.option("--last", type=click.IntRange(1), metavar="NUMBER", help="Begin this many before the end.")
@click.option("--time", "time_ms", type=TIME, help="Begin at the first record not older; 15m means that long ago.")
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable.")
@click.option("--max-messages", type=click.IntRange(1), help="Stop after this many.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object a line.")
@click.option("--raw", is_flag=True, help="Write the values only, with nothing between them.")
@click.option("--key-separator", metavar="TEXT", help=r"Write KEY, this and VALUE; \t is a tab.")
@click.option("--format", "template", metavar="TEXT", help=f"{FORMAT_HELP}.")
@bootstrap_option
def command(
    topic: str,
    bootstrap: Address,
    *,
    partitions: tuple[int, ...],
    max_messages: int | None,
    follow: bool,
    **options: Any,
) -> None:
    """Write the records of TOPIC to stdout.

    Without a place to begin at it waits for new records. With one it stops at what is the end now, unless --follow is
    given.
    """
    start, style = take(options, Start), take(options, Style)
    if start.given_count > 1:
        raise click.UsageError(
            "where to begin is not clear; allowed: one of --from-beginning, --offset, --last, --time"
        )

    async def use(client: Client) -> None:
        from kafscale.client import Consumer

        ends = await _ends(client, topic, partitions)
        positions = await _positions(client, topic, ends, start)
        stops = None if follow or not start.given_count else ends
        consumer = Consumer(client=client, topic=topic, positions=positions)
        await _write_records(consumer, style.formatter(topic), max_messages, stops)

    run_with_client(bootstrap, use)


async def _ends(client: Client, topic: str, partitions: tuple[int, ...]) -> dict[int, int]:
    from kafscale.client.offsets import LATEST, list_offsets

    wanted = partitions or sorted((await client.topic(topic)).leaders)
    return await list_offsets(client, topic, dict.fromkeys(wanted, LATEST))


async def _positions(client: Client, topic: str, ends: dict[int, int], start: Start) -> dict[int, int]:
    from kafscale.client.offsets import EARLIEST, list_offsets

    if start.offset is not None:
        return dict.fromkeys(ends, start.offset)
    if start.time_ms is not None:
        return await list_offsets(client, topic, dict.fromkeys(ends, start.time_ms))
    if not start.given_count:
        return dict(ends)
    beginnings = await list_offsets(client, topic, dict.fromkeys(ends, EARLIEST))
    if start.last is None:
        return beginnings
    return {each: max(beginnings[each], end - start.last) for each, end in ends.items()}


async def _write_records(
    consumer: Consumer, write: Formatter, max_messages: int | None, stops: dict[int, int] | None
) -> None:
    """Poll and write until enough records are written or every partition is where it shall stop."""
    output = sys.stdout.buffer
    remaining = max_messages
    while _drop_finished(consumer, stops):
        for each in await consumer.poll():
            if stops is not None and each.record.offset >= stops[each.partition]:
                continue
            output.write(write(each.partition, each.record))
            if remaining is not None:
                remaining -= 1
                if remaining == 0:
                    output.flush()
                    return
        output.flush()


def _drop_finished(consumer: Consumer, stops: dict[int, int] | None) -> bool:
    """Stop reading partitions that are where they shall stop; whether any is left."""
    for partition, stop in (stops or {}).items():
        if consumer.positions.get(partition, stop) >= stop:
            consumer.positions.pop(partition, None)
    return bool(consumer.positions)
