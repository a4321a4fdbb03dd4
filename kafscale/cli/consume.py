"""`kafscale consume`: write records to stdout, from the beginning, an offset, a time, a group's offsets or the end."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from typing import IO, TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.completion import GROUP, TOPIC
from kafscale.cli.decoding import DecodingOptions, decoding_options
from kafscale.cli.options import (
    INDEX,
    OFFSET,
    TIME,
    Bootstrap,
    ListOption,
    Parsed,
    bootstrap_option,
    given_count,
    number,
    run_with_client,
    take,
)
from kafscale.cli.output import counting, say
from kafscale.cli.records import FORMAT_HELP, Formatter, json_formatter, parse_template, text_formatter, unescape
from kafscale.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from kafscale.cli.record_decoder import RecordDecoder
    from kafscale.client import Client, Consumer, IsolationLevel
    from kafscale.client.consumer import Consumed
    from kafscale.client.groups import GroupReader

LAST_COMMIT_SECONDS = 5.0


@attrs.frozen(kw_only=True)
class StartPoint:
    beginning: bool = False
    offset: int | None = None
    last: int | None = None
    time_ms: int | None = None


@attrs.frozen(kw_only=True)
class Style:
    as_json: bool
    raw: bool
    key_separator: str | None
    template: str | None

    def formatter(self, topic: str, decoder: RecordDecoder | None) -> Formatter:
        for_terminal = sys.stdout.isatty()
        if self.as_json:
            return json_formatter(topic, decoder=decoder, for_terminal=for_terminal)
        return text_formatter(topic, self._template(), decoder=decoder, for_terminal=for_terminal)

    def _template(self) -> str:
        if self.template is not None:
            return self.template
        if self.raw:
            return "%v"
        separator = "" if self.key_separator is None else unescape(self.key_separator).replace("%", "%%")
        return f"%k{separator}%v\n" if separator else "%v\n"


@click.command("consume")
@click.argument("topic", type=TOPIC)
@click.option("--from-beginning", "beginning", is_flag=True, help="Start at the first record.")
@click.option("--offset", type=OFFSET, help="Start at this offset.")
@click.option("--last", type=number(1), metavar="NUMBER", help="Start this many records before the end.")
@click.option(
    "--time", "time_ms", type=TIME, help="Start at the first record at or after a time; 15m is that long ago."
)
@click.option(
    "--group", type=GROUP, metavar="NAME", help="Start at the committed offsets of this consumer group, and commit."
)
@click.option("--partition", "partitions", type=INDEX, cls=ListOption, help="Only this partition; repeatable.")
@click.option("--max-messages", type=number(1), help="Stop after this many records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more records at the end.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="Whether to include records of open and aborted transactions (read_uncommitted) or not (read_committed).  "
    "[default: read_uncommitted, as with kafka-console-consumer]",
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object for each record.")
@click.option("--raw", is_flag=True, help="Write values only, without separators.")
@click.option("--key-separator", metavar="TEXT", help=r"Write KEY, this text and VALUE; \t is a tab.")
@click.option("--format", "template", type=Parsed("TEXT", parse_template), help=f"{FORMAT_HELP}.")
@decoding_options
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

    A pipe or a file gets the bytes as they are; a terminal gets escapes for control characters.

    Without a start it waits for new records. With one it stops at the present end, unless --follow is given. At
    read_committed the end is the start of the first open transaction.

    With --value-format or --key-format, records that were written with a schema registry become JSON. What can't be
    decoded is reported on stderr, written as it is, and makes the exit code 1.

    With --group, offsets are committed every 5 seconds and at the end, also after Ctrl-C. It reads all partitions and
    doesn't join the group, which must have no members. A partition without a committed offset starts at the end, or
    with --from-beginning at the first record.
    """
    start, style, decoding = take(options, StartPoint), take(options, Style), take(options, DecodingOptions)
    if given_count(start) > 1:
        raise click.UsageError("give only one of --from-beginning, --offset, --last and --time")
    if given_count(style) > 1:
        raise click.UsageError("give only one of --json, --raw, --key-separator and --format")
    if group is not None and given_count(start) > start.beginning:
        raise click.UsageError("--group sets the start; it allows --from-beginning only")
    decoder = decoding.open()

    async def use(client: Client) -> None:
        from kafscale.client import Consumer, IsolationLevel

        level = IsolationLevel[isolation_level.upper()]
        ends = await _ends(client, topic, partitions, level)
        positions = await _positions(client, topic, ends, start, level)
        consumer = Consumer(client=client, topic=topic, positions=positions, isolation_level=level)
        stops = None if follow or not (given_count(start) or group) else ends
        write = style.formatter(topic, decoder)
        writer = Writer(write=write, decoder=decoder, remaining=max_messages, stops=stops)
        if group is None:
            await writer.run(consumer)
        else:
            await _read_as(group, consumer, ends, writer)

    with closing(decoder) if decoder is not None else nullcontext():
        run_with_client(bootstrap, use)
    if decoder is not None and decoder.failed_count:
        raise DecodeError(f"{decoder.failed_count} keys or values were not decoded and are written as they are")


