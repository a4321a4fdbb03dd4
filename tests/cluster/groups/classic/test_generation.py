"""The present generation of a group, and what its members are told of it."""

from __future__ import annotations

import pytest

from kafscale.cluster.groups.classic.members import Generation
from kafscale.cluster.groups.common.context import GroupMemberIdentity, Sync
from tests.cluster.groups.classic_groups import GroupHarness, result, subscription


def sync_of(assignments: dict[str, bytes]) -> Sync:
    return Sync(
        identity=GroupMemberIdentity(member_id="m", generation_id=1),
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )


def test_a_generation_without_members_runs_no_protocol() -> None:
    generation = Generation()
    generation.begin()
    assert (generation.generation_id, generation.protocol_name) == (1, None)
    assert generation.runs(None, "whatever a client asks for")


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "runs"),
    [
        (None, None, True),
        ("consumer", "range", True),
        ("consumer", None, True),
        (None, "range", True),
        ("connect", "range", False),
        ("consumer", "sticky", False),
        ("connect", None, False),
        (None, "sticky", False),
    ],
)
def test_a_named_protocol_must_match_the_running_one(
    harness: GroupHarness, protocol_type: str | None, protocol_name: str | None, runs: bool
) -> None:
    harness.stable(1)
    assert harness.group.runs(protocol_type, protocol_name) is runs


def test_the_work_is_shared_out_once_in_each_generation(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    generation = harness.group
    assert generation.share_out(sync_of({leader: b"x"})) is None  # it has been
    generation.begin()
    assert generation.share_out(sync_of({leader: b"1", "nobody": b"2"})) == {leader: b"1", follower: b""}
    assert generation.share_out(sync_of({leader: b"3"})) is None


def test_a_record_gives_the_generation_back(harness: GroupHarness) -> None:
    member_ids = harness.stable(2)
    group = harness.group
    record = group.record(dict.fromkeys(member_ids, b"planned"))
    assert record.state_timestamp_ms == group.state_timestamp_ms
    assert {member.assignment for member in record.members} == {b"planned"}
    assert group.record().members[0].assignment != b"planned"

    harness.restart()
    other = harness.group
    assert (other.generation_id, other.protocol_name) == (group.generation_id, "range")
    assert other.subscribed_topics == group.subscribed_topics == {"t"}


def test_only_the_leader_receives_the_member_list(harness: GroupHarness) -> None:
    first, second = harness.join(), harness.join()
    harness.advance(0)

    assert len(result(first).members) == 2
    assert result(second).members == []
    assert result(second).leader == result(first).member_id


def test_the_protocol_with_most_votes_among_the_common_ones_is_chosen(harness: GroupHarness) -> None:
    replies = [
        harness.join(protocols={"sticky": b"1", "range": b"1", "own": b"1"}),
        harness.join(protocols={"range": b"2", "sticky": b"2"}),
        harness.join(protocols={"other": b"3", "range": b"3", "sticky": b"3"}),
    ]
    harness.advance(0)

    assert {result(reply).protocol_name for reply in replies} == {"range"}
    assert [member.metadata for member in result(replies[0]).members] == [b"1", b"2", b"3"]


def test_a_group_collects_the_topics_that_its_members_subscribe_to(harness: GroupHarness) -> None:
    harness.join(protocols={"range": subscription("a", "b")})
    harness.join(protocols={"range": subscription("b", "c")})
    harness.advance(0)

    assert harness.group.subscribed_topics == {"a", "b", "c"}


def test_a_group_with_unreadable_metadata_counts_as_subscribed_to_any_topic(harness: GroupHarness) -> None:
    harness.stable(1, protocols={"range": b"?"})

    assert harness.group.is_subscribed_to("anything")


def test_a_group_of_another_type_is_subscribed_to_nothing(harness: GroupHarness) -> None:
    harness.stable(1, protocol_type="connect", protocols={"compatible": b"?"})

    assert not harness.group.is_subscribed_to("anything")
