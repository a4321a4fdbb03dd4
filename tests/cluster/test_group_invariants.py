"""Whatever members do, and whenever the broker restarts: what must hold of a group, found by Hypothesis."""

from __future__ import annotations

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafscale.cluster.groups.classic.group import ClassicGroupState
from kafscale.concurrency.signals import OneShot
from kafscale.config import CoordinatorSettings, Limits, Settings
from kafscale.wire import error_codes as e
from kafscale.wire.messages.groups import JoinGroupResponse, SyncGroupResponse
from tests.cluster.groups.classic_groups import GroupHarness

INITIAL_DELAY_SECONDS = 3
REBALANCE_TIMEOUT_SECONDS = 60
CLIENTS = st.integers(0, 3)


@attrs.define(eq=False)
class Client:
    """What one consumer knows, and what it waits for."""

    group_instance_id: str | None
    member_id: str = ""
    generation_id: int = -1
    led: tuple[str, ...] = ()  # the members of the generation that it leads
    join: OneShot[JoinGroupResponse] | None = None
    sync: OneShot[SyncGroupResponse] | None = None
    waits_since: float = 0.0


class GroupMachine(RuleBasedStateMachine):
    """Four clients, two of them static, each with one request under way at most, as on a connection."""

    @initialize(delays=st.booleans(), holds_writes=st.booleans())
    def begin(self, delays: bool, holds_writes: bool) -> None:
        delay_ms = INITIAL_DELAY_SECONDS * 1000 if delays else 0
        self.harness = GroupHarness(
            settings=Settings(
                coordinator=CoordinatorSettings(group_initial_rebalance_delay_ms=delay_ms),
                limits=Limits(max_group_members_count=3),
            )
        )
        self.clients = [Client(f"static-{number}" if number < 2 else None) for number in range(4)]
        self.last_generation_id = 0
        for number in (0, 2, 3):  # a group at work
            self.join(number, False, False)
        self.harness.advance(2 * INITIAL_DELAY_SECONDS)  # those who came after the first extend it
        self.replies_say_what_they_should()
        for number in (0, 2, 3):
            self.sync(number)
        assert self.harness.group.state is ClassicGroupState.STABLE
        self.harness.holds_writes = holds_writes

    # What clients do.

    @rule(number=CLIENTS, changed=st.booleans(), modern=st.booleans())
    def join(self, number: int, changed: bool, modern: bool) -> None:
        client = self.clients[number]
        if client.sync is not None:
            return
        before = client.join
        client.join = self.harness.join(
            client.member_id,
            group_instance_id=client.group_instance_id,
            protocols={"range": b"new" if changed else b"old", f"own-{number}": b""},
            member_id_required=modern,
            can_skip_assignment=modern,
        )
        client.waits_since = self.harness.seconds
        assert before is None or before.is_set or client.member_id == "", "a replaced join was not answered"

    @rule(number=CLIENTS)
    def forget_who_one_is(self, number: int) -> None:
        """The process restarts."""
        self.clients[number] = Client(self.clients[number].group_instance_id)

    @rule(number=CLIENTS)
    def sync(self, number: int) -> None:
        client = self.clients[number]
        if client.join is not None or client.generation_id < 0:
            return
        client.sync = self.harness.sync(
            client.member_id,
            dict.fromkeys(client.led, b"%d" % client.generation_id),
            generation_id=client.generation_id,
            group_instance_id=client.group_instance_id,
        )
        client.waits_since = self.harness.seconds

    @rule(number=CLIENTS)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        error_code = self.harness.heartbeat(
            client.member_id, generation_id=client.generation_id, group_instance_id=client.group_instance_id
        )
        if error_code in (e.UNKNOWN_MEMBER_ID, e.FENCED_INSTANCE_ID) and client.join is None and client.sync is None:
            self.clients[number] = Client(client.group_instance_id)

    @precondition(lambda self: len(self.harness.group.members) > 1)
    @rule(number=CLIENTS)
    def leave(self, number: int) -> None:
        self.harness.leave(self.clients[number].member_id, self.clients[number].group_instance_id)

    @rule(number=CLIENTS, modern=st.booleans())
    def go_on(self, number: int, modern: bool) -> None:
        """Do what a client does next, which random steps seldom do."""
        client = self.clients[number]
        if client.join is None and client.sync is None:
            code = self.harness.heartbeat(
                client.member_id, generation_id=client.generation_id, group_instance_id=client.group_instance_id
            )
            if code == e.NONE:
                self.sync(number)
            else:
                self.join(number, False, modern)
                self.replies_say_what_they_should()
                if client.join is None and client.generation_id < 0 and client.member_id:
                    self.join(number, False, modern)  # with the id that it was given

    @rule(modern=st.booleans())
    def all_go_on(self, modern: bool) -> None:
        for number in range(4):
            self.go_on(number, modern)
        if not self.harness.held:
            self.harness.advance(0)
        self.replies_say_what_they_should()

    # What the world does.

    @precondition(lambda self: not self.harness.held)
    @rule(seconds=st.sampled_from([0, 1, 2, 5, 9, 11, 30, 61, 301]), alive=st.sets(CLIENTS, min_size=1))
    def advance(self, seconds: int, alive: set[int]) -> None:
        end = self.harness.seconds + seconds
        while self.harness.seconds < end:
            self.harness.advance(min(5, end - self.harness.seconds))
            self.replies_say_what_they_should()
            for number in alive:
                self.heartbeat(number)

    @rule()
    def hold_writes(self) -> None:
        self.harness.holds_writes = True

    @rule(durable=st.sampled_from([True, True, False]))
    def finish_writes(self, durable: bool) -> None:
        self.harness.holds_writes = False
        self.harness.finish_writes(durable=durable)

    @precondition(lambda self: self.harness.group.state is not ClassicGroupState.EMPTY)
    @rule()
    def restart(self) -> None:
        self.harness.restart()
        self.last_generation_id = self.harness.group.generation_id
        for client in self.clients:
            client.join = client.sync = None

    # What must hold.

    @invariant()
    def replies_say_what_they_should(self) -> None:
        for client in self.clients:
            if client.join is not None and client.join.value is not None:
                self.take_join(client, client.join.value)
            if client.sync is not None and client.sync.value is not None:
                self.take_sync(client, client.sync.value)

    def take_join(self, client: Client, joined: JoinGroupResponse) -> None:
        client.join = None
        client.led = ()
        if joined.error_code in (e.NONE, e.MEMBER_ID_REQUIRED):
            assert joined.member_id
            client.member_id = joined.member_id
        elif joined.error_code in (e.UNKNOWN_MEMBER_ID, e.FENCED_INSTANCE_ID):
            client.member_id = ""
        if joined.error_code == e.NONE:
            client.generation_id = joined.generation_id
            client.led = tuple(member.member_id for member in joined.members)
            assert bool(client.led) is (joined.leader == joined.member_id), "only the leader knows the members"
            assert joined.protocol_name

    def take_sync(self, client: Client, synced: SyncGroupResponse) -> None:
        client.sync = None
        if synced.error_code == e.NONE:
            assert synced.assignment == b"%d" % client.generation_id, "not the assignment of its generation"
        elif synced.error_code in (e.UNKNOWN_MEMBER_ID, e.FENCED_INSTANCE_ID):
            client.member_id, client.generation_id = "", -1

    @invariant()
    def no_reply_is_lost_and_none_is_late(self) -> None:
        members = self.harness.group.members
        waiting = {id(reply) for member in members for reply in (member.awaiting_join, member.awaiting_sync)}
        bound = REBALANCE_TIMEOUT_SECONDS + INITIAL_DELAY_SECONDS
        for client in self.clients:
            for reply in (client.join, client.sync):
                if reply is not None and not reply.is_set:
                    assert id(reply) in waiting, "nobody will ever answer this"
                    assert self.harness.held or self.harness.seconds - client.waits_since <= bound, "too late"

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.harness.group.generation_id >= self.last_generation_id
        self.last_generation_id = self.harness.group.generation_id

    @invariant()
    def there_is_one_leader(self) -> None:
        members = self.harness.group.members
        assert (
            (members.leader_id in [member.member_id for member in members])
            if len(members)
            else (members.leader_id is None)
        )

    @invariant()
    def no_deadline_is_lost(self) -> None:
        group = self.harness.group
        for member in group.members:
            assert member.session.is_set or member.is_excused, "it may fall silent for ever"
        assert all(timer.is_set for timer in group.members.pending_join.values())
        join_timer, sync_timer = group._join_time.is_set, group._sync_timer.is_set
        assert join_timer is (group.state is ClassicGroupState.PREPARING_REBALANCE)
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            assert sync_timer or self.harness.held, "nothing leads out of this state"
        elif group.state is not ClassicGroupState.STABLE:
            assert not sync_timer
        if group.state is ClassicGroupState.STABLE:
            assert sync_timer is bool(group.members.pending_sync)

    @invariant()
    def the_books_are_right(self) -> None:
        group, members = self.harness.group, self.harness.group.members
        assert members.awaiting_join_count == sum(member.awaiting_join is not None for member in members)
        assert members.pending_sync <= {member.member_id for member in members}
        assert not set(members.pending_join) & {member.member_id for member in members}
        static = [member.group_instance_id for member in members if member.is_static]
        assert len(static) == len(set(static))
        for member in members:
            assert members.check(member.member_id, member.group_instance_id) == e.NONE
        assert (group.state is ClassicGroupState.EMPTY) <= (len(members) == 0)
        if len(members):
            assert members.select_protocol() == "range"

    @precondition(lambda self: not self.harness.held)
    @invariant()
    def what_members_were_told_is_durable(self) -> None:
        group, stored = self.harness.group, self.harness.stored
        if group.state is ClassicGroupState.STABLE:
            assert stored is not None
            assert stored.generation_id == group.generation_id
            known = {member.member_id: member.assignment for member in stored.members}
            for member in group.members:
                assert known.get(member.member_id) == member.assignment == b"%d" % group.generation_id


GroupMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGroup = GroupMachine.TestCase
