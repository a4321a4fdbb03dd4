"""`kafscale consume`: records to stdout, from the beginning, an offset, a time, a group's place or the end on."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.options import (
    INDEX,
    OFFSET,
    TIME,
    Bootstrap,
    ListOption,
    Number,
    Parsed,
    bootstrap_option,
    run_with_client,
    take,
)
from kafscale.cli.progress import counting
from kafscale.cli.records import FORMAT_HELP, Formatter, json_formatter, parse_template, text_formatter, unescape
from kafscale.errors import ConfigError

if TYPE_CHECKING:
    from kafscale.client import Client, Consumer, IsolationLevel
    from kafscale.client.consumer import Consumed
    from kafscale.client.groups import GroupReader

LAST_COMMIT_SECONDS = 5.0


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

    def check(self) -> None:
        """Raise UsageError unless there is one way at most to write a record."""
        if [self.as_json, self.raw, self.key_separator is not None, self.template is not None].count(True) > 1:
            raise click.UsageError(
                "how to write records is not clear; allowed: one of --json, --raw, --key-separator, --format"
            )

    def formatter(self, topic: str) -> Formatter:
        """The function that writes a record."""
        for_terminal = sys.stdout.isatty()
        if self.as_json:
            return json_formatter(topic, for_terminal=for_terminal)
        return text_formatter(topic, self._template(), for_terminal=for_terminal)

    def _template(self) -> str:
        if self.template is not None:
            return self.template
        if self.raw:
            return "%v"
        separator = "" if self.key_separator is None else unescape(self.key_separator).replace("%", "%%")
        return f"%k{separator}%v\n" if separator else "%v\n"


@click.command("consume")
@click.argument("topic")
@click.option("--from-beginning", "beginning", is_flag=True, help="Begin at the first record.")
@click.option("--offset", type=OFFSET, help="Begin at this offset.")
@click.option("--last", type=Number(1), metavar="NUMBER", help="Begin this many before the end.")
@click.option("--time", "time_ms", type=TIME, help="Begin at the first record not older; 15m means that long ago.")
@click.option(
    "--group", metavar="NAME", help="Begin where this consumer group has got to, and commit how far this gets."
)
@click.option("--partition", "partitions", type=INDEX, cls=ListOption, help="Only this one; repeatable.")
@click.option("--max-messages", type=Number(1), help="Stop after this many.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="Whether records of transactions that are open or were aborted are written; they are not at read_committed.  "
    "[default: read_uncommitted, as with kafka-console-consumer]",
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object a line.")
@click.option("--raw", is_flag=True, help="Write the values only, with nothing between them.")
@click.option("--key-separator", metavar="TEXT", help=r"Write KEY, this and VALUE; \t is a tab.")
@click.option("--format", "template", type=Parsed("TEXT", parse_template), help=f"{FORMAT_HELP}.")
@bootstrap_option
def command(
    topic: str,
    bootstrap: Bootstrap,
    *,
    group: str | None,
    partitions: tuple[int, ...],
    max_messages: int | None,
    follow: bool,
    isolation_level: str,
    **options: Any,
) -> None:
    """Write the records of TOPIC to stdout.

    In a pipe or a file they are as they are; a terminal gets escapes for control characters in them.

    Without a place to begin at it waits for new records. With one it stops at what is the end now, unless --follow is
    given. At read_committed the end is where the first transaction begins that is open.

    With --group what was written is committed every 5 seconds and at the end, also after Ctrl-C. It reads all
    partitions by itself, as no member of the group: that must have none. Where nothing is committed it begins at the
    end, or with --from-beginning at the first record.
    """
    start, style = take(options, Start), take(options, Style)
    if start.given_count > 1:
        raise click.UsageError(
            "where to begin is not clear; allowed: one of --from-beginning, --offset, --last, --time"
        )
    style.check()
    if group is not None and start.given_count > start.beginning:
        raise click.UsageError("--group says where to begin; allowed beside it: --from-beginning")

    async def use(client: Client) -> None:
        from kafscale.client import Consumer, IsolationLevel

        level = IsolationLevel[isolation_level.upper()]
        ends = await _ends(client, topic, partitions, level)
        positions = await _positions(client, topic, ends, start, level)
        consumer = Consumer(client=client, topic=topic, positions=positions, isolation_level=level)
        stops = None if follow or not (start.given_count or group) else ends
        writer = Writer(write=style.formatter(topic), remaining=max_messages, stops=stops)
        if group is None:
            await writer.run(consumer)
        else:
            await _read_as(group, consumer, ends, writer)

    run_with_client(bootstrap, use)


async def _read_as(group: str, consumer: Consumer, ends: dict[int, int], writer: Writer) -> None:
    """Read from where the group has got to, and commit how far this gets, also if it is interrupted."""
    import trio

    from kafscale.client import IsolationLevel
    from kafscale.client.groups import GroupReader

    client, topic = consumer.client, consumer.topic
    beginnings = await _positions(client, topic, ends, Start(beginning=True), consumer.isolation_level)
    # What it has committed at the other level may be behind the end of what is decided.
    most = await _ends(client, topic, tuple(ends), IsolationLevel.READ_UNCOMMITTED)
    writer.reader = reader = GroupReader(client=client, group=group, topic=topic)
    consumer.positions = await reader.positions(consumer.positions, least=beginnings, most=most)
    try:
        await writer.run(consumer)
    finally:
        with trio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
            await reader.commit()


async def _ends(client: Client, topic: str, partitions: tuple[int, ...], level: IsolationLevel) -> dict[int, int]:
    from kafscale.client.consumer import LATEST, list_offsets

    wanted = partitions or sorted((await client.topic(topic)).leaders)
    return await list_offsets(client, topic, dict.fromkeys(wanted, LATEST), level)


async def _positions(
    client: Client, topic: str, ends: dict[int, int], start: Start, level: IsolationLevel
) -> dict[int, int]:
    from kafscale.client.consumer import EARLIEST, list_offsets

    if start.offset is not None:
        last = max(ends.values())
        if start.offset > last:
            raise ConfigError(f"--offset: '{start.offset}' is behind the end of topic '{topic}'; allowed: 0 to {last}")
        return dict.fromkeys(ends, start.offset)
    if start.time_ms is not None:
        return await list_offsets(client, topic, dict.fromkeys(ends, start.time_ms), level)
    if not start.given_count:
        return dict(ends)
    beginnings = await list_offsets(client, topic, dict.fromkeys(ends, EARLIEST))
    if start.last is None:
        return beginnings
    return {each: max(beginnings[each], end - start.last) for each, end in ends.items()}


def _is_file(output: IO[bytes]) -> bool:
    """Tell whether stdout is a file: then the count is shown, and no other program draws on the terminal."""
    try:
        return stat.S_ISREG(os.fstat(output.fileno()).st_mode)
    except OSError:
        return False


@attrs.define(kw_only=True)
class Writer:
    """Writes records until `remaining` are written, or every partition is where `stops` says."""

    write: Formatter
    remaining: int | None
    stops: dict[int, int] | None
    reader: GroupReader | None = None  # is told what has been written

    async def run(self, consumer: Consumer) -> None:
        """Poll and write."""
        output, count = sys.stdout.buffer, 0
        with counting("records read:", is_wanted=_is_file(output)) as report:
            while self.remaining != 0 and self._drop_finished(consumer):
                records = await consumer.poll()
                positions = self._write(records, consumer)
                output.flush()
                count += len(records)
                report(count)
                if self.reader is not None:
                    await self.reader.used(positions)

    def _write(self, records: Sequence[Consumed], consumer: Consumer) -> dict[int, int]:
        """Returns the offsets behind what has been used up."""
        used: dict[int, int] = {}
        for each in records:
            if self.stops is not None and each.record.offset >= self.stops[each.partition]:
                continue
            sys.stdout.buffer.write(self.write(each.partition, each.record))
            used[each.partition] = each.record.offset + 1
            if self.remaining is not None:
                self.remaining -= 1
                if self.remaining == 0:
                    return used
        stops = self.stops or {}
        return {each: min(offset, stops.get(each, offset)) for each, offset in consumer.positions.items()}

    def _drop_finished(self, consumer: Consumer) -> bool:
        """Stop reading partitions that are where they shall stop; whether any is left."""
        for partition, stop in (self.stops or {}).items():
            if consumer.positions.get(partition, stop) >= stop:
                consumer.positions.pop(partition, None)
        return bool(consumer.positions)