async def _read_as(group: str, consumer: Consumer, ends: dict[int, int], writer: Writer) -> None:
    """Read from the group's committed offsets, and commit, also if interrupted."""
    import trio

    from kafscale.client import IsolationLevel
    from kafscale.client.groups import GroupReader

    client, topic = consumer.client, consumer.topic
    beginnings = await _positions(client, topic, ends, StartPoint(beginning=True), consumer.isolation_level)
    # An offset committed at read_uncommitted may be beyond the end at read_committed.
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
    client: Client, topic: str, ends: dict[int, int], start: StartPoint, level: IsolationLevel
) -> dict[int, int]:
    from kafscale.client.consumer import EARLIEST, list_offsets

    if start.offset is not None:
        last = max(ends.values())
        if start.offset > last:
            raise ConfigError(f"--offset: '{start.offset}' is beyond the end of topic '{topic}'; allowed: 0 to {last}")
        return dict.fromkeys(ends, start.offset)
    if start.time_ms is not None:
        return await list_offsets(client, topic, dict.fromkeys(ends, start.time_ms), level)
    if not given_count(start):
        return dict(ends)
    beginnings = await list_offsets(client, topic, dict.fromkeys(ends, EARLIEST))
    if start.last is None:
        return beginnings
    return {partition: max(beginnings[partition], end - start.last) for partition, end in ends.items()}


def _is_file(output: IO[bytes]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(output.fileno()).st_mode)
    except OSError:
        return False


@attrs.define(kw_only=True)
class Writer:
    """Writes records until `remaining` are written, or every partition is at its offset in `stops`."""

    write: Formatter
    decoder: RecordDecoder | None
    remaining: int | None
    stops: dict[int, int] | None
    reader: GroupReader | None = None  # commits the offsets of written records

    async def run(self, consumer: Consumer) -> None:
        output, count = sys.stdout.buffer, 0
        with counting("records read:", is_wanted=_is_file(output)) as report:
            while self.remaining != 0 and self._drop_finished(consumer):
                records = await consumer.poll()
                chosen = self._chosen(records)
                for line in await self._lines(chosen):
                    output.write(line)
                output.flush()
                for failure in () if self.decoder is None else self.decoder.take_failures():
                    say(f"kafscale: {failure}", err=True)
                count += len(records)
                report(count)
                if self.reader is not None:
                    await self.reader.used(self._used(chosen, consumer))

    def _chosen(self, records: Sequence[Consumed]) -> Sequence[Consumed]:
        stops = self.stops
        if stops is not None:
            records = [one for one in records if one.record.offset < stops[one.partition]]
        if self.remaining is not None:
            records = records[: self.remaining]
            self.remaining -= len(records)
        return records

    async def _lines(self, chosen: Sequence[Consumed]) -> Iterable[bytes]:
        """Format records; in a thread if a registry may be asked, which takes seconds when it does not answer."""
        lines = (self.write(one.partition, one.record) for one in chosen)
        if self.decoder is None:
            return lines

        import trio

        return await trio.to_thread.run_sync(list, lines, abandon_on_cancel=True)

    def _used(self, chosen: Sequence[Consumed], consumer: Consumer) -> dict[int, int]:
        """Return the next offset of each partition."""
        if self.remaining == 0:
            return {one.partition: one.record.offset + 1 for one in chosen}
        stops = self.stops or {}
        return {
            partition: min(offset, stops.get(partition, offset)) for partition, offset in consumer.positions.items()
        }

    def _drop_finished(self, consumer: Consumer) -> bool:
        for partition, stop in (self.stops or {}).items():
            if consumer.positions.get(partition, stop) >= stop:
                consumer.positions.pop(partition, None)
        return bool(consumer.positions)
