"""Messages of a topic: read, filter, follow, download, and write one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import attrs
import trio
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kafscale.client.client import Client
from kafscale.client.producer import Producer
from kafscale.console.messages.downloads import (
    FORMATS,
    as_json_lines,
    as_parquet,
    begun,
    missing_for_parquet,
    records_of,
)
from kafscale.console.messages.query import LIMITS, PARTITIONS_MAX_COUNT, STARTS, MessageQuery, MessageReader
from kafscale.console.messages.reading import READ_THREADS, Bounds, ReadableEnds, Scan, TopicMessage
from kafscale.console.messages.showing import Form, Shower, Shown
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.pages.fields import now_ms, whole_number
from kafscale.console.pages.topics import TopicRights, described
from kafscale.console.rendering import path_part
from kafscale.errors import ConfigError
from kafscale.login.failures import failure
from kafscale.wire.error_codes import OFFSET_OUT_OF_RANGE
from kafscale.wire.messages.topics import MetadataResponseTopic
from kafscale.wire.records import Record

SHOWN_MAX_COUNT = 8 << 20  # characters of one value on its own page
WRITE_FORMS = ("null", "text", "json", "hex")
MESSAGE_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class Row:
    """A message with its texts, None for null."""

    message: TopicMessage
    key: Shown | None
    value: Shown | None
    headers: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, message: TopicMessage, shower: Shower, query: MessageQuery, indent: int | None = None) -> Row:
        """Decode a message; it blocks."""
        record = message.record
        return cls(
            message=message,
            key=None if record.key is None else shower.show(message, query.key_as, is_key=True, indent=indent),
            value=None if record.value is None else shower.show(message, query.value_as, is_key=False, indent=indent),
            headers=[
                (name, "null" if data is None else data.decode(errors="backslashreplace"))
                for name, data in record.headers
            ],
        )


async def rows_of(
    page: PageRequest, messages: Sequence[TopicMessage], query: MessageQuery, indent: int | None = None
) -> list[Row]:
    """Decode messages in a thread."""
    shower = page.console.shower

    def decode() -> list[Row]:
        return [Row.of(message, shower, query, indent) for message in messages]

    return await trio.to_thread.run_sync(decode, limiter=READ_THREADS)


def partitions_of(topic: MetadataResponseTopic, query: MessageQuery) -> list[int]:
    """Return the partitions to read: the chosen one, or all if they are not too many. Raises ConfigError."""
    indexes = [partition.partition_index for partition in topic.partitions]
    if query.partition is not None:
        if query.partition not in indexes:
            raise ConfigError(f"partition {query.partition} does not exist: choose one of 0 to {max(indexes)}")
        return [query.partition]
    return indexes if len(indexes) <= PARTITIONS_MAX_COUNT else indexes[:1]


async def open_reader(
    page: PageRequest, client: Client, topic: MetadataResponseTopic, query: MessageQuery
) -> MessageReader:
    return await MessageReader.open(
        client, topic.name or "", query, partitions=partitions_of(topic, query), shower=page.console.shower
    )


async def message_list(page: PageRequest) -> Response:
    client, topic = await described(page)
    query, rights = MessageQuery.read(page.request.query_params), TopicRights.of(topic)
    found = None
    if not rights.read:
        found = await (await open_reader(page, client, topic, query)).read()
    return page.render(
        "messages.html",
        topic=topic,
        query=query,
        rights=rights,
        found=found,
        rows=[] if found is None else await rows_of(page, found.messages, query),
        choices={"start": STARTS, "limit": LIMITS, "form": list(Form), "write": WRITE_FORMS},
        kcat=query.kcat(kcat_options(page), topic.name or ""),
        missing_for_parquet=missing_for_parquet(),
        partitions_max_count=PARTITIONS_MAX_COUNT,
    )


async def message_rows(page: PageRequest) -> Response:
    """Answer with the rows behind a cursor, and the next one, for the live tail."""
    client, topic = await described(page)
    query = attrs.evolve(MessageQuery.read(page.request.query_params), start="tail")
    found = await (await open_reader(page, client, topic, query)).read()
    rows = await rows_of(page, list(reversed(found.messages)), query)
    following = query.first_part.part(found.positions).encoded()
    return page.render("message_tail.html", topic=topic, query=query, rows=rows, following=following)


def kcat_options(page: PageRequest) -> list[str]:
    """Return the options of kcat for this cluster and user, without the password."""
    options = ["-b", ",".join(map(str, page.settings.bootstrap))]
    security = page.session.cluster.security
    if security.sasl is not None:
        settings = {
            "security.protocol": str(security.protocol),
            "sasl.mechanisms": str(security.sasl.mechanism),
            "sasl.username": security.sasl.username or "",
        }
        options += [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    return options


async def _read_one(page: PageRequest) -> tuple[MetadataResponseTopic, TopicMessage]:
    """Return the message of the path, or the next one if compaction has removed it. Raises KafkaError, ConfigError."""
    client, topic = await described(page)
    partition = whole_number(page.request.path_params["partition"], "a partition", most=(1 << 31) - 1)
    offset = whole_number(page.request.path_params["offset"], "an offset")
    (index,) = partitions_of(topic, MessageQuery(partition=partition))
    name = topic.name or ""
    ends = await ReadableEnds.read(client, name, [index])
    if not ends.earliest[index] <= offset < ends.latest[index]:
        there = f"it has {ends.earliest[index]} to {ends.latest[index] - 1}"
        raise failure(OFFSET_OUT_OF_RANGE, f"offset {offset} of partition {index} of topic '{name}'", there)
    scan = Scan(
        client=client,
        topic=name,
        positions={index: offset},
        stops=ends.latest,
        stable=ends.stable,
        bounds=Bounds(found_count=1, scanned_count=1, seconds=MESSAGE_SECONDS),
        matches=lambda _message: True,
    )
    await scan.run()
    if not scan.found:
        raise ConfigError(
            f"There is no record at offset {offset}, and none behind it: transactions or compaction took it."
        )
    return topic, scan.found[0]


async def one_message(page: PageRequest) -> Response:
    topic, message = await _read_one(page)
    query = MessageQuery.read(page.request.query_params)
    (row,) = await rows_of(page, [message], query, indent=2)
    start = MessageQuery(start="offset", partition=message.partition, offset=message.record.offset, limit=1)
    kcat = start.kcat(kcat_options(page), topic.name or "")
    return page.render(
        "message.html", topic=topic, row=row, query=query, forms=list(Form), kcat=kcat, most=SHOWN_MAX_COUNT
    )


async def raw_value(page: PageRequest) -> Response:
    """Answer with the bytes of a value as a file, which no browser runs."""
    topic, message = await _read_one(page)
    name = f"{topic.name}-{message.partition}-{message.record.offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(message.record.value or b"", media_type="application/octet-stream", headers=headers)


async def download(page: PageRequest) -> Response:
    client, topic = await described(page)
    form = page.argument("format", "jsonl")
    if form not in FORMATS:
        raise ConfigError(f"'{form[:100]}' is not a format; allowed: {', '.join(FORMATS)}")
    if form == "parquet" and missing_for_parquet():
        raise ConfigError(missing_for_parquet())
    query = MessageQuery.read(page.request.query_params)
    parts = await begun(records_of(await open_reader(page, client, topic, query)))
    content: AsyncIterator[bytes]
    content = as_parquet(parts) if form == "parquet" else as_json_lines(topic.name or "", parts)
    headers = {"content-disposition": f'attachment; filename="{topic.name}.{form}"'}
    return StreamingResponse(content, media_type=FORMATS[form], headers=headers)


async def produce(page: PageRequest) -> Response:
    """Write one record, and show it."""
    name = page.request.path_params["name"]
    partition = str(page.form.get("partition", "")).strip()
    record = Record(
        key=_bytes(page, "key"),
        value=_bytes(page, "value"),
        timestamp_ms=now_ms(),
        headers=parse_headers(_lines(page, "headers")),
    )
    producer = Producer(client=await page.client(), topic=name)
    written = await producer.send([record], partition=whole_number(partition, "partition") if partition else None)
    ((index, offset),) = written.items()
    shown = MessageQuery(start="offset", partition=index, offset=offset)
    return page.redirect(
        f"/topics/{path_part(name)}/messages?{shown.encoded()}",
        f"The record is at offset {offset} of partition {index}.",
    )


def _lines(page: PageRequest, field: str) -> str:
    """Return a text with the line ends that were typed: forms send others."""
    return str(page.form.get(field, "")).replace("\r\n", "\n")


def _bytes(page: PageRequest, field: str) -> bytes | None:
    """Read a key or value in its chosen form. Raises ConfigError."""
    text, form = _lines(page, field), str(page.form.get(f"{field}_form", "text"))
    if form == "null":
        if text:
            raise ConfigError(f"The {field} is null and has a text: remove the text, or choose another form.")
        return None
    try:
        if form == "hex":
            return bytes.fromhex(text)
        if form == "json":
            json.loads(text)
        elif form != "text":
            raise ConfigError(f"'{form[:100]}' is not a form; allowed: {', '.join(WRITE_FORMS)}")
        return text.encode()
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"The {field} is not {form}: {exc}. Nothing was written.") from exc


def parse_headers(text: str) -> list[tuple[str, bytes | None]]:
    """Read lines of NAME: VALUE. Raises ConfigError."""
    headers: list[tuple[str, bytes | None]] = []
    for line in filter(None, text.split("\n")):
        name, separator, value = line.partition(":")
        if not separator:
            raise ConfigError(f"'{line[:100]}' is not a header: write a line NAME: VALUE for each")
        headers.append((name.strip(), value.strip().encode()))
    return headers


ROUTES = [
    Route("/topics/{name}/messages", view(message_list)),
    Route("/topics/{name}/messages", action(produce), methods=["POST"]),
    Route("/topics/{name}/messages/{partition}/{offset}", view(one_message)),
    Route("/topics/{name}/messages/{partition}/{offset}/value", view(raw_value)),
    Route("/topics/{name}/download", view(download)),
    Route("/fragments/messages/{name}", view(message_rows)),
]
