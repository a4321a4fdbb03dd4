"""Messages as files: JSON Lines, as `kafscale consume --json` writes them, and Parquet. Both are streamed."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.util import find_spec
from typing import Any

import attrs
import trio

from kafscale.client.json_records import record_as_json
from kafscale.console.messages.query import MessageReader
from kafscale.console.messages.reading import Bounds, TopicMessage
from kafscale.extras import install_command

DOWNLOAD_MAX_COUNT = 100_000  # records
SCAN_MAX_COUNT = 2_000_000
PART_SECONDS = 2.0
PART_COUNT = 5_000  # records found before they are sent
FORMATS = {"jsonl": "application/jsonl", "parquet": "application/vnd.apache.parquet"}


def missing_for_parquet() -> str:
    """Return what to install, or nothing."""
    return "" if find_spec("pyarrow") else f"Parquet needs the extra `sql`: {install_command('sql')}"


async def records_of(reader: MessageReader) -> AsyncIterator[Sequence[TopicMessage]]:
    """Yield all records of a query from its start to the present end, bounded. Raises KafkaError, BrokerUnavailable."""
    positions, left, scanned = await reader.positions(), DOWNLOAD_MAX_COUNT, 0
    while left and scanned < SCAN_MAX_COUNT:
        bounds = Bounds(found_count=min(left, PART_COUNT), scanned_count=SCAN_MAX_COUNT - scanned, seconds=PART_SECONDS)
        scan = reader.scan(positions, reader.ends.latest, bounds)
        await scan.run()
        records = [message for message in scan.found if message.is_record]
        yield records
        if not scan.left_count or scan.positions == positions:
            return
        positions, left, scanned = scan.positions, left - len(records), scanned + scan.scanned_count


async def begun(parts: AsyncIterator[Sequence[TopicMessage]]) -> AsyncIterator[Sequence[TopicMessage]]:
    """Return the same parts after the first was read, so that its errors come before the answer begins."""
    first = await anext(parts, ())

    async def all_parts() -> AsyncIterator[Sequence[TopicMessage]]:
        yield first
        async for part in parts:
            yield part

    return all_parts()


async def as_json_lines(topic: str, parts: AsyncIterator[Sequence[TopicMessage]]) -> AsyncIterator[bytes]:
    async for records in parts:
        yield await trio.to_thread.run_sync(_lines, topic, records)


def _lines(topic: str, records: Sequence[TopicMessage]) -> bytes:
    return b"".join(record_as_json(topic, message.partition, message.record).encode() + b"\n" for message in records)


@attrs.define(eq=False, repr=False, slots=False)  # RawIOBase has weak references already
class _Sink(io.RawIOBase):
    """A file that is only written to; `take` returns the bytes since the last time."""

    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _position: int = attrs.field(default=0, init=False)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


async def as_parquet(parts: AsyncIterator[Sequence[TopicMessage]]) -> AsyncIterator[bytes]:
    """Yield a file with a row group for each part."""
    sink = _Sink()
    write, close = await trio.to_thread.run_sync(_open_parquet, sink)
    async for records in parts:
        if records:
            await trio.to_thread.run_sync(write, records)
        yield sink.take()
    await trio.to_thread.run_sync(close)
    yield sink.take()


def _open_parquet(sink: _Sink) -> tuple[Callable[[Sequence[TopicMessage]], None], Callable[[], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    header = pa.struct([("name", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("transaction", pa.string()),
        ]
    )
    writer = pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd")

    def write(records: Sequence[TopicMessage]) -> None:
        columns = [
            [message.partition for message in records],
            [message.record.offset for message in records],
            [message.record.timestamp_ms for message in records],
            [message.record.key for message in records],
            [message.record.value for message in records],
            [[{"name": name, "value": value} for name, value in message.record.headers] for message in records],
            [str(message.kind) for message in records],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        writer.write_table(pa.table(arrays, schema=schema))

    return write, writer.close
