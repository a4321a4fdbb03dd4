"""Rows and frames of `kafscale top`: rates of two samples, sorted, and as much of them as a terminal has lines for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.client.watching import Sample
from kafscale.escaping import escaped

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, Group
    from rich.table import Table

SORTS = ("rate", "name", "total")
Bytes = Mapping[str, float]  # bytes appended by topic, of the brokers' metrics


@attrs.frozen(kw_only=True)
class WatchedBrokerRow:
    broker: int
    address: str
    leads: int
    role: str
    state: str


@attrs.frozen(kw_only=True)
class TopicRow:
    topic: str
    partitions: int
    records_per_second: float
    bytes_per_second: float | None
    end_offsets: int


@attrs.frozen(kw_only=True)
class GroupRow:
    """A group. lag_per_second: how fast the lag grows."""

    group: str
    state: str
    lag: int | None
    lag_per_second: float | None


@attrs.frozen(kw_only=True)
class View:
    """The tables of one moment."""

    brokers: Sequence[WatchedBrokerRow]
    topics: Sequence[TopicRow]
    groups: Sequence[GroupRow]


@attrs.frozen(kw_only=True)
class Measurement:
    """A sample, with the bytes of each topic where metrics are read."""

    sample: Sample
    bytes: Bytes = attrs.field(factory=dict)


def view_of(before: Measurement, now: Measurement, sort: str) -> View:
    """Compare two moments; `sort` is one of SORTS."""
    seconds = now.sample.time_seconds - before.sample.time_seconds
    topics = _topic_rows(before, now, seconds)
    groups = _group_rows(before.sample, now.sample, seconds)
    if sort == "rate":
        topics.sort(key=lambda row: (-row.records_per_second, row.topic))
        groups.sort(key=lambda row: (-abs(row.lag_per_second or 0.0), -(row.lag or 0), row.group))
    elif sort == "total":
        topics.sort(key=lambda row: (-row.end_offsets, row.topic))
        groups.sort(key=lambda row: (-(row.lag or 0), row.group))
    brokers = [
        WatchedBrokerRow(
            broker=broker.broker_id,
            address=str(broker.address),
            leads=broker.leads_count,
            role="controller" if broker.is_controller else "",
            state="up" if broker.failure is None else broker.failure,
        )
        for broker in now.sample.brokers
    ]
    return View(brokers=brokers, topics=topics, groups=groups)


def _topic_rows(before: Measurement, now: Measurement, seconds: float) -> list[TopicRow]:
    grown: dict[str, int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    partitions: dict[str, int] = defaultdict(int)
    for place, end in now.sample.ends.items():
        partitions[place.topic] += 1
        totals[place.topic] += end
        grown[place.topic] += max(0, end - before.sample.ends.get(place, end))  # a topic made anew begins at 0
    rows = []
    for topic in sorted(totals):
        more = None
        if topic in now.bytes:
            more = _rate(now.bytes[topic] - before.bytes.get(topic, now.bytes[topic]), seconds)
        rows.append(
            TopicRow(
                topic=topic,
                partitions=partitions[topic],
                records_per_second=_rate(grown[topic], seconds),
                bytes_per_second=more,
                end_offsets=totals[topic],
            )
        )
    return rows


def _group_rows(before: Sample, now: Sample, seconds: float) -> list[GroupRow]:
    former = {group.group: group.lag for group in before.groups}
    rows = []
    for group in now.groups:
        earlier = former.get(group.group)
        change = None if group.lag is None or earlier is None else (group.lag - earlier) / max(seconds, 1e-3)
        rows.append(GroupRow(group=group.group, state=group.state, lag=group.lag, lag_per_second=_rounded(change)))
    return rows


def _rate(grown: float, seconds: float) -> float:
    return round(max(0.0, grown) / max(seconds, 1e-3), 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


NARROW_COLUMNS = 60  # a narrower terminal gets the columns that matter most


def frame(view: View, *, sort: str, notice: str, size: ConsoleDimensions) -> Group:
    """Return what fits a terminal of this size: a line of totals, then brokers, topics and groups."""
    from rich.console import Group
    from rich.text import Text

    left = max(3, size.height - 1 - 4 * 3)  # a line of totals; titles, rules and blank lines of three tables
    broker_count = min(len(view.brokers), max(1, left // 3))
    group_count = min(len(view.groups), max(1, left // 3))
    topic_count = max(1, left - broker_count - group_count)
    is_narrow = size.width < NARROW_COLUMNS
    parts: list[Any] = [Text(_totals(view, sort, notice), overflow="ellipsis", no_wrap=True)]
    parts.append(_table(view.brokers[:broker_count], BROKER_COLUMNS, ("broker", "state") if is_narrow else ()))
    parts.append(_table(view.topics[:topic_count], TOPIC_COLUMNS, ("topic", "records/s") if is_narrow else ()))
    if view.groups:
        parts.append(_table(view.groups[:group_count], GROUP_COLUMNS, ("group", "lag") if is_narrow else ()))
    return Group(*parts)


BROKER_COLUMNS = {"broker": "broker", "address": "address", "leads": "leads", "role": "role", "state": "state"}
TOPIC_COLUMNS = {
    "topic": "topic",
    "partitions": "partitions",
    "records/s": "records_per_second",
    "bytes/s": "bytes_per_second",
    "end offsets": "end_offsets",
}
GROUP_COLUMNS = {"group": "group", "state": "state", "lag": "lag", "lag/s": "lag_per_second"}
_TEXTS = {"address", "role", "state", "topic", "group"}
_CUT = {"state", "topic", "group"}  # columns that give way


def _totals(view: View, sort: str, notice: str) -> str:
    if notice:
        return escaped(notice)
    records = sum(row.records_per_second for row in view.topics)
    lag = sum(row.lag or 0 for row in view.groups)
    return (
        f"{time.strftime('%H:%M:%S')}  {records:,.0f} records/s  lag {lag:,}  brokers {len(view.brokers)}  "
        f"topics {len(view.topics):,}  groups {len(view.groups):,}  by {sort}  [q]uit [s]ort"
    )


def _table(rows: Sequence[attrs.AttrsInstance], columns: Mapping[str, str], only: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = {title: name for title, name in columns.items() if not only or title in only}
    lines = [[escaped(_cell(getattr(row, name))) for name in shown.values()] for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, title in enumerate(shown):
        least = None if title in _CUT else max(len(text) for text in (title, *(line[index] for line in lines)))
        justify: Any = "left" if title in _TEXTS else "right"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", min_width=least)
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
