"""`kafscale top`: rates of two samples, bounded frames, a broker that goes and comes back."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from kafscale.cli.top import bytes_of_topics
from kafscale.cli.top_view import Measurement, frame, view_of
from kafscale.client import connect, watching
from kafscale.client.groups import TopicPartition, commit_offsets
from kafscale.client.watching import Sample, WatchedBroker, WatchedGroup, Watcher
from kafscale.config import Address
from tests.cli.terminal import in_terminal

BROKER = WatchedBroker(broker_id=1, address=Address("127.0.0.1", 9092), is_controller=True, leads_count=2, failure=None)


def sample(seconds: float, ends: dict[str, int], lags: dict[str, int | None]) -> Sample:
    return Sample(
        time_seconds=seconds,
        brokers=[BROKER],
        ends={TopicPartition(name, 0): end for name, end in ends.items()},
        groups=[WatchedGroup(group=name, state="Stable", lag=lag) for name, lag in lags.items()],
    )


def test_rates_are_differences_over_the_time_between() -> None:
    before = Measurement(sample=sample(10, {"a": 100, "b": 5, "again": 900}, {"g": 50, "h": 1}), bytes={"a": 1000.0})
    now = Measurement(
        sample=sample(12, {"a": 300, "b": 5, "again": 3, "new": 7}, {"g": 10, "n": None}), bytes={"a": 5000.0}
    )
    view = view_of(before, now, "rate")
    assert [(row.topic, row.records_per_second, row.bytes_per_second, row.end_offsets) for row in view.topics] == [
        ("a", 100.0, 2000.0, 300),
        ("again", 0.0, None, 3),
        ("b", 0.0, None, 5),
        ("new", 0.0, None, 7),
    ]
    assert [(row.group, row.lag, row.lag_per_second) for row in view.groups] == [("g", 10, -20.0), ("n", None, None)]


@pytest.mark.parametrize(
    ("sort", "topics", "groups"),
    [("rate", "cab", "hg"), ("name", "abc", "gh"), ("total", "bac", "gh")],
)
def test_rows_are_sorted(sort: str, topics: str, groups: str) -> None:
    before = Measurement(sample=sample(0, {"a": 10, "b": 50, "c": 0}, {"g": 10, "h": 0}))
    now = Measurement(sample=sample(1, {"a": 12, "b": 50, "c": 9}, {"g": 10, "h": 5}))
    view = view_of(before, now, sort)
    assert "".join(row.topic for row in view.topics) == topics
    assert "".join(row.group for row in view.groups) == groups


@pytest.mark.parametrize("columns", [20, 40, 60, 100])
def test_a_frame_of_10000_topics_fits_the_terminal(columns: int) -> None:
    names = {f"topic-\x1b[31m-{number:05}-" + "x" * 80: number for number in range(10_000)}
    moment = Measurement(sample=sample(1, names, dict.fromkeys(names, 5)))
    output = io.StringIO()
    console = Console(file=output, width=columns, height=24, force_terminal=True, color_system=None)
    view = view_of(moment, moment, "name")
    console.print(frame(view, sort="name", notice="", size=ConsoleDimensions(columns, 24)))
    lines = output.getvalue().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in output.getvalue()
    assert len([line for line in lines if "topic" in line]) > 8


def test_bytes_of_a_page_of_metrics() -> None:
    page = (
        "# HELP kafscale_topic_appended_bytes_total Bytes\n"
        'kafscale_topic_appended_bytes_total{topic="a"} 12.0\nkafscale_topic_fetched_bytes_total{topic="a"} 1.0\n'
        'kafscale_topic_appended_bytes_total{topic="b.c"} 5\n'
    )
    assert dict(bytes_of_topics(page)) == {"a": 12.0, "b.c": 5.0}


async def test_once_prints_tables_and_json(kafscale: Any, feed: Any) -> None:
    await kafscale("topics", "create", "orders", "--partitions", "2")
    feed("one\ntwo\nthree\n")
    await kafscale("produce", "orders")
    async with connect(kafscale.address) as client:
        await commit_offsets(client, "shop", {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0})
    found = await kafscale.json("top", "--interval", "10ms")
    assert [(row["topic"], row["partitions"], row["end_offsets"]) for row in found["topics"]] == [("orders", 2, 3)]
    assert [(row["group"], row["lag"]) for row in found["groups"]] == [("shop", 3)]
    assert [row["state"] for row in found["brokers"]] == ["up"]
    for again in (["--once"], []):  # a pipe gets one measurement, too
        text = await kafscale("top", "--interval", "10ms", *again)
        assert [line.split()[0] for line in text.split("\n\n")[1].splitlines()] == ["TOPIC", "orders"]
    await kafscale("topics", "create", "more")
    text = await kafscale("top", "--interval", "10ms", "--rows", "1", "--sort", "name")
    assert "more" in text
    assert "orders" not in text


async def test_requests_and_groups_of_a_sample_are_bounded(kafscale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PARTITIONS_AT_ONCE_COUNT", 2)
    monkeypatch.setattr(watching, "GROUPS_AT_ONCE_COUNT", 1)
    await kafscale("topics", "create", "orders", "--partitions", "5")
    async with connect(kafscale.address) as client:
        for group in ("a", "b", "c"):
            await commit_offsets(client, group, {TopicPartition("orders", 0): 0})
        watcher, asked = Watcher(client), []
        committed = watching.committed_offsets

        async def noting(client: Any, group: str) -> Any:
            asked.append(group)
            return await committed(client, group)

        monkeypatch.setattr(watching, "committed_offsets", noting)
        for count in range(1, 4):
            found = await watcher.sample()
            assert len(found.ends) == 5
            assert [group.lag is not None for group in found.groups].count(True) == count
        assert asked == ["a", "b", "c"]


def test_a_wrong_address_ends_the_command() -> None:
    with in_terminal(["top", "--bootstrap", "127.0.0.1:1"]) as terminal:
        assert terminal.wait() == 1
        assert "can't connect to 127.0.0.1:1" in terminal.text


def test_keys_and_a_broker_that_goes_and_comes_back(kafscale_broker: Any) -> None:
    kafscale_broker.create_topic("orders")
    with in_terminal(["top", "--interval", "100ms", "--bootstrap", kafscale_broker.bootstrap], columns=100) as terminal:
        terminal.wait_for("orders")
        terminal.wait_for("by rate")
        terminal.press(b"s")
        terminal.wait_for("by name")
        kafscale_broker.stop()
        terminal.wait_for("waiting for a broker", "orders")
        kafscale_broker.start()
        terminal.wait_for("topics 1")
        terminal.press(b"q")
        assert terminal.wait() == 0
        assert b"\x1b[?25h" in terminal.written[-20:], "the cursor is shown again"


def test_json_in_a_terminal_ends(kafscale_broker: Any) -> None:
    command = ["top", "--json", "--interval", "10ms", "--bootstrap", kafscale_broker.bootstrap]
    with in_terminal(command) as terminal:
        assert terminal.wait() == 0
        assert json.loads(terminal.text)["topics"] == []
