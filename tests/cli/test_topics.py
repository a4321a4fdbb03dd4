"""`kafscale topics`."""

from __future__ import annotations

from typing import Any


async def test_a_topic_is_created_listed_described_and_deleted(kafscale: Any) -> None:
    await kafscale("topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=5000")
    (row,) = await kafscale.json("topics", "list")
    assert (row["topic"], row["partitions"], row["replication_factor"]) == ("orders", 3, 1)
    described = await kafscale.json("topics", "describe", "orders")
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert described["configs"] == [{"config": "retention.ms", "value": "5000", "set_on_topic": True}]
    assert described["partitions"][0]["end_offset"] == 0
    await kafscale("topics", "delete", "orders")
    assert await kafscale.json("topics", "list") == []


async def test_describe_shows_offsets_and_shows_configs_on_request(kafscale: Any) -> None:
    await kafscale("topics", "create", "t")
    text = await kafscale("topics", "describe", "t")
    assert text.splitlines()[0].split("  ") == [
        "PARTITION",
        "LEADER",
        "REPLICAS",
        "IN SYNC",
        "START OFFSET",
        "END OFFSET",
    ]
    assert "CONFIG" not in text
    assert "cleanup.policy" in await kafscale("topics", "describe", "t", "--all-configs")


async def test_alter_sets_unsets_and_adds_partitions(kafscale: Any) -> None:
    await kafscale("topics", "create", "t", "--config", "retention.ms=5000")
    change = ["--config", "cleanup.policy=compact", "--delete-config", "retention.ms", "--partitions", "2"]
    await kafscale("topics", "alter", "t", *change)
    described = await kafscale.json("topics", "describe", "t")
    assert described["configs"] == [{"config": "cleanup.policy", "value": "compact", "set_on_topic": True}]
    assert len(described["partitions"]) == 2


async def test_failures_are_one_line_with_the_codes_name(kafscale: Any) -> None:
    await kafscale("topics", "create", "t", "--partitions", "2")
    line = await kafscale("topics", "create", "t", code=1)
    assert line == "kafscale: topic 't': TOPIC_ALREADY_EXISTS (Topic 't' already exists.)\n"
    await kafscale("topics", "create", "t", "--if-not-exists")
    assert "topic 'none': UNKNOWN_TOPIC_OR_PARTITION" in await kafscale("topics", "describe", "none", code=1)
    assert "topic 'none': UNKNOWN_TOPIC_OR_PARTITION" in await kafscale("topics", "delete", "none", code=1)
    assert "topic 't': INVALID_PARTITIONS" in await kafscale("topics", "alter", "t", "--partitions", "1", code=1)


async def test_wrong_arguments_exit_2(kafscale: Any) -> None:
    assert "nothing to change" in await kafscale("topics", "alter", "t", code=2)
    assert "'retention' is not a setting; allowed: NAME=VALUE" in await kafscale(
        "topics", "create", "t", "--config", "retention", code=2
    )
    assert "--partitions" in await kafscale("topics", "create", "t", "--partitions", "0", code=2)
    assert "Missing argument" in await kafscale("topics", "create", code=2)
