"""Members of the consumer protocol: who is let in, what each is told, and what is written."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.groups.common import context as limits
from kafscale.cluster.groups.common.context import GroupOverrides, GroupStateBytes, TimerKey, TimerKind, group_times
from kafscale.cluster.groups.common.log_records import CoordinatorRecord
from kafscale.cluster.groups.consumer.members import MemberState
from kafscale.cluster.groups.consumer.state import ConsumerGroupState, target_record
from kafscale.config import CoordinatorSettings, Limits, Settings
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from kafscale.wire.messages.consumer_groups import DescribedAssignment
from tests.cluster.groups.consumer_groups import (
    GROUP_ID,
    ConsumerClient,
    ConsumerGroupHarness,
    named,
    partitions,
    settle,
    topic_id,
)


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    made = ConsumerGroupHarness()
    made.put_topics(foo=6, bar=3)
    return made


def client(harness: ConsumerGroupHarness, member_id: str, *topics: str, **said: object) -> ConsumerClient:
    return ConsumerClient(harness=harness, member_id=member_id, topics=topics or ("foo", "bar"), **said)


def test_the_first_member_gets_everything_at_once(harness: ConsumerGroupHarness) -> None:
    reply = client(harness, "a").beat()
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (e.NONE, "a", 1)
    assert reply.heartbeat_interval_ms == 5000
    assert named(reply.assignment or {}) == {"foo": set(range(6)), "bar": set(range(3))}
    assert [type(record.key) for record in harness.log] == [
        ConsumerGroupMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupCurrentMemberAssignmentKey,
    ]
    assert harness.group.state.state is ConsumerGroupState.STABLE


def test_a_member_that_has_nothing_to_say_causes_no_record(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a")
    only.beat()
    written_count = len(harness.log)
    reply = only.beat(is_full=False)
    assert (reply.error_code, reply.assignment) == (e.NONE, None)
    assert len(harness.log) == written_count
    assert only.beat(is_full=True).assignment == only.owned, "a full request is answered in full"
    assert len(harness.log) == written_count


def test_partitions_move_only_after_they_were_given_up(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo"), client(harness, "b", "foo")
    first.beat()
    assert second.beat().assignment == {}
    assert harness.group.state.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    assert harness.group.state.state is ConsumerGroupState.RECONCILING
    had = first.owned
    reply = first.beat(is_full=False)
    assert (reply.member_epoch, named(reply.assignment or {})) == (1, {"foo": {0, 1, 2}})
    assert second.beat(is_full=False).assignment is None, "the first one may still read them"
    assert first.beat(is_full=False, owned=had).member_epoch == 1, "it says that it still has them"
    assert first.beat(is_full=False).member_epoch == 2
    assert named(second.beat(is_full=False).assignment or {}) == {"foo": {3, 4, 5}}
    assert harness.group.state.state is ConsumerGroupState.STABLE


def test_a_member_that_does_not_give_up_in_time_is_removed(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo", rebalance_timeout_ms=12_000), client(harness, "b", "foo")
    first.beat()
    second.beat()
    had = first.owned
    for _ in range(3):
        first.beat(is_full=False, owned=had)
        harness.advance(5000)
    assert list(harness.group.state.members) == ["b"]
    assert first.beat(is_full=False).error_code == e.UNKNOWN_MEMBER_ID
    assert named(second.beat(is_full=False).assignment or {}) == {"foo": set(range(6))}


def test_a_revocation_timeout_ends_with_the_epoch_of_the_revocation(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo", rebalance_timeout_ms=40_000), client(harness, "b", "foo")
    first.beat()
    second.beat()
    first.beat(is_full=False)
    first.beat(is_full=False)
    assert TimerKey(TimerKind.REBALANCE, "a") not in harness.deadlines
    for _ in range(12):
        harness.advance(5000)
        settle(first, second)
    assert set(harness.group.state.members) == {"a", "b"}


def test_a_silent_member_is_removed_after_its_session(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo"), client(harness, "b", "foo")
    first.beat()
    second.beat()
    settle(first, second)
    harness.advance(44_000)
    second.beat(is_full=False)
    harness.advance(1_000)
    assert list(harness.group.state.members) == ["b"]
    assert harness.group.state.epoch == 3
    assert harness.group.state.state is ConsumerGroupState.ASSIGNING
    second.beat(is_full=False)
    assert named(second.owned) == {"foo": set(range(6))}


@pytest.mark.parametrize(
    ("changed", "error_code"),
    [
        ({"member_id": ""}, e.INVALID_REQUEST),
        ({"instance_id": " "}, e.INVALID_REQUEST),
        ({"rack_id": ""}, e.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, e.INVALID_REQUEST),
        ({"owned": None}, e.INVALID_REQUEST),
        ({"owned": partitions(foo={1})}, e.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, e.INVALID_REQUEST),
        ({"member_epoch": -2}, e.INVALID_REQUEST),
        ({"member_epoch": -3}, e.INVALID_REQUEST),
        ({"member_epoch": -1}, e.UNKNOWN_MEMBER_ID),
        ({"server_assignor": "sticky"}, e.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(", "subscribed_topic_names": None}, e.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_names": ("x" * limits.MEMBER_METADATA_MAX_BYTES,)}, e.INVALID_REQUEST),
    ],
)
def test_a_wrong_request_changes_nothing(
    harness: ConsumerGroupHarness, changed: dict[str, object], error_code: int
) -> None:
    client(harness, "other").beat()
    before = len(harness.log), harness.group.describe()
    reply = harness.took(harness.group.consumer_heartbeat(client(harness, "a").request(**changed)))
    assert reply.error_code == error_code
    assert reply.error_message
    assert (len(harness.log), harness.group.describe()) == before


def test_an_old_client_gets_its_member_id(harness: ConsumerGroupHarness) -> None:
    reply = client(harness, "").beat(chooses_member_id=False)
    assert (reply.error_code, reply.member_id) == (e.NONE, "made-1")


def test_a_member_at_another_epoch_is_fenced(harness: ConsumerGroupHarness) -> None:
    """The last epoch counts as long as the member has no more than it has: the answer may have been lost."""
    first, second = client(harness, "a", "foo"), client(harness, "b", "foo")
    first.beat()
    second.beat()
    settle(first, second)
    assert (first.epoch, second.epoch) == (2, 2)
    state = harness.group.state.members["a"]
    assert state.previous_member_epoch == 1
    for epoch, owned, error_code in [
        (3, first.owned, e.FENCED_MEMBER_EPOCH),
        (1, partitions(foo=range(6)), e.FENCED_MEMBER_EPOCH),
        (1, None, e.FENCED_MEMBER_EPOCH),
        (1, first.owned, e.NONE),
        (1, {}, e.NONE),
        (2, None, e.NONE),
    ]:
        request = first.request(is_full=epoch == 0, member_epoch=epoch, owned=owned)
        assert harness.heartbeat(request).error_code == error_code, (epoch, owned)


def test_a_fenced_member_was_not_let_in_again_before_its_session_was_over(harness: ConsumerGroupHarness) -> None:
    """Of seed 41475, and KAFKA-19233: an answer was lost that raised its epoch and told it to give up more."""
    clients = [client(harness, name, "foo") for name in ("a", "b", "c")]
    first, second, third = clients
    first.beat()
    second.beat()
    assert first.beat(is_full=False).member_epoch == 1
    third.beat()
    lost, had = first.request(is_full=False), first.owned
    assert harness.heartbeat(lost).member_epoch == 2
    assert first.beat(owned=had).error_code == e.FENCED_MEMBER_EPOCH
    assert first.beat().error_code == e.NONE
    settle(*clients)
    assert sorted(len(each.owned[topic_id("foo")]) for each in clients) == [2, 2, 2]


def test_a_removed_member_is_refused_unless_the_member_rejoins(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a"), client(harness, "b")
    first.beat()
    second.beat()
    epoch = first.epoch
    first.leave()
    assert first.beat(is_full=False, member_epoch=epoch).error_code == e.UNKNOWN_MEMBER_ID
    assert first.beat().error_code == e.NONE


def test_a_group_refuses_members_beyond_its_maximum_size() -> None:
    harness = ConsumerGroupHarness(settings=Settings(limits=Limits(group_consumer_max_size_count=2)))
    harness.put_topics(foo=6)
    clients = [client(harness, name, "foo") for name in ("a", "b", "c")]
    assert [each.beat().error_code for each in clients] == [e.NONE, e.NONE, e.GROUP_MAX_SIZE_REACHED]
    assert clients[0].beat(is_full=False).error_code == e.NONE
    clients[0].leave()
    assert clients[2].beat().error_code == e.NONE


def test_groups_refuse_members_beyond_their_shared_memory_limit() -> None:
    harness = ConsumerGroupHarness(state_bytes=GroupStateBytes(max_bytes=4000))
    codes = [client(harness, f"m{each}", "foo" * 100).beat().error_code for each in range(6)]
    assert codes[0] == e.NONE
    assert codes[-1] == e.COORDINATOR_NOT_AVAILABLE
    assert harness.state_bytes.used_bytes == harness.group.state.counted_bytes > 0
    harness.group.retire()
    assert harness.state_bytes.used_bytes == 0


# Topics.


def test_new_partitions_are_shared_out(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo"), client(harness, "b", "foo")
    first.beat()
    second.beat()
    settle(first, second)
    harness.put_topics(foo=8)
    settle(first, second)
    assert sorted(len(each.owned[topic_id("foo")]) for each in (first, second)) == [4, 4]
    assert harness.group.state.epoch == 3


def test_a_topic_without_subscribers_does_not_change_the_group_epoch(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo")
    only.beat()
    harness.put_topics(other=5)
    only.beat(is_full=False)
    assert (only.epoch, harness.last.records) == (1, [])


def test_a_subscribed_topic_can_be_created_and_deleted_later(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "later")
    assert only.beat().assignment == {}
    harness.put_topics(later=2)
    settle(only)
    assert named(only.owned) == {"later": {0, 1}}
    harness.remove_topics("later")
    settle(only)
    assert only.owned == {}
    assert harness.group.state.metadata_hash == 0


def test_a_changed_subscription_is_reconciled(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo", "bar"), client(harness, "b", "foo", "bar")
    first.beat()
    second.beat()
    settle(first, second)
    first.topics = ("bar",)
    first.beat()
    settle(first, second)
    assert named(second.owned) == {"foo": set(range(6))}
    assert named(first.owned) == {"bar": {0, 1, 2}}
    assert harness.group.is_subscribed_to("foo")
    second.leave()
    assert not harness.group.is_subscribed_to("foo")


# Assignors.


def test_most_members_decide_on_the_assignor(harness: ConsumerGroupHarness) -> None:
    clients = [
        client(harness, name, server_assignor=asked)
        for name, asked in zip("abc", (None, "range", "range"), strict=True)
    ]
    clients[0].beat()
    assert harness.group.describe().assignor_name == "uniform"
    for each in clients[1:]:
        each.beat()
    assert harness.group.describe().assignor_name == "range"
    settle(*clients)
    assert [named(each.owned) for each in clients] == [
        {"foo": {0, 1}, "bar": {0}},
        {"foo": {2, 3}, "bar": {1}},
        {"foo": {4, 5}, "bar": {2}},
    ]
    clients[1].server_assignor = "uniform"
    clients[1].beat()
    assert harness.group.describe().assignor_name == "uniform", "where it ties, the one configured first"


# Static members.


def test_a_static_member_returns_to_its_former_assignment(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", instance_id="i"), client(harness, "b")
    first.beat()
    second.beat()
    settle(first, second)
    had, epoch = first.owned, harness.group.state.epoch
    assert first.leave(-2).member_epoch == -2
    assert harness.group.state.members["a"].member_epoch == -2
    assert second.beat(is_full=False).assignment is None
    first.member_id = "a2"
    reply = first.beat()
    assert (reply.error_code, reply.assignment, reply.member_epoch) == (e.NONE, had, epoch)
    assert set(harness.group.state.members) == {"a2", "b"}
    assert harness.group.state.epoch == epoch, "nobody else has to do anything"


def test_partitions_of_an_absent_static_member_are_held_until_its_session_ends(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo", instance_id="i"), client(harness, "b", "foo")
    first.beat()
    first.leave(-2)
    assert second.beat().assignment == {}
    settle(second)
    assert second.owned == {}
    harness.advance(44_000)
    settle(second)
    harness.advance(1_000)
    settle(second)
    assert named(second.owned) == {"foo": set(range(6))}


def test_a_static_member_that_is_away_need_not_give_up_in_time(harness: ConsumerGroupHarness) -> None:
    first = client(harness, "a", "foo", instance_id="i", rebalance_timeout_ms=10_000)
    second = client(harness, "b", "foo")
    first.beat()
    second.beat()
    first.beat(is_full=False, owned=first.owned)
    first.leave(-2)
    harness.advance(44_999)
    assert "a" in harness.group.state.members


def test_a_static_member_that_stays_away_is_removed(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", instance_id="i"), client(harness, "b")
    first.beat()
    second.beat()
    settle(first, second)
    first.leave(-2)
    for _ in range(9):
        harness.advance(5000)
        second.beat(is_full=False)
    assert list(harness.group.state.members) == ["b"]
    assert harness.group.state.static == {}


def test_an_instance_id_that_is_in_use_is_not_given_away(harness: ConsumerGroupHarness) -> None:
    client(harness, "a", instance_id="i").beat()
    assert client(harness, "b", instance_id="i").beat().error_code == e.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_repeats_an_unanswered_join_is_accepted(
    harness: ConsumerGroupHarness,
) -> None:
    """The broker stopped before it answered; Java's consumer ended, and its partitions waited for the session's end."""
    first, second = client(harness, "a", "foo", instance_id="i"), client(harness, "b", "foo")
    first.beat()
    second.beat()
    settle(first, second)
    had, epoch = first.owned, harness.group.state.epoch
    first.epoch, first.owned = 0, {}
    reply = first.beat()
    assert (reply.error_code, reply.assignment, reply.member_epoch) == (e.NONE, had, epoch)
    assert harness.group.state.epoch == epoch, "nobody else has to do anything"
    assert second.beat(is_full=False).assignment is None


def test_a_static_member_that_was_fenced_joins_again_under_its_id(harness: ConsumerGroupHarness) -> None:
    first = client(harness, "a", "foo", instance_id="i")
    first.beat()
    assert first.beat(is_full=False, member_epoch=first.epoch + 1).error_code == e.FENCED_MEMBER_EPOCH
    first.epoch, first.owned = 0, {}
    assert first.beat().error_code == e.NONE
    settle(first)
    assert named(first.owned) == {"foo": set(range(6))}


def test_a_static_member_that_was_replaced_is_fenced(harness: ConsumerGroupHarness) -> None:
    first = client(harness, "a", instance_id="i")
    first.beat()
    epoch = first.epoch
    first.leave(-2)
    client(harness, "a2", instance_id="i").beat()
    for changed in (epoch, -1, -2):
        assert first.beat(is_full=False, member_epoch=changed).error_code == e.FENCED_INSTANCE_ID
    assert first.beat(is_full=False, member_epoch=3, instance_id="j").error_code == e.UNKNOWN_MEMBER_ID
    assert list(harness.group.state.members) == ["a2"]


def test_a_static_member_can_leave_permanently(harness: ConsumerGroupHarness) -> None:
    first = client(harness, "a", instance_id="i")
    first.beat()
    assert first.leave(-1).error_code == e.NONE
    assert harness.group.state.state is ConsumerGroupState.EMPTY
    assert client(harness, "b", instance_id="i").beat().error_code == e.NONE


# Restarts.


def test_a_consumer_group_continues_after_a_restart(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a"), client(harness, "b")
    first.beat()
    second.beat()
    settle(first, second)
    epoch, had = harness.group.state.epoch, first.owned
    harness.restart()
    settle(first, second)
    assert (harness.group.state.epoch, first.owned) == (epoch, had)
    harness.advance(45_000)
    assert not harness.group.state.members, "each had a session from the restart on, or from its heartbeat"


def test_a_member_that_gives_up_partitions_gets_its_time_again_after_a_restart(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo", rebalance_timeout_ms=10_000), client(harness, "b", "foo")
    first.beat()
    second.beat()
    first.beat(is_full=False, owned=first.owned)
    harness.restart()
    harness.advance(9_999)
    assert "a" in harness.group.state.members
    harness.advance(1)
    assert "a" not in harness.group.state.members


def test_a_hole_in_the_target_assignment_is_filled_after_a_restart(harness: ConsumerGroupHarness) -> None:
    """A static member is replaced by six records; of the first three only, and no more, nobody has its partitions."""
    first, second = client(harness, "a", instance_id="i"), client(harness, "b")
    first.beat()
    second.beat()
    settle(first, second)
    first.leave(-2)
    written_count = len(harness.log)
    client(harness, "a2", instance_id="i").beat()
    harness.restart(written_count + 3)
    settle(second)
    assert named(second.owned) == {"foo": set(range(6)), "bar": set(range(3))}


def test_a_partition_given_up_by_another_member_keeps_its_owner_on_reload(harness: ConsumerGroupHarness) -> None:
    """On the way through it another member had the same partition, and gave it up."""
    client(harness, "a", "foo").beat()
    has = harness.group.state.members["a"]
    other = attrs.evolve(has, member_id="b")
    harness.log += [other.metadata_record(GROUP_ID), other.assignment_record(GROUP_ID)]
    harness.log.append(other.without_assignment().assignment_record(GROUP_ID))
    harness.restart()
    assert harness.group.state.owner(topic_id("foo"), 0) == "a"


def test_half_a_target_assignment_is_made_whole_after_a_restart(harness: ConsumerGroupHarness) -> None:
    """What one member is to get was written, and what another is to give up for that was not."""
    harness.put_topics(four=4)
    first, second = client(harness, "a", "four"), client(harness, "b", "four")
    first.beat()
    second.beat()
    settle(first, second)
    assert [named(each.owned)["four"] for each in (first, second)] == [{0, 1}, {2, 3}]
    state = harness.group.state
    epoch = ConsumerGroupMetadataValue(epoch=state.epoch + 1, metadata_hash=state.metadata_hash)
    harness.log.append(CoordinatorRecord(ConsumerGroupMetadataKey(GROUP_ID), epoch))
    harness.log.append(target_record(GROUP_ID, "a", partitions(four={2})))
    harness.restart()
    settle(first, second)
    assert named(first.owned)["four"] | named(second.owned)["four"] == {0, 1, 2, 3}
    assert harness.group.state.state is ConsumerGroupState.STABLE


def test_partition_metadata_records_of_kafka_4_0_are_deleted(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a")
    only.beat()
    key = ConsumerGroupPartitionMetadataKey(GROUP_ID)
    harness.log.append(CoordinatorRecord(key, ConsumerGroupPartitionMetadataValue()))
    harness.restart()
    only.beat(is_full=False)
    assert [record.value for record in harness.log if record.key == key] == [
        ConsumerGroupPartitionMetadataValue(),
        None,
    ]
    assert harness.group.state.epoch == 1


def test_an_unreadable_member_state_fences_members_that_own_partitions(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a")
    only.beat()
    last = harness.log[-1]
    harness.log[-1] = CoordinatorRecord(last.key, attrs.evolve(last.value, state=9))
    harness.restart()
    assert harness.heartbeat(only.request(is_full=False)).error_code == e.FENCED_MEMBER_EPOCH
    assert harness.heartbeat(only.request(is_full=False, owned={})).error_code == e.NONE


# Administration.


def test_the_records_of_an_empty_group_are_deleted(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", regex="f.*")
    only.beat()
    harness.find_topics()
    with pytest.raises(AssertionError):
        harness.group.die()
    only.leave()
    assert harness.group.is_empty
    harness.log += harness.group.die()
    assert harness.group.state.state is ConsumerGroupState.DEAD
    left = {record.key: record.value for record in harness.log}
    assert not any(left.values()), "something is left in the log"
    assert harness.log[-1].key == ConsumerGroupMetadataKey(GROUP_ID)
    assert not harness.group.state.exists
    assert harness.context.state_bytes.used_bytes == 0


def shown(assignment: DescribedAssignment) -> list[tuple[str, list[int]]]:
    return [(of_topic.topic_name, of_topic.partitions) for of_topic in assignment.topic_partitions]


def test_a_group_description_has_current_and_target_assignments(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo", instance_id="i", server_assignor="range"), client(harness, "b", "foo")
    first.beat(rack_id="rack")
    second.beat()
    described = harness.group.describe()
    assert (described.group_id, described.group_epoch, described.assignment_epoch) == (GROUP_ID, 2, 2)
    assert (described.group_state, described.assignor_name) == ("Reconciling", "range")
    member = described.members[0]
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "rack", 1)
    assert (member.client_id, member.client_host, member.member_type) == ("client", "/127.0.0.1", 1)
    assert member.subscribed_topic_names == ["foo"]
    assert shown(member.assignment) == [("foo", [0, 1, 2, 3, 4, 5])]
    assert shown(member.target_assignment) == [("foo", [0, 1, 2])]
    harness.remove_topics("foo")
    assert shown(harness.group.describe().members[0].assignment) == []


def test_group_times_that_would_drop_punctual_members_are_refused() -> None:
    settings = CoordinatorSettings()
    with pytest.raises(ValueError, match="session timeout must be between"):
        group_times(settings, GroupOverrides(session_timeout_ms=44_999))
    with pytest.raises(ValueError, match="heartbeat interval must be between"):
        group_times(settings, GroupOverrides(heartbeat_interval_ms=15_001))
    short = CoordinatorSettings(group_consumer_min_session_timeout_ms=5_000)
    with pytest.raises(ValueError, match="would be dropped"):
        group_times(short, GroupOverrides(session_timeout_ms=5_000))


def test_group_overrides_replace_the_session_and_heartbeat_times(harness: ConsumerGroupHarness) -> None:
    overrides = GroupOverrides(session_timeout_ms=60_000, heartbeat_interval_ms=10_000)
    harness.overrides[GROUP_ID] = overrides
    assert client(harness, "a").beat().heartbeat_interval_ms == 10_000
    harness.restart()
    harness.advance(59_999)
    assert harness.group.state.members
    harness.advance(1)
    assert not harness.group.state.members
    with pytest.raises(ValueError, match="session timeout must be between"):
        group_times(harness.settings.coordinator, attrs.evolve(overrides, session_timeout_ms=60_001))


def test_an_epoch_that_is_written_comes_first(harness: ConsumerGroupHarness) -> None:
    """Whatever is lost behind it, the group knows that its target assignment is out of date."""
    first, second = client(harness, "a"), client(harness, "b", instance_id="i")
    for act in (first.beat, second.beat, lambda: second.leave(-2), second.beat, first.leave):
        act()
        keys = [type(record.key) for record in harness.last.records]
        assert ConsumerGroupMetadataKey not in keys[1:]
    value = next(record.value for record in harness.last.records)
    assert isinstance(value, ConsumerGroupMetadataValue)
    assert value.epoch == 3
