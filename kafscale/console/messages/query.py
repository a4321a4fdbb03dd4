"""The query of the page of messages, which is all of its state: start, partition, filters, forms and cursor.

Reads by it are bounded; what is left is reached by the query of the next part.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlencode

import attrs
from starlette.datastructures import QueryParams

from kafscale.client.client import Client
from kafscale.client.consumer import list_offsets
from kafscale.console.messages.filters import MessageFilter, parse_path
from kafscale.console.messages.reading import Bounds, ReadableEnds, Scan, TopicMessage
from kafscale.console.messages.showing import Form, Shower
from kafscale.console.pages.fields import time_ms, whole_number
from kafscale.errors import ConfigError

STARTS = ("newest", "beginning", "offset", "time", "tail")
LIMITS = (20, 50, 100, 500)
PARTITIONS_MAX_COUNT = 500  # read together; of a topic with more, one at a time
SCAN_MAX_COUNT = 20_000  # messages looked at for one page
SCAN_SECONDS = 2.0
WINDOW_MAX_COUNT = 5_000  # messages of the first window of the newest ones
WINDOW_SHRINKS_BY = 8

Positions = Mapping[int, int]


@attrs.frozen(kw_only=True)
class MessageQuery:
    """A query. `at` has the next offsets to read, or of the newest ones the ends to read up to; None at the start.

    `before` counts offsets that earlier parts have gone past.
    """

    start: str = "newest"
    offset: int = 0
    time: str = ""
    partition: int | None = None
    limit: int = LIMITS[1]
    key: str = ""
    value: str = ""
    header: str = ""
    path: str = ""
    equals: str = ""
    key_as: Form = Form.AUTO
    value_as: Form = Form.AUTO
    at: Positions | None = None
    before: int = 0

    @classmethod
    def read(cls, given: QueryParams) -> MessageQuery:
        """Read parameters. Raises ConfigError."""

        def number(name: str) -> int | None:
            return whole_number(given[name], name) if given.get(name) else None

        return cls(
            start=_choice(given.get("start", ""), STARTS, STARTS[0]),
            offset=number("offset") or 0,
            time=given.get("time", ""),
            partition=number("partition"),
            limit=int(_choice(given.get("limit", ""), list(map(str, LIMITS)), str(LIMITS[1]))),
            key=given.get("key", ""),
            value=given.get("value", ""),
            header=given.get("header", ""),
            path=given.get("path", ""),
            equals=given.get("equals", ""),
            key_as=Form(_choice(given.get("key_as", ""), list(Form), Form.AUTO)),
            value_as=Form(_choice(given.get("value_as", ""), list(Form), Form.AUTO)),
            at=_positions(given["at"]) if given.get("at") else None,
            before=number("before") or 0,
        )

    @property
    def first_part(self) -> MessageQuery:
        return attrs.evolve(self, at=None, before=0)

    def part(self, at: Positions, before: int = 0) -> MessageQuery:
        return attrs.evolve(self, at=dict(at), before=before)

    def encoded(self) -> str:
        """Return the parameters that differ from the defaults."""
        values = attrs.asdict(self, recurse=False)
        defaults = attrs.asdict(MessageQuery(), recurse=False)
        changed = {name: value for name, value in values.items() if value != defaults[name]}
        if self.at is not None:
            changed["at"] = ".".join(f"{partition}-{offset}" for partition, offset in sorted(self.at.items()))
        return urlencode({name: str(value) for name, value in changed.items()})

    def filter(self, shower: Shower) -> MessageFilter:
        """Raises ConfigError."""
        return MessageFilter(
            key=self.key,
            value=self.value,
            header=self.header,
            path=parse_path(self.path.strip()) if self.path.strip() else None,
            equals=self.equals,
            text_of=lambda message, is_key: _text(shower, self, message, is_key=is_key),
            json_of=lambda message: shower.json(message, self.value_as),
        )

    def kcat(self, options: Sequence[str], topic: str) -> str:
        """Return a command of kcat that reads from the same start, without the filters."""
        start = {"newest": f"-{self.limit}", "tail": "end", "beginning": "beginning", "offset": str(self.offset)}
        offset = f"s@{time_ms(self.time)}" if self.start == "time" and self.time else start.get(self.start, "beginning")
        partition = [] if self.partition is None else ["-p", str(self.partition)]
        count = [] if self.start == "tail" else ["-e"] if self.start == "newest" else ["-c", str(self.limit)]
        return shlex.join(["kcat", "-C", *options, "-t", topic, *partition, "-o", offset, *count])


def _text(shower: Shower, query: MessageQuery, message: TopicMessage, *, is_key: bool) -> str:
    if (message.record.key if is_key else message.record.value) is None:
        return ""
    return shower.show(message, query.key_as if is_key else query.value_as, is_key=is_key).text


def _choice(text: str, allowed: Sequence[str], default: str) -> str:
    if text and text not in allowed:
        raise ConfigError(f"'{text[:100]}' is not known; allowed: {', '.join(allowed)}")
    return text or default


def _positions(text: str) -> Positions:
    pairs = [pair.partition("-") for pair in text.split(".")]
    return {whole_number(index, "a partition"): whole_number(offset, "an offset") for index, _, offset in pairs}


@attrs.frozen(kw_only=True)
class FoundMessages:
    """Messages in the order to show, and the query of the next part, None at the end.

    `done_count` of `total_count` offsets were gone past, with earlier parts. `positions` are where it has come to.
    """

    messages: Sequence[TopicMessage]
    done_count: int
    total_count: int
    next_part: MessageQuery | None
    positions: Positions


@attrs.define(eq=False, kw_only=True, repr=False)
class MessageReader:
    """Reads one part of a topic by a query. Make it by `open`."""

    client: Client
    topic: str
    query: MessageQuery
    ends: ReadableEnds
    matches: Callable[[TopicMessage], bool]
    is_filtered: bool

    @classmethod
    async def open(
        cls, client: Client, topic: str, query: MessageQuery, *, partitions: Sequence[int], shower: Shower
    ) -> MessageReader:
        """Raises ConfigError, KafkaError, BrokerUnavailable."""
        chosen = query.filter(shower)
        return cls(
            client=client,
            topic=topic,
            query=query,
            ends=await ReadableEnds.read(client, topic, partitions),
            matches=chosen.matches,
            is_filtered=not chosen.is_empty,
        )

    async def read(self) -> FoundMessages:
        """Raises ConfigError, KafkaError, BrokerUnavailable."""
        return await (self._newest() if self.query.start == "newest" else self._forward())

    async def positions(self) -> dict[int, int]:
        """Return the offsets from which a part, or a download, reads forward."""
        ends, query = self.ends, self.query
        if query.at is not None:
            return {**ends.latest, **ends.within(query.at)}
        if query.start == "tail":
            return dict(ends.latest)
        if query.start == "offset":
            return ends.within(dict.fromkeys(ends.latest, query.offset))
        if query.start == "time" and query.time:
            asked = dict.fromkeys(ends.latest, time_ms(query.time))
            return ends.within(await list_offsets(self.client, self.topic, asked))
        if query.start == "newest":
            return self._window(ends.latest, self._first_window_count)
        return dict(ends.earliest)

    def scan(self, positions: Positions, stops: Positions, bounds: Bounds) -> Scan:
        return Scan(
            client=self.client,
            topic=self.topic,
            positions=dict(positions),
            stops=stops,
            stable=self.ends.stable,
            bounds=bounds,
            matches=self.matches,
        )

    async def _forward(self) -> FoundMessages:
        bounds = Bounds(found_count=self.query.limit, scanned_count=SCAN_MAX_COUNT, seconds=SCAN_SECONDS)
        scan = self.scan(await self.positions(), self.ends.latest, bounds)
        left_before = scan.left_count
        await scan.run()
        done = self.query.before + left_before - scan.left_count
        return FoundMessages(
            messages=scan.found,
            done_count=done,
            total_count=self.query.before + left_before,
            next_part=self.query.part(scan.positions, done) if scan.left_count else None,
            positions=scan.positions,
        )

    @property
    def _first_window_count(self) -> int:
        return min(self.query.limit, max(1, WINDOW_MAX_COUNT // max(1, len(self.ends.latest))))

    def _window(self, stops: Positions, count: int) -> dict[int, int]:
        return {index: max(self.ends.earliest[index], stop - count) for index, stop in stops.items()}

    async def _newest(self) -> FoundMessages:
        """Go back from the ends in windows that double, until enough was found or looked at."""
        limit, until = self.query.limit, time.monotonic() + SCAN_SECONDS
        first = stops = {**self.ends.earliest, **self.ends.within(self.query.at or self.ends.latest)}
        window_count, scanned_count = self._first_window_count, 0
        found: list[TopicMessage] = []
        while len(found) < limit and scanned_count < SCAN_MAX_COUNT:
            starts = self._window(stops, window_count)
            bounds = Bounds(found_count=1 << 62, scanned_count=1 << 62, seconds=SCAN_SECONDS)
            scan = self.scan(starts, stops, bounds)
            await scan.run()
            is_late = time.monotonic() > until
            if scan.left_count and window_count > 1:  # too large: the newest ones are at its end
                if found:
                    break
                window_count = max(1, window_count // WINDOW_SHRINKS_BY)
                continue
            found += scan.found
            scanned_count += scan.scanned_count
            stops, window_count = starts, min(2 * window_count, WINDOW_MAX_COUNT)
            if is_late or starts == self.ends.earliest:
                break
        shown = sorted(found, key=lambda message: message.place, reverse=True)[:limit]
        rest = _rest(stops, found, shown)
        total = self.query.before + sum(first[index] - self.ends.earliest[index] for index in first)
        left = sum(rest[index] - self.ends.earliest[index] for index in rest)
        return FoundMessages(
            messages=shown,
            done_count=total - left,
            total_count=total,
            next_part=self.query.part(rest, total - left) if left else None,
            positions=rest,
        )


def _rest(stops: Positions, found: Sequence[TopicMessage], shown: Sequence[TopicMessage]) -> dict[int, int]:
    """Return the ends of the next older part: all found messages that are not shown are before them."""
    rest = dict(stops)
    for message in found:
        rest[message.partition] = max(rest[message.partition], message.record.offset + 1)
    least: dict[int, int] = {}
    for message in shown:
        least[message.partition] = min(least.get(message.partition, message.record.offset), message.record.offset)
    return rest | least
