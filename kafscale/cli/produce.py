"""`kafscale produce`: each line of stdin becomes a record.

Lines that are available are sent together at once, in order, so that it suits typing and pipes.
"""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

import attrs
import click

from kafscale.cli.completion import TOPIC
from kafscale.cli.options import INDEX, SETTING, Bootstrap, bootstrap_option, run_with_client, take
from kafscale.cli.output import counting, say

if TYPE_CHECKING:
    from kafscale.client import Client
    from kafscale.wire.records import Record

READ_BYTES = 256 << 10
ACKS = {"0": 0, "1": 1, "all": -1}


@attrs.frozen(kw_only=True)
class LineForm:
    as_json: bool
    key_separator: str | None
    headers: tuple[tuple[str, str], ...]

    def record(self, line: bytes) -> Record:
        from kafscale.cli.records import record_of_json, record_of_line, unescape

        headers = [(name, value.encode()) for name, value in self.headers]
        if self.as_json:
            return record_of_json(line, headers)
        separator = None if self.key_separator is None else unescape(self.key_separator).encode()
        return record_of_line(line, separator, headers)


@click.command("produce")
@click.argument("topic", type=TOPIC)
@click.option("--key-separator", metavar="TEXT", help=r"Separator of KEY and VALUE in a line; \t is a tab.")
@click.option("--header", "headers", type=SETTING, multiple=True, help="A header of every record; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON, as `kafscale consume --json` writes them.")
@click.option("--partition", type=INDEX, help="Write all records to this partition.")
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Acknowledgement.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches.",
)
@bootstrap_option
def command(
    topic: str, bootstrap: Bootstrap, *, partition: int | None, acks: str, compression: str, **options: Any
) -> None:
    """Write the lines of stdin to TOPIC.

    The broker creates the topic if it may.

    Records with a key go to the partition that Kafka's clients choose.
    """
    line_form = take(options, LineForm)
    if line_form.as_json and line_form.key_separator is not None:
        raise click.UsageError("lines are either JSON or KEY and VALUE; give --json or --key-separator")

    async def use(client: Client) -> None:
        from kafscale.client import Producer
        from kafscale.wire.compression import NAMES

        codec = next(number for number, name in NAMES.items() if name == compression)
        producer = Producer(client=client, topic=topic, acks=ACKS[acks], codec=codec)
        reader, count = LineReader(stdin()), 0
        try:
            with counting("records written:", is_wanted=not sys.stdin.isatty()) as report:
                while lines := await reader.read():
                    await producer.send([line_form.record(line) for line in lines], partition=partition)
                    count += len(lines)
                    report(count)
        finally:
            if sys.stderr.isatty():
                say(f"kafscale: {count:,} records written to topic '{topic}'", err=True)

    run_with_client(bootstrap, use)


@attrs.define(eq=False, repr=False)
class LineReader:
    stream: IO[bytes]
    _rest: bytes = b""

    async def read(self) -> list[bytes]:
        """Return the available lines without their ends, at least one; none at the end of the stream."""
        import trio

        while data := await trio.to_thread.run_sync(self.stream.read, READ_BYTES, abandon_on_cancel=True):
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                return [line.removesuffix(b"\r") for line in lines]
        last, self._rest = self._rest, b""
        return [last] if last else []


def stdin() -> IO[bytes]:
    """Return standard input without its buffer: Python aborts if an abandoned thread holds its lock at exit."""
    buffered: IO[bytes] = sys.stdin.buffer
    return getattr(buffered, "raw", buffered)
