"""Members of the classic protocol in a consumer group, the way there and back, and who may commit offsets."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.groups.common.context import GroupMemberIdentity, Sync, TimerKey, TimerKind
from kafscale.cluster.groups.consumer.members import MemberState
from kafscale.cluster.groups.consumer.migration import read_assignment, read_subscription, write_assignment
from kafscale.cluster.groups.consumer.state import ConsumerGroupState
from kafscale.config import CoordinatorSettings, Limits, Settings
from kafscale.config.values import GroupMigrationPolicy
from kafscale.errors import DecodeError
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, GroupMetadataValue, MemberMetadata
from kafscale.wire.messages.groups import JoinGroupResponse, MemberIdentity
from tests.cluster.groups.consumer_groups import (
    ConsumerClient,
    ConsumerGroupHarness,
    joins,
    named,
    partitions,
    settle,
    subscription,
)


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    made = ConsumerGroupHarness()
    made.put_topics(foo=6, bar=3)
    return made


def modern(harness: ConsumerGroupHarness, member_id: str = "modern", **said: object) -> ConsumerClient:
    return ConsumerClient(harness=harness, member_id=member_id, topics=("foo",), **said)


def classic_record(
    harness: ConsumerGroupHarness, *assigned: set[int], protocol_type: str = "consumer"
) -> GroupMetadataValue:
    """A classic group whose members c0, c1 … have these partitions of foo; c0 is static."""
    metadata = subscription("foo")
    return GroupMetadataValue(
        generation_id=7,
        protocol_type=protocol_type,
        protocol_name="range",
        leader_id="c0",
        state_timestamp_ms=0,
        members=[
            MemberMetadata(
                member_id=f"c{number}",
                group_instance_id="static-0" if number == 0 else None,
                client_id="client",
                client_host="/127.0.0.1",
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                subscription=metadata,
                assignment=write_assignment(partitions(foo=each), harness.context.topics, metadata),
            )
            for number, each in enumerate(assigned)
        ],
    )


def sync(harness: ConsumerGroupHarness, joined: JoinGroupResponse, **changed: object) -> dict[str, set[int]]:
    """Ask for an assignment after a join; the partitions, or the error code as a failure."""
    identity = GroupMemberIdentity(member_id=joined.member_id, generation_id=joined.generation_id)
    request = attrs.evolve(Sync(identity=identity, protocol_type="consumer", protocol_name="range"), **changed)
    result = harness.took(harness.group.sync(request))
    assert result.error_code == e.NONE, result.error_code
    return named(read_assignment(result.assignment, harness.context.topics))


def beat(harness: ConsumerGroupHarness, member_id: str, generation_id: int, instance_id: str | None = None) -> int:
    identity = GroupMemberIdentity(member_id=member_id, generation_id=generation_id, group_instance_id=instance_id)
    return harness.group.heartbeat(identity)


def join(harness: ConsumerGroupHarness, *said: str, **more: object) -> JoinGroupResponse:
    return harness.took(harness.group.join(joins(*said, **more)))


def test_a_classic_member_joins_and_gets_its_share(harness: ConsumerGroupHarness) -> None:
    first = modern(harness)
    first.beat()
    asked = join(harness, "", "foo", member_id_required=True)
    assert asked.error_code == e.MEMBER_ID_REQUIRED
    joined = join(harness, asked.member_id, "foo", member_id_required=True)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (e.NONE, 2, "range")
    assert (joined.leader, joined.members) == ("", []), "nobody leads"
    assert sync(harness, joined) == {}
    assert harness.group.describe().members[1].member_type == 0
    settle(first)
    assert beat(harness, joined.member_id, 2) == e.REBALANCE_IN_PROGRESS, "there is something for it now"
    assert sync(harness, join(harness, joined.member_id, "foo")) == {"foo": {3, 4, 5}}
    assert beat(harness, joined.member_id, 2) == e.NONE
    assert harness.group.state.state is ConsumerGroupState.STABLE


def test_a_classic_member_must_rejoin_to_revoke_and_to_receive_partitions(harness: ConsumerGroupHarness) -> None:
    """A cooperative one is told twice: to give partitions up, and when it has."""
    first, second = modern(harness, "m1"), modern(harness, "m2")
    first.beat()
    joined = join(harness, "", "foo")
    settle(first)
    has = sync(harness, join(harness, joined.member_id, "foo"))
    assert beat(harness, joined.member_id, 2) == e.NONE
    second.beat()
    assert beat(harness, joined.member_id, 2) == e.REBALANCE_IN_PROGRESS
    again = join(harness, joined.member_id, "foo", owned=has)
    assert again.generation_id == 2, "it has something to give up at its epoch"
    assert harness.group.state.members[joined.member_id].state is MemberState.UNREVOKED_PARTITIONS
    left = sync(harness, again)
    assert left["foo"] < has["foo"]
    assert beat(harness, joined.member_id, 2) == e.REBALANCE_IN_PROGRESS
    assert join(harness, joined.member_id, "foo", owned=left).generation_id == 3
    settle(first, second)
    assert named(second.owned)["foo"] <= has["foo"] | {0, 1, 2}


def test_sync_answers_rebalance_in_progress_after_a_new_epoch(harness: ConsumerGroupHarness) -> None:
    modern(harness).beat()
    joined = join(harness, "", "foo")
    modern(harness, "another").beat()
    identity = GroupMemberIdentity(member_id=joined.member_id, generation_id=2)
    result = harness.took(harness.group.sync(Sync(identity=identity)))
    assert result.error_code == e.REBALANCE_IN_PROGRESS
    assert TimerKey(TimerKind.JOIN, joined.member_id) in harness.deadlines


@pytest.mark.parametrize("kind", [TimerKind.SYNC, TimerKind.JOIN, TimerKind.SESSION])
def test_a_classic_member_is_removed_when_a_timer_expires(harness: ConsumerGroupHarness, kind: TimerKind) -> None:
    first = modern(harness)
    first.beat()
    joined = join(harness, "", "foo")
    generation_id = joined.generation_id
    if kind is not TimerKind.SYNC:
        sync(harness, joined)
    if kind is TimerKind.JOIN:
        modern(harness, "another").beat()
    for second in range(1, 13):
        harness.advance(4_999)
        first.beat(is_full=False, owned={})
        if kind is not TimerKind.SESSION:
            beat(harness, joined.member_id, generation_id)
        was_there = joined.member_id in harness.group.state.members
        assert was_there == (second < (10 if kind is TimerKind.SESSION else 13)), second
    harness.advance(5_100 if kind is TimerKind.JOIN else 100)
    assert joined.member_id not in harness.group.state.members


@pytest.mark.parametrize(
    ("changed", "error_code"),
    [
        ({"protocol_type": "connect"}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (ClassicProtocol("sticky", subscription("foo")),)}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (ClassicProtocol("range", b"\x00"),)}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (ClassicProtocol("range", b"\xff\xff"),)}, e.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody", "group_instance_id": "nobody"}, e.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "group_instance_id": "i"}, e.FENCED_INSTANCE_ID),
    ],
)
def test_a_wrong_join_changes_nothing(
    harness: ConsumerGroupHarness, changed: dict[str, object], error_code: int
) -> None:
    modern(harness, instance_id="i").beat()
    join(harness, "", "foo")
    before = harness.group.describe()
    request = attrs.evolve(joins("", "foo"), **changed)
    assert harness.took(harness.group.join(request)).error_code == error_code
    assert harness.group.describe() == before


def test_a_full_group_takes_no_classic_member_either() -> None:
    harness = ConsumerGroupHarness(settings=Settings(limits=Limits(group_consumer_max_size_count=1)))
    harness.put_topics(foo=6)
    modern(harness).beat()
    assert join(harness, "", "foo").error_code == e.GROUP_MAX_SIZE_REACHED


def test_classic_requests_of_others_are_refused(harness: ConsumerGroupHarness) -> None:
    modern(harness).beat()
    joined = join(harness, "", "foo", instance_id="i")
    assert beat(harness, "modern", 1) == e.UNKNOWN_MEMBER_ID, "it does not use the classic protocol"
    assert beat(harness, "nobody", 1) == e.UNKNOWN_MEMBER_ID
    assert beat(harness, joined.member_id, 1) == e.ILLEGAL_GENERATION
    assert beat(harness, "other", 2, "i") == e.FENCED_INSTANCE_ID
    assert beat(harness, joined.member_id, 2, "i") == e.NONE
    identity = GroupMemberIdentity(member_id=joined.member_id, generation_id=2)
    for wrong in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        request = attrs.evolve(Sync(identity=identity), **wrong)
        result = harness.took(harness.group.sync(request))
        assert result.error_code == e.INCONSISTENT_GROUP_PROTOCOL


def test_several_leave_at_once(harness: ConsumerGroupHarness) -> None:
    """An administrator names static members by their instance ids, of either protocol."""
    modern(harness).beat()
    modern(harness, "static", instance_id="i").beat()
    joined = join(harness, "", "foo", instance_id="j")
    epoch = harness.group.state.epoch
    leavers = [
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="other", group_instance_id="j"),
        MemberIdentity(member_id=joined.member_id),
        MemberIdentity(member_id=joined.member_id),
        MemberIdentity(member_id="nobody"),
        MemberIdentity(member_id="", group_instance_id="nobody"),
    ]
    codes = harness.group.leave(leavers)
    assert codes == [e.NONE, e.FENCED_INSTANCE_ID, e.NONE, e.NONE, e.UNKNOWN_MEMBER_ID, e.UNKNOWN_MEMBER_ID]
    assert list(harness.group.state.members) == ["modern"]
    assert harness.group.state.epoch == epoch + 1
    assert harness.group.leave([leavers[-1]]) == [e.UNKNOWN_MEMBER_ID]
    assert harness.group.state.epoch == epoch + 1, "nobody has left"


# Upgrade.


def test_a_classic_group_becomes_a_consumer_group(harness: ConsumerGroupHarness) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1, 2}, {3, 4, 5}))
    first = modern(harness)
    reply = first.beat()
    assert (reply.error_code, reply.member_epoch, reply.assignment) == (e.NONE, 8, {})
    members = harness.group.state.members
    assert [named(members[each].assigned) for each in ("c0", "c1")] == [{"foo": {0, 1, 2}}, {"foo": {3, 4, 5}}]
    assert members["c0"].instance_id == "static-0"
    assert beat(harness, "c0", 7, "static-0") == e.REBALANCE_IN_PROGRESS
    for member_id, has in (("c0", {0, 1, 2}), ("c1", {3, 4, 5})):
        instance_id = "static-0" if member_id == "c0" else None
        left = sync(harness, join(harness, member_id, "foo", owned={"foo": has}, instance_id=instance_id))
        join(harness, member_id, "foo", owned=left, instance_id=instance_id)
    settle(first)
    assert len(named(first.owned)["foo"]) == 2
    assert harness.group.state.state is ConsumerGroupState.STABLE
    harness.restart()
    assert harness.group.state.epoch == 8


def test_upgraded_members_have_their_own_session_timeouts(harness: ConsumerGroupHarness) -> None:
    record = classic_record(harness, {0}, {1})
    record.members = [attrs.evolve(each, session_timeout_ms=6000 + n) for n, each in enumerate(record.members)]
    harness.classic = harness.made_classic(record)
    modern(harness).beat()
    harness.advance(6000)
    assert set(harness.group.state.members) == {"c1", "modern"}


@pytest.mark.parametrize("policy", [GroupMigrationPolicy.DOWNGRADE, GroupMigrationPolicy.DISABLED])
def test_no_upgrade_happens_where_the_policy_forbids(policy: GroupMigrationPolicy) -> None:
    harness = ConsumerGroupHarness(
        settings=Settings(coordinator=CoordinatorSettings(group_consumer_migration_policy=policy))
    )
    harness.put_topics(foo=6)
    harness.classic = harness.made_classic(classic_record(harness, {0}))
    reply = modern(harness).beat()
    assert (reply.error_code, harness.log) == (e.GROUP_ID_NOT_FOUND, [])
    assert harness.context.state_bytes.used_bytes == 0


def test_a_group_with_unusable_metadata_is_not_upgraded(harness: ConsumerGroupHarness) -> None:
    record = classic_record(harness, {0})
    of_user = attrs.evolve(record.members[0], assignment=bytes(2 + 4) + (1).to_bytes(4) + b"x")
    garbled = attrs.evolve(record.members[0], assignment=b"\x00\x01\x02")
    for wrong in (
        classic_record(harness, {0}, protocol_type="connect"),
        attrs.evolve(record, members=[of_user]),
        attrs.evolve(record, members=[garbled]),
    ):
        harness.classic = classic = harness.made_classic(wrong)
        assert modern(harness).beat().error_code == e.GROUP_ID_NOT_FOUND
        assert harness.classic is classic
    harness.classic = classic = harness.made_classic(record)
    request = modern(harness).request(subscribed_topic_regex="(")
    assert harness.heartbeat(request).error_code == e.INVALID_REGULAR_EXPRESSION
    assert harness.classic is classic
    assert harness.context.state_bytes.used_bytes == 0


def test_a_partition_that_a_leader_assigned_twice_is_with_one_member_then(harness: ConsumerGroupHarness) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1}, {1, 2}))
    modern(harness).beat()
    members = harness.group.state.members
    assert [named(members[each].assigned) for each in ("c0", "c1")] == [{"foo": {0, 1}}, {"foo": {2}}]


def test_a_static_classic_member_can_return_with_the_consumer_protocol(harness: ConsumerGroupHarness) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1, 2}, {3, 4, 5}))
    first = modern(harness, instance_id="static-0")
    assert named(first.beat().assignment or {}) == {"foo": {0, 1, 2}}
    assert set(harness.group.state.members) == {"modern", "c1"}


# Downgrade.


def test_with_the_last_modern_member_the_group_becomes_a_classic_one(harness: ConsumerGroupHarness) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1, 2}, {3, 4, 5}))
    first = modern(harness)
    first.beat()
    first.leave()
    outcome = harness.last
    assert outcome.downgrade is not None
    assert outcome.downgrade.rebalances
    group = outcome.downgrade.group
    assert (group.generation_id, group.protocol_type, group.protocol_name, group.leader_id) == (
        8,
        "consumer",
        "range",
        "c0",
    )
    assert [member.member_id for member in group.members] == ["c0", "c1"]
    assert group.members[0].group_instance_id == "static-0"
    has = [named(read_assignment(member.assignment, harness.context.topics)) for member in group.members]
    assert [len(each["foo"]) for each in has] == [2, 2]
    assert not harness.group.state.exists
    assert harness.context.state_bytes.used_bytes == 0
    assert not any({record.key: record.value for record in harness.log}.values())
    assert not harness.deadlines


def test_a_group_downgrades_when_its_last_consumer_member_times_out(harness: ConsumerGroupHarness) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1, 2}, {3, 4, 5}))
    modern(harness).beat()
    harness.advance(40_000)
    for member_id in ("c0", "c1"):
        beat(harness, member_id, 7)
    harness.advance(5_000)
    assert harness.classic is not None
    assert len(harness.classic.members) == 2


@pytest.mark.parametrize(
    "settings",
    [
        Settings(coordinator=CoordinatorSettings(group_consumer_migration_policy=GroupMigrationPolicy.UPGRADE)),
        Settings(limits=Limits(max_group_members_count=1)),
    ],
)
def test_no_downgrade_happens_where_forbidden_or_too_large(settings: Settings) -> None:
    harness = ConsumerGroupHarness(settings=settings)
    harness.put_topics(foo=6)
    harness.classic = harness.made_classic(classic_record(harness, {0}, {1}))
    first = modern(harness)
    first.beat()
    first.leave()
    assert harness.last.downgrade is None
    assert set(harness.group.state.members) == {"c0", "c1"}


def test_a_static_member_that_goes_back_to_the_classic_protocol_takes_the_group_along(
    harness: ConsumerGroupHarness,
) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1, 2}, {3, 4, 5}))
    first = modern(harness, instance_id="static-0")
    first.beat()
    epoch = harness.group.state.epoch
    joined = join(harness, "", "foo", instance_id="static-0")
    downgrade = harness.last.downgrade
    assert downgrade is not None
    assert not downgrade.rebalances, "it wants what it wanted"
    assert (downgrade.group.generation_id, joined.generation_id) == (epoch, epoch)
    back = next(member for member in downgrade.group.members if member.member_id == joined.member_id)
    assert back.group_instance_id == "static-0"
    assert named(read_assignment(back.assignment, harness.context.topics)) == {"foo": {0, 1, 2}}


def test_a_static_member_that_goes_back_and_wants_something_else_has_the_group_rebalance(
    harness: ConsumerGroupHarness,
) -> None:
    harness.classic = harness.made_classic(classic_record(harness, {0, 1, 2}, {3, 4, 5}))
    modern(harness, instance_id="static-0").beat()
    join(harness, "", "bar", instance_id="static-0")
    assert harness.last.downgrade is not None
    assert harness.last.downgrade.rebalances


# What is embedded.


def test_embedded_subscriptions_and_assignments_use_the_version_of_the_member(harness: ConsumerGroupHarness) -> None:
    topics = harness.context.topics
    metadata = subscription("foo", "gone", owned={"foo": {1}, "gone": {2}}, rack_id="rack")
    told = read_subscription(metadata, topics)
    assert (told.topic_names, told.rack_id, named(told.owned)) == ({"foo", "gone"}, "rack", {"foo": {1}})
    assert read_subscription((9).to_bytes(2) + metadata[2:] + b"more", topics) == told, "of a later version"
    for version, expected in ((b"\x00\x01", 1), (b"\x00\x09", 3), (b"", 0)):
        written = write_assignment(partitions(foo={2, 1}, gone={1}), topics, version)
        assert int.from_bytes(written[:2]) == expected
        assert named(read_assignment(written, topics)) == {"foo": {1, 2}}
    assert read_assignment(b"", topics) == {}
    for wrong in (b"", b"\x00", b"\xff\xff" + metadata[2:], metadata[:-1]):
        with pytest.raises(DecodeError):
            read_subscription(wrong, topics)


# Offsets.


def test_the_commit_check_validates_member_and_epoch(harness: ConsumerGroupHarness) -> None:
    def code(member_id: str, epoch: int, *, version: int = 9, transactional: bool = False, **more: str) -> int:
        identity = GroupMemberIdentity(member_id=member_id, generation_id=epoch, **more)
        return harness.group.check_commit(identity, version, is_transactional=transactional)

    assert code("", -1) == e.NONE, "nobody is in the group"
    first = modern(harness)
    first.beat()
    joined = join(harness, "", "foo")
    assert code("modern", 1) == e.NONE
    assert code("modern", 0) == code("modern", 2) == e.STALE_MEMBER_EPOCH
    assert code("modern", 1, version=8) == e.UNSUPPORTED_VERSION
    assert code("nobody", 1) == code("", -1) == e.UNKNOWN_MEMBER_ID
    assert code(joined.member_id, 2, version=8) == e.NONE
    assert code(joined.member_id, 1) == e.ILLEGAL_GENERATION
    assert code("", -1, transactional=True) == e.NONE
    assert code("modern", 1, transactional=True, version=3) == e.NONE
    assert code("modern", 2, transactional=True, version=3) == e.ILLEGAL_GENERATION
    assert code("", -1, transactional=True, group_instance_id="i") == e.UNKNOWN_MEMBER_ID


def test_the_offset_fetch_check_validates_member_and_epoch(harness: ConsumerGroupHarness) -> None:
    def code(member_id: str | None, member_epoch: int) -> int:
        return harness.group.check_fetch(member_id, member_epoch)

    modern(harness).beat()
    joined = join(harness, "", "foo")
    assert code(None, -1) == code("modern", 1) == code(joined.member_id, 2) == e.NONE
    assert code("modern", 2) == e.STALE_MEMBER_EPOCH
    assert code(joined.member_id, 1) == e.ILLEGAL_GENERATION
    assert code("nobody", 1) == code("", -1) == e.UNKNOWN_MEMBER_ID
