"""`kafscale groups`."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kafscale.wire import codec
from kafscale.wire.messages.consumer_groups import (
    ConsumerProtocolAssignment,
    ConsumerTopicPartitions,
    DescribedAssignment,
    DescribedConsumer,
    DescribedTopicPartitions,
)
from kafscale.wire.messages.groups import DescribedGroupMember


@pytest.fixture
async def with_records(kafscale: Any, monkeypatch: pytest.MonkeyPatch, feed: Any) -> Any:
    """A topic `t` with records 0 to 9 at timestamps 1000 to 1009 in partition 0, none in partition 1."""
    await kafscale("topics", "create", "t", "--partitions", "2")
    feed("".join(f'{{"value": "{number}", "timestamp": {1000 + number}}}\n' for number in range(10)))
    await kafscale("produce", "t", "--json", "--partition", "0")
    return kafscale


def member(name: str, *partitions: int) -> DescribedGroupMember:
    assigned = [ConsumerTopicPartitions(topic="t", partitions=list(partitions))]
    assignment = struct.pack(">h", 1) + b"".join(
        codec.encode(ConsumerProtocolAssignment(assigned_partitions=assigned), 1)
    )
    return DescribedGroupMember(
        member_id=name, client_id=f"client-{name}", client_host="/h", member_assignment=assignment
    )


async def reset(kafscale: Any, *how: str) -> dict[int, tuple[int | None, int]]:
    rows = await kafscale.json("groups", "reset-offsets", "g", *how)
    return {row["partition"]: (row["before"], row["after"]) for row in rows}


async def test_offsets_are_reset_to_every_kind_of_place(with_records: Any) -> None:
    assert await reset(with_records, "--topic", "t", "--to-latest") == {0: (None, 10), 1: (None, 0)}
    assert await reset(with_records, "--to-earliest") == {0: (10, 0), 1: (0, 0)}
    assert await reset(with_records, "--to-offset", "4", "--partition", "0") == {0: (0, 4)}
    assert await reset(with_records, "--shift", "3") == {0: (4, 7), 1: (0, 0)}
    assert await reset(with_records, "--shift", "-100") == {0: (7, 0), 1: (0, 0)}
    assert await reset(with_records, "--to-offset", "99") == {0: (0, 10), 1: (0, 0)}
    assert await reset(with_records, "--to-time", "1006") == {0: (10, 6), 1: (0, 0)}
    assert await reset(with_records, "--to-time", "5000") == {0: (6, 10), 1: (0, 0)}


async def test_a_dry_run_changes_nothing(with_records: Any) -> None:
    await reset(with_records, "--topic", "t", "--to-offset", "2")
    assert await reset(with_records, "--to-latest", "--dry-run") == {0: (2, 10), 1: (0, 0)}
    assert await reset(with_records, "--shift", "0") == {0: (2, 2), 1: (0, 0)}


async def test_describe_shows_members_lag_and_partition_owners(with_records: Any) -> None:
    await reset(with_records, "--topic", "t", "--to-offset", "4")
    with_records.cluster.members["g"] = [member("a", 0), member("idle")]
    described = await with_records.json("groups", "describe", "g")
    assert described["state"] == "Stable"
    assert [(each["member"], each["partitions"]) for each in described["members"]] == [("a", 1), ("idle", 0)]
    first, second = described["offsets"]
    assert (first["committed"], first["end"], first["lag"], first["client"]) == (4, 10, 6, "client-a")
    assert (second["partition"], second["lag"], second["member"]) == (1, 0, None)
    text = await with_records("groups", "describe", "g")
    assert text.startswith("group g (classic) is Stable; members: 2\n")


async def test_deleted_records_do_not_count_as_lag(with_records: Any) -> None:
    await reset(with_records, "--topic", "t", "--to-offset", "4")
    with_records.cluster.topics["t"].logs[0].start_offset = 7
    (first, _) = (await with_records.json("groups", "describe", "g"))["offsets"]
    assert (first["committed"], first["end"], first["lag"]) == (4, 10, 3)


async def test_a_consumer_protocol_group_is_described_by_consumer_group_describe(with_records: Any) -> None:
    has = DescribedTopicPartitions(topic_id=bytes(16), topic_name="t", partitions=[0])
    with_records.cluster.consumer_members["g"] = [
        DescribedConsumer(
            member_id="a",
            member_epoch=1,
            client_id="client-a",
            client_host="/h",
            assignment=DescribedAssignment(topic_partitions=[has]),
        )
    ]
    described = await with_records.json("groups", "describe", "g")
    assert (described["type"], described["state"]) == ("consumer", "Reconciling")
    assert [(each["member"], each["partitions"]) for each in described["members"]] == [("a", 1)]
    assert [(each["partition"], each["client"]) for each in described["offsets"]] == [(0, "client-a")]
    assert (await with_records("groups", "describe", "g")).startswith("group g (consumer) is Reconciling; members: 1")


async def test_a_member_that_speaks_another_protocol_is_shown_without_partitions(kafscale: Any) -> None:
    odd = DescribedGroupMember(member_id="odd", member_assignment=b"\xff\xff\xff")
    kafscale.cluster.members["g"] = [odd]
    assert (await kafscale.json("groups", "describe", "g"))["members"][0]["partitions"] == 0


async def test_offsets_of_a_deleted_topic_are_shown_without_end(with_records: Any) -> None:
    await reset(with_records, "--topic", "t", "--to-offset", "4")
    await with_records("topics", "delete", "t")
    (first, _) = (await with_records.json("groups", "describe", "g"))["offsets"]
    assert (first["committed"], first["end"], first["lag"]) == (4, None, None)


async def test_groups_are_listed_and_deleted(with_records: Any) -> None:
    await reset(with_records, "--topic", "t", "--to-latest")
    assert await with_records.json("groups", "list") == [
        {"group": "g", "type": "classic", "state": "Empty", "protocol": "consumer"}
    ]
    await with_records("groups", "delete", "g")
    assert await with_records.json("groups", "list") == []
    assert "group 'g': GROUP_ID_NOT_FOUND" in await with_records("groups", "delete", "g", code=1)
    assert "group 'g': GROUP_ID_NOT_FOUND" in await with_records("groups", "describe", "g", code=1)


async def test_nothing_is_consumed_for_a_group_that_has_members(with_records: Any) -> None:
    with_records.cluster.members["g"] = [member("a", 0)]
    error = await with_records("consume", "t", "--group", "g", "--from-beginning", code=1)
    assert "group 'g': NON_EMPTY_GROUP (members: 1)" in error


async def test_a_group_with_members_is_left_alone(with_records: Any) -> None:
    with_records.cluster.members["g"] = [member("a", 0)]
    line = await with_records("groups", "reset-offsets", "g", "--topic", "t", "--to-latest", code=1)
    assert "offset of group 'g' for 't' 0: UNKNOWN_MEMBER_ID" in line
    assert "NON_EMPTY_GROUP" in await with_records("groups", "delete", "g", code=1)


async def test_resetting_an_unknown_group_or_partition_is_an_error(with_records: Any) -> None:
    line = await with_records("groups", "reset-offsets", "misspelt", "--to-earliest", code=1)
    assert "group 'misspelt' has no committed offsets; give --topic" in line
    await reset(with_records, "--topic", "t", "--to-offset", "2")
    how = ("--partition", "0", "--partition", "7", "--to-earliest")
    assert "has a partition 7" in await with_records("groups", "reset-offsets", "g", *how, code=1)
    assert await reset(with_records, "--shift", "0") == {0: (2, 2), 1: (0, 0)}


async def test_the_target_of_a_reset_must_be_given_once(kafscale: Any) -> None:
    for how in ([], ["--to-latest", "--to-earliest"], ["--shift", "1", "--to-offset", "0"]):
        assert "give one of --to-earliest" in await kafscale("groups", "reset-offsets", "g", *how, code=2)
