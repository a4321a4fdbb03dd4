"""The rebalance protocol, one scenario after another, on a clock that the test moves."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.groups.classic.group import ClassicGroupState
from kafscale.cluster.groups.common.context import refused_join
from kafscale.config import Limits, Settings
from kafscale.wire import error_codes as e
from kafscale.wire.messages.groups import SyncGroupResponse
from tests.cluster.groups.classic_groups import GroupHarness, error, result, subscription

# -- Joining an empty group ------------------------------------------------------------------------------------------


def test_the_first_member_leads_generation_1(harness: GroupHarness) -> None:
    reply = harness.join()
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    harness.advance(0)

    joined = result(reply)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (e.NONE, 1, "range")
    assert joined.member_id.startswith("client-")
    assert joined.leader == joined.member_id
    assert [(member.member_id, member.metadata) for member in joined.members] == [(joined.member_id, subscription("t"))]
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", {"range": b""}), ("consumer", {})],
)
def test_an_empty_group_needs_a_protocol(
    harness: GroupHarness, protocol_type: str, protocols: dict[str, bytes]
) -> None:
    reply = harness.join(protocol_type=protocol_type, protocols=protocols)

    assert error(reply) == e.INCONSISTENT_GROUP_PROTOCOL
    assert harness.group.state is ClassicGroupState.EMPTY


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", {"range": b""}), ("consumer", {"sticky": b""})],
)
def test_a_member_that_shares_no_protocol_is_refused(
    harness: GroupHarness, protocol_type: str, protocols: dict[str, bytes]
) -> None:
    harness.stable(1)

    assert error(harness.join(protocol_type=protocol_type, protocols=protocols)) == e.INCONSISTENT_GROUP_PROTOCOL
    assert harness.group.state is ClassicGroupState.STABLE


def test_a_member_of_an_unknown_id_is_refused(harness: GroupHarness) -> None:
    harness.stable(1)

    reply = harness.join("nobody")

    assert result(reply) == refused_join(e.UNKNOWN_MEMBER_ID, "nobody")


# -- Ids that must be known (KIP-394) --------------------------------------------------------------------------------


def test_a_new_member_is_first_given_an_id(harness: GroupHarness) -> None:
    refused = result(harness.join(member_id_required=True))
    assert refused.error_code == e.MEMBER_ID_REQUIRED
    assert harness.group.state is ClassicGroupState.EMPTY

    reply = harness.join(refused.member_id, member_id_required=True)
    harness.advance(0)

    assert (result(reply).error_code, result(reply).member_id) == (e.NONE, refused.member_id)


def test_an_unused_member_id_expires_after_the_session_timeout(harness: GroupHarness) -> None:
    promised = result(harness.join(member_id_required=True)).member_id
    harness.advance(10)

    assert error(harness.join(promised)) == e.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_ids_that_were_given_out(harness: GroupHarness) -> None:
    (leader,) = harness.stable(1)
    promised = result(harness.join(member_id_required=True)).member_id
    rejoined = harness.join(leader)
    harness.advance(1)
    assert not rejoined.is_set

    joined = harness.join(promised)

    assert result(rejoined).generation_id == result(joined).generation_id == 2


def test_a_rebalance_completes_when_a_pending_member_expires_or_leaves(harness: GroupHarness) -> None:
    (leader,) = harness.stable(1)
    harness.join(member_id_required=True)
    rejoined = harness.join(leader)
    harness.advance(10)
    assert result(rejoined).generation_id == 2

    harness.sync(leader)
    promised = result(harness.join(member_id_required=True)).member_id
    rejoined = harness.join(leader)
    assert not rejoined.is_set
    assert harness.leave(promised) == e.NONE
    assert result(rejoined).generation_id == 3


def test_a_pending_member_that_leaves_does_not_disturb_a_stable_group(harness: GroupHarness) -> None:
    harness.stable(1)
    promised = result(harness.join(member_id_required=True)).member_id

    assert harness.leave(promised) == e.NONE
    assert harness.group.state is ClassicGroupState.STABLE


# -- Joining again ---------------------------------------------------------------------------------------------------


def test_an_unchanged_follower_that_rejoins_receives_the_current_generation(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)

    joined = result(harness.join(follower))

    assert (joined.generation_id, joined.leader, joined.members) == (1, leader, [])
    assert harness.group.state is ClassicGroupState.STABLE


@pytest.mark.parametrize("who", [0, 1])
def test_a_rejoin_by_a_changed_member_or_the_leader_starts_a_rebalance(harness: GroupHarness, who: int) -> None:
    ids = harness.stable(2)
    reply = harness.join(ids[who], protocols={"range": subscription("t", "u") if who else subscription("t")})

    assert not reply.is_set
    assert harness.heartbeat(ids[1 - who]) == e.REBALANCE_IN_PROGRESS
    other = harness.join(ids[1 - who])
    assert result(reply).generation_id == result(other).generation_id == 2
    assert result(reply).leader == ids[0]


def test_an_unchanged_member_can_repeat_its_join_before_the_assignment(harness: GroupHarness) -> None:
    first, second = harness.join(), harness.join()
    harness.advance(0)

    again = result(harness.join(result(first).member_id))
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert result(harness.join(result(second).member_id)).members == []
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_a_change_before_the_assignment_sends_everyone_back_to_join(harness: GroupHarness) -> None:
    first, second = harness.join(), harness.join()
    harness.advance(0)
    waiting = harness.sync(result(second).member_id)

    harness.join(result(first).member_id, protocols={"range": b"changed"})

    assert error(waiting) == e.REBALANCE_IN_PROGRESS
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_join_replaced_by_a_later_one_gets_a_retriable_error(harness: GroupHarness) -> None:
    leader, _ = harness.stable(2)
    first = harness.join(leader)
    second = harness.join(leader)

    assert error(first) == e.COORDINATOR_NOT_AVAILABLE
    assert not second.is_set


def test_members_that_miss_the_rebalance_timeout_are_dropped(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    reply = harness.join(follower, protocols={"range": b"changed"})
    for _ in range(6):  # the leader lives on, but does not rejoin
        harness.advance(9)
        assert harness.heartbeat(leader) == e.REBALANCE_IN_PROGRESS
    assert not reply.is_set
    harness.advance(6)

    assert (result(reply).generation_id, result(reply).leader) == (2, follower)
    assert harness.heartbeat(leader) == e.UNKNOWN_MEMBER_ID


def test_a_new_member_is_removed_after_waiting_too_long_for_a_rebalance(harness: GroupHarness) -> None:
    leader = harness.stable(1, rebalance_timeout_ms=3_600_000)[0]
    reply = harness.join()
    while harness.seconds < 301:
        harness.advance(5)
        harness.heartbeat(leader)

    assert error(reply) == e.UNKNOWN_MEMBER_ID
    assert len(harness.group.members) == 1


def test_a_member_waiting_in_a_join_outlives_its_session_timeout(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    reply = harness.join(follower, protocols={"range": b"changed"})
    for _ in range(10):
        harness.advance(5)
        harness.heartbeat(leader)
    assert not reply.is_set
    harness.join(leader)

    assert result(reply).generation_id == 2
    harness.advance(10)
    assert follower not in harness.group.members, "its session began anew with the reply, and ended"


# -- Synchronising ---------------------------------------------------------------------------------------------------


def test_the_leaders_assignment_is_carried_untouched(harness: GroupHarness) -> None:
    replies = [harness.join() for _ in range(3)]
    harness.advance(0)
    ids = [result(reply).member_id for reply in replies]
    waiting = harness.sync(ids[1])
    assert not waiting.is_set

    parts = {ids[0]: bytes(range(256)), ids[1]: b"\0\1", "nobody": b"lost"}
    led = harness.sync(ids[0], parts)

    assert led.value == SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=bytes(range(256)))
    assert waiting.value == attrs.evolve(led.value, assignment=b"\0\1")
    late = harness.sync(ids[2])
    assert late.value == attrs.evolve(led.value, assignment=b""), "whom the leader forgot has nothing to do"
    assert harness.group.state is ClassicGroupState.STABLE


def test_no_member_receives_an_assignment_that_is_not_durable() -> None:
    harness = GroupHarness(holds_writes=True)
    first, second = harness.join(), harness.join()
    harness.advance(0)
    follower = harness.sync(result(second).member_id)
    leader = harness.sync(result(first).member_id, {result(second).member_id: b"2"})
    assert not leader.is_set
    assert not follower.is_set
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE

    harness.finish_writes()

    assert follower.value is not None
    assert follower.value.assignment == b"2"
    assert harness.stored is not None
    assert [member.assignment for member in harness.stored.members] == [b"", b"2"]


def test_a_leader_that_asks_twice_is_answered_once_and_its_first_assignment_counts() -> None:
    harness = GroupHarness(holds_writes=True)
    reply = harness.join()
    harness.advance(0)
    leader = result(reply).member_id
    first = harness.sync(leader, {leader: b"1"})
    second = harness.sync(leader, {leader: b"2"})
    assert len(harness.held) == 1
    harness.finish_writes()

    assert error(first) == e.COORDINATOR_NOT_AVAILABLE
    assert second.value is not None
    assert second.value.assignment == b"1"


def test_an_assignment_that_could_not_be_stored_sends_everyone_back_to_join() -> None:
    harness = GroupHarness(holds_writes=True)
    first, second = harness.join(), harness.join()
    harness.advance(0)
    waiting = [harness.sync(result(second).member_id), harness.sync(result(first).member_id, {})]
    harness.finish_writes(durable=False)

    assert [error(reply) for reply in waiting] == [e.COORDINATOR_NOT_AVAILABLE] * 2
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_an_assignment_that_becomes_durable_too_late_is_not_handed_out() -> None:
    harness = GroupHarness(holds_writes=True)
    first = harness.join()
    harness.advance(0)
    leader = result(first).member_id
    waiting = harness.sync(leader, {leader: b"old"})
    newcomer = harness.join()
    assert error(waiting) == e.REBALANCE_IN_PROGRESS
    harness.join(leader)
    assert result(newcomer).generation_id == 2
    harness.finish_writes()

    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE
    waiting = harness.sync(leader, {leader: b"new"})
    harness.finish_writes()
    assert waiting.value is not None
    assert waiting.value.assignment == b"new"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"member_id": "nobody"}, e.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, e.ILLEGAL_GENERATION),
        ({"generation_id": 2}, e.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "range"}, e.NONE),
        ({"group_instance_id": "i"}, e.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_is_checked(harness: GroupHarness, request_: dict[str, object], expected: int) -> None:
    (member_id,) = harness.stable(1)

    assert error(harness.sync(**{"member_id": member_id, **request_})) == expected  # type: ignore[arg-type]


def test_a_sync_during_a_rebalance_is_sent_back_to_join(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    harness.join(leader)

    assert error(harness.sync(follower)) == e.REBALANCE_IN_PROGRESS


def test_a_late_sync_is_a_sign_of_life(harness: GroupHarness) -> None:
    first, second = harness.join(), harness.join()
    harness.advance(0)
    leader, late = result(first).member_id, result(second).member_id
    harness.sync(leader, {})
    harness.advance(9)
    assert harness.heartbeat(leader) == error(harness.sync(late)) == e.NONE
    harness.advance(9)
    assert harness.heartbeat(late) == e.NONE, "it had a second left of the time since its join was answered"


def test_members_that_never_sync_are_dropped_after_the_rebalance_timeout(harness: GroupHarness) -> None:
    first, second = harness.join(), harness.join()
    harness.advance(0)
    leader, silent = result(first).member_id, result(second).member_id
    harness.sync(leader, {})
    assert harness.group.state is ClassicGroupState.STABLE
    while harness.seconds < 60:
        assert harness.heartbeat(leader) == harness.heartbeat(silent) == e.NONE
        harness.advance(5)

    assert harness.heartbeat(leader) == e.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(silent) == e.UNKNOWN_MEMBER_ID


def test_without_an_assignment_the_waiting_members_are_sent_back_when_the_leader_is_dropped(
    harness: GroupHarness,
) -> None:
    first, second = harness.join(), harness.join()
    harness.advance(0)
    waiting = harness.sync(result(second).member_id)
    harness.advance(10)  # the leader's session ends

    assert error(waiting) == e.REBALANCE_IN_PROGRESS
    again = harness.join(result(second).member_id)
    assert result(again).leader == result(second).member_id
    assert harness.heartbeat(result(first).member_id) == e.UNKNOWN_MEMBER_ID


# -- Staying alive ---------------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_member_and_silence_removes_a_member(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    for _ in range(5):
        harness.advance(6)
        harness.heartbeat(leader)
        harness.join(leader)

    assert [member.member_id for member in harness.group.members] == [leader]
    harness.advance(11)
    assert harness.heartbeat(follower) == e.UNKNOWN_MEMBER_ID


def test_a_heartbeat_costs_no_entry_in_the_timer_queue(harness: GroupHarness) -> None:
    (leader,) = harness.stable(1)
    before = len(harness.timers)
    for _ in range(1000):
        harness.heartbeat(leader)
        harness.advance(0.001)

    assert len(harness.timers) == before
    assert harness.held == []


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, e.NONE),
        ({"member_id": "nobody"}, e.UNKNOWN_MEMBER_ID),
        ({"generation_id": 2}, e.ILLEGAL_GENERATION),
        ({"group_instance_id": "unknown"}, e.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_is_checked(harness: GroupHarness, request_: dict[str, object], expected: int) -> None:
    (member_id,) = harness.stable(1)

    assert harness.heartbeat(**{"member_id": member_id, **request_}) == expected  # type: ignore[arg-type]


def test_the_group_becomes_empty_when_its_last_member_falls_silent(harness: GroupHarness) -> None:
    (member_id,) = harness.stable(1)
    harness.advance(10)

    assert harness.group.state is ClassicGroupState.EMPTY
    assert (harness.group.generation_id, harness.group.protocol_name) == (2, None)
    assert harness.group.protocol_type == "consumer"
    assert harness.stored is not None
    assert (harness.stored.generation_id, harness.stored.members) == (2, [])
    assert harness.heartbeat(member_id) == e.UNKNOWN_MEMBER_ID
    assert len(harness.timers) == 0 or harness.timers.next_deadline > harness.seconds


# -- Leaving ---------------------------------------------------------------------------------------------------------


def test_a_member_that_leaves_makes_the_others_rebalance(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)

    assert harness.leave(leader) == e.NONE

    assert harness.heartbeat(leader) == e.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(follower) == e.REBALANCE_IN_PROGRESS
    assert result(harness.join(follower)).leader == follower


def test_the_last_member_leaves_an_empty_group(harness: GroupHarness) -> None:
    (member_id,) = harness.stable(1)

    assert harness.leave(member_id) == e.NONE
    assert harness.group.state is ClassicGroupState.EMPTY


def test_a_leave_during_a_rebalance_completes_the_rebalance(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    reply = harness.join(leader)

    assert harness.leave(follower) == e.NONE
    assert result(reply).generation_id == 2


def test_a_member_that_leaves_during_its_join_or_sync_gets_an_error(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    join = harness.join(leader)
    assert harness.leave(leader) == e.NONE
    assert result(join) == refused_join(e.UNKNOWN_MEMBER_ID)

    rejoined = harness.join(follower)
    newcomer = harness.join()
    harness.join(follower)
    waiting = harness.sync(result(newcomer).member_id)
    assert not waiting.is_set
    assert harness.leave(result(newcomer).member_id) == e.NONE
    assert error(waiting) == e.UNKNOWN_MEMBER_ID
    assert result(rejoined).generation_id == 2


@pytest.mark.parametrize(
    ("member_id", "group_instance_id", "expected"),
    [
        ("nobody", None, e.UNKNOWN_MEMBER_ID),
        ("", None, e.UNKNOWN_MEMBER_ID),
        ("", "unknown", e.UNKNOWN_MEMBER_ID),
        ("nobody", "i", e.FENCED_INSTANCE_ID),
        ("", "i", e.NONE),  # an administrator removes a static member
    ],
)
def test_leaving_is_checked(
    harness: GroupHarness, member_id: str, group_instance_id: str | None, expected: int
) -> None:
    harness.stable(1, group_instance_id="i")

    assert harness.leave(member_id, group_instance_id) == expected
    assert len(harness.group.members) == (0 if expected == e.NONE else 1)


# -- Static members (KIP-345) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("can_skip_assignment", [False, True])
def test_a_static_member_that_restarts_takes_its_place_without_a_rebalance(
    harness: GroupHarness, can_skip_assignment: bool
) -> None:
    (old,) = harness.stable(1, group_instance_id="i")

    joined = result(harness.join(group_instance_id="i", can_skip_assignment=can_skip_assignment))

    assert joined.error_code == e.NONE
    assert joined.generation_id == 1
    assert joined.member_id not in ("", old)
    assert joined.member_id.startswith("i-")
    assert harness.group.state is ClassicGroupState.STABLE
    # An old client that learned that it leads would share the work out anew.
    assert joined.leader == (joined.member_id if can_skip_assignment else old)
    assert joined.skip_assignment is can_skip_assignment
    assert len(joined.members) == (1 if can_skip_assignment else 0)
    synced = harness.sync(joined.member_id, group_instance_id="i")
    assert synced.value is not None
    assert synced.value.assignment == b"0"
    assert harness.stored is not None
    assert [member.member_id for member in harness.stored.members] == [joined.member_id]


def test_the_former_holder_of_an_instance_id_is_fenced(harness: GroupHarness) -> None:
    (old,) = harness.stable(1, group_instance_id="i")
    harness.join(group_instance_id="i")

    assert harness.heartbeat(old, group_instance_id="i") == e.FENCED_INSTANCE_ID
    assert error(harness.sync(old, group_instance_id="i")) == e.FENCED_INSTANCE_ID
    assert error(harness.join(old, group_instance_id="i")) == e.FENCED_INSTANCE_ID
    assert harness.leave(old, "i") == e.FENCED_INSTANCE_ID
    assert harness.check_commit(old, "i", 1) == e.FENCED_INSTANCE_ID
    assert harness.heartbeat(old) == e.UNKNOWN_MEMBER_ID


def test_a_pending_join_is_fenced_when_another_takes_its_instance_id(harness: GroupHarness) -> None:
    harness.stable(1)
    old = harness.join(group_instance_id="i")
    new = harness.join(group_instance_id="i")

    assert error(old) == e.FENCED_INSTANCE_ID
    assert not new.is_set


def test_a_static_member_that_returns_during_the_assignment_makes_the_group_rebalance(harness: GroupHarness) -> None:
    first, second = harness.join(group_instance_id="a"), harness.join(group_instance_id="b")
    harness.advance(0)
    waiting = harness.sync(result(second).member_id, group_instance_id="b")

    back = harness.join(group_instance_id="b")

    assert error(waiting) == e.FENCED_INSTANCE_ID
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    harness.join(result(first).member_id, group_instance_id="a")
    assert result(back).generation_id == 2


def test_a_static_member_that_returns_with_other_protocols_makes_the_group_rebalance(harness: GroupHarness) -> None:
    harness.stable(1, group_instance_id="i", protocols={"range": b"", "sticky": b""})

    reply = harness.join(group_instance_id="i", protocols={"sticky": b""})

    assert (result(reply).generation_id, result(reply).protocol_name) == (2, "sticky")


def test_a_static_member_keeps_its_place_through_a_missed_rebalance(harness: GroupHarness) -> None:
    leader, static = harness.stable(1)[0], harness.join(group_instance_id="i")
    harness.join(leader)
    harness.sync(leader, {})
    harness.sync(result(static).member_id, group_instance_id="i")
    assert harness.group.state is ClassicGroupState.STABLE
    rejoined = harness.join(leader)
    for _ in range(12):
        harness.advance(5)
        harness.heartbeat(result(static).member_id, group_instance_id="i")

    assert [member.member_id for member in result(rejoined).members] == [leader, result(static).member_id]


def test_a_leader_that_is_static_and_silent_hands_over(harness: GroupHarness) -> None:
    (static,) = harness.stable(1, group_instance_id="i", session_timeout_ms=600_000)
    joined = harness.join()
    harness.advance(60)

    assert result(joined).leader == result(joined).member_id
    assert {member.member_id for member in result(joined).members} == {static, result(joined).member_id}


def test_when_only_silent_static_members_are_left_the_rebalance_waits_for_their_sessions(
    harness: GroupHarness,
) -> None:
    (static,) = harness.stable(1, group_instance_id="i", session_timeout_ms=100_000)
    newcomer = harness.join()
    harness.leave(result(harness.join(member_id_required=True)).member_id)
    assert harness.group.leave([]) == []
    waiting_id = next(member.member_id for member in harness.group.members if member.member_id != static)
    assert harness.leave(waiting_id) == e.NONE
    assert error(newcomer) == e.UNKNOWN_MEMBER_ID
    harness.advance(70)
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE
    harness.advance(30)

    assert harness.group.state is ClassicGroupState.EMPTY


def test_a_new_id_that_could_not_be_stored_is_taken_back() -> None:
    harness = GroupHarness(holds_writes=True)
    joined = harness.join(group_instance_id="i")
    harness.advance(0)
    old = result(joined).member_id
    harness.sync(old, {old: b"mine"})
    harness.finish_writes()
    back = harness.join(group_instance_id="i", session_timeout_ms=20_000)
    assert not back.is_set
    harness.finish_writes(durable=False)

    assert error(back) == e.COORDINATOR_NOT_AVAILABLE
    assert harness.heartbeat(old, group_instance_id="i") == e.NONE
    assert [member.session_timeout_ms for member in harness.group.members] == [10_000]


def test_a_rebalance_overtakes_a_new_id_that_is_not_durable_yet() -> None:
    harness = GroupHarness(holds_writes=True)
    joined = harness.join(group_instance_id="i")
    harness.advance(0)
    harness.sync(result(joined).member_id, {})
    harness.finish_writes()
    back = harness.join(group_instance_id="i")
    newcomer = harness.join()
    assert result(back).generation_id == result(newcomer).generation_id == 2
    harness.finish_writes()

    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE


def test_each_of_two_quick_static_restarts_waits_for_its_member_id_to_be_durable() -> None:
    harness = GroupHarness(holds_writes=True)
    joined = harness.join(group_instance_id="i")
    harness.advance(0)
    harness.sync(result(joined).member_id, {})
    harness.finish_writes()
    first = harness.join(group_instance_id="i")
    second = harness.join(group_instance_id="i")
    assert error(first) == e.FENCED_INSTANCE_ID
    (_, first_is_stored), (_, second_is_stored) = harness.held

    first_is_stored(True)
    assert not second.is_set
    second_is_stored(True)
    assert error(second) == e.NONE


def test_a_static_member_expires_by_silence_after_its_member_id_is_durable() -> None:
    harness = GroupHarness(holds_writes=True)
    joined = harness.join(group_instance_id="i")
    harness.advance(0)
    harness.sync(result(joined).member_id, {})
    harness.finish_writes()
    harness.join(group_instance_id="i")
    harness.advance(11)
    assert len(harness.group.members) == 1, "it waits, so it is excused"
    harness.finish_writes()
    harness.advance(10)

    assert len(harness.group.members) == 0


def test_a_static_member_that_restarts_before_its_sync_must_still_ask_for_its_assignment(
    harness: GroupHarness,
) -> None:
    leader = harness.join()
    harness.join(group_instance_id="i")
    harness.advance(0)
    harness.sync(result(leader).member_id, {})
    new = result(harness.join(group_instance_id="i")).member_id
    while harness.seconds < 60:
        assert harness.heartbeat(result(leader).member_id) == harness.heartbeat(new) == e.NONE
        harness.advance(5)

    assert harness.heartbeat(new) == e.UNKNOWN_MEMBER_ID


def test_an_instance_id_of_a_pending_member_is_unknown(harness: GroupHarness) -> None:
    promised = result(harness.join(member_id_required=True)).member_id

    assert error(harness.join(promised, group_instance_id="i")) == e.UNKNOWN_MEMBER_ID


# -- Limits ----------------------------------------------------------------------------------------------------------


def test_a_full_group_takes_no_new_member() -> None:
    harness = GroupHarness(settings=Settings(limits=Limits(max_group_members_count=2)))
    leader, _ = harness.stable(2)

    assert result(harness.join()) == refused_join(e.GROUP_MAX_SIZE_REACHED)
    assert not harness.join(leader).is_set, "a member may always rejoin"


def test_an_oversized_group_rejects_the_last_member_to_rejoin() -> None:
    harness = GroupHarness()
    ids = harness.stable(3)
    harness.settings = Settings(limits=Limits(max_group_members_count=2))
    harness.restart()
    first, second = harness.join(ids[0]), harness.join(ids[1])

    assert result(harness.join(ids[2])) == refused_join(e.GROUP_MAX_SIZE_REACHED)
    assert result(first).generation_id == result(second).generation_id == 2


def test_ids_that_are_given_out_are_limited_too() -> None:
    harness = GroupHarness(settings=Settings(limits=Limits(max_group_members_count=2)))
    codes = [result(harness.join(member_id_required=True)).error_code for _ in range(3)]

    assert codes == [e.MEMBER_ID_REQUIRED, e.MEMBER_ID_REQUIRED, e.GROUP_MAX_SIZE_REACHED]


# -- Committing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (("member", None, 1), e.NONE),
        (("", None, -1), e.UNKNOWN_MEMBER_ID),  # no simple consumer while there are members
        (("member", None, -1), e.ILLEGAL_GENERATION),
        (("member", None, 0), e.ILLEGAL_GENERATION),
        (("nobody", None, 1), e.UNKNOWN_MEMBER_ID),
        (("member", "i", 1), e.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_to_a_stable_group_are_fenced(
    harness: GroupHarness, request_: tuple[str, str | None, int], expected: int
) -> None:
    (member_id,) = harness.stable(1)
    name, instance, generation = request_

    assert harness.check_commit(member_id if name == "member" else name, instance, generation) == expected


def test_the_commit_check_depends_on_the_group_state(harness: GroupHarness) -> None:
    assert harness.check_commit("", None, -1) == e.NONE, "empty: a simple consumer"
    reply = harness.join()
    assert harness.check_commit("", None, -1) == e.UNKNOWN_MEMBER_ID
    harness.advance(0)
    member_id = result(reply).member_id
    assert harness.check_commit(member_id, None, 1) == e.REBALANCE_IN_PROGRESS, "it lacks its assignment"
    harness.sync(member_id, {})
    harness.join(member_id, protocols={"range": b"new"})
    harness.join()
    harness.join(member_id)
    assert harness.check_commit(member_id, None, 1) == e.ILLEGAL_GENERATION


def test_members_can_commit_offsets_before_they_rejoin(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    harness.join(leader)

    assert harness.check_commit(follower, None, 1) == e.NONE


# -- Restart, drain, death -------------------------------------------------------------------------------------------


def test_a_stable_group_continues_after_a_restart(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    harness.advance(9)
    harness.restart()

    assert harness.heartbeat(leader) == harness.heartbeat(follower) == e.NONE
    synced = harness.sync(follower)
    assert synced.value is not None
    assert synced.value.assignment == b"1"
    assert harness.group.members.leader_id == leader
    assert harness.group.is_subscribed_to("t")
    assert not harness.group.is_subscribed_to("u")


def test_after_a_restart_every_member_has_a_full_session_timeout(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    harness.seconds += 3600  # the broker was down
    harness.restart()
    harness.advance(9)
    assert harness.heartbeat(leader) == e.NONE
    harness.advance(2)

    assert harness.heartbeat(leader) == e.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(follower) == e.UNKNOWN_MEMBER_ID


def test_generations_continue_after_a_restart_of_an_empty_group(harness: GroupHarness) -> None:
    (member_id,) = harness.stable(1)
    harness.leave(member_id)
    timestamp_ms = harness.group.state_timestamp_ms
    harness.advance(100)
    harness.restart()

    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.group.state_timestamp_ms == timestamp_ms
    reply = harness.join()
    harness.advance(0)
    assert result(reply).generation_id == 3


def test_draining_answers_waiting_joins_and_syncs(harness: GroupHarness) -> None:
    leader, follower = harness.stable(2)
    join = harness.join(leader)
    harness.group.answer_all(e.COORDINATOR_NOT_AVAILABLE)
    assert error(join) == e.COORDINATOR_NOT_AVAILABLE

    harness.join(leader), harness.join(follower)
    sync = harness.sync(follower)
    harness.group.answer_all(e.COORDINATOR_NOT_AVAILABLE)
    assert error(sync) == e.COORDINATOR_NOT_AVAILABLE


def test_a_dead_group_sends_everyone_to_find_the_coordinator_again(harness: GroupHarness) -> None:
    promised = result(harness.join(member_id_required=True)).member_id
    harness.group.die()

    assert error(harness.join()) == error(harness.join(promised)) == e.COORDINATOR_NOT_AVAILABLE
    assert error(harness.sync("m")) == e.COORDINATOR_NOT_AVAILABLE
    assert harness.heartbeat("m") == e.COORDINATOR_NOT_AVAILABLE
    assert harness.leave("m") == e.COORDINATOR_NOT_AVAILABLE
    assert harness.check_commit("", None, -1) == e.COORDINATOR_NOT_AVAILABLE
    harness.advance(100)  # the promised id's deadline is gone
    harness.group.revive()
    assert harness.group.state is ClassicGroupState.EMPTY


# -- Joins whose peer has gone ---------------------------------------------------------------------------------------


def test_a_new_member_that_abandons_its_join_is_removed(harness: GroupHarness) -> None:
    """Nobody knows its id, so it can't come back; the others had to wait until it should have joined."""
    (leader,) = harness.stable(1)
    gone = harness.join()
    harness.group.abandon_join(gone)
    assert [member.member_id for member in harness.group.members] == [leader]
    rejoined = harness.join(leader)  # as the rebalance wants it to, which had begun
    assert [member.member_id for member in result(rejoined).members] == [leader]


def test_an_existing_member_that_abandons_its_join_keeps_its_place(harness: GroupHarness) -> None:
    """It comes again by the id that it was given; its session says for how long it may."""
    leader, follower = harness.stable(2)
    waiting = harness.join(follower, protocols={"range": b"changed"})
    assert not waiting.is_set
    harness.group.abandon_join(waiting)
    assert {member.member_id for member in harness.group.members} == {leader, follower}
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_the_last_member_that_abandons_its_join_leaves_an_empty_group(harness: GroupHarness) -> None:
    reply = harness.join()
    assert not reply.is_set
    harness.group.abandon_join(reply)
    assert (len(harness.group.members), harness.group.state) == (0, ClassicGroupState.EMPTY)
    harness.group.abandon_join(reply)
    assert harness.group.state is ClassicGroupState.EMPTY
