"""Whatever members do, whatever gets lost, whenever the broker dies: what must hold of a consumer group (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafscale.cluster.groups.common.assignors import Partitions, count, intersect, is_subset, union
from kafscale.cluster.groups.common.context import GroupMemberIdentity, Sync
from kafscale.cluster.groups.common.topics import KnownTopic
from kafscale.cluster.groups.consumer.migration import read_assignment
from kafscale.cluster.groups.consumer.state import ConsumerGroupState, GroupState
from kafscale.config import CoordinatorSettings, Limits, Settings
from kafscale.wire import error_codes as e
from kafscale.wire.messages.groups import MemberIdentity
from tests.cluster.groups.consumer_groups import GROUP_ID, ConsumerClient, ConsumerGroupHarness, joins, topic_id

TOPICS = ("a", "ab", "b")
SUBSCRIPTIONS = (("a",), ("a", "b"), ("a", "ab", "b"), ())
REFUSALS = (e.FENCED_MEMBER_EPOCH, e.UNKNOWN_MEMBER_ID, e.FENCED_INSTANCE_ID, e.GROUP_ID_NOT_FOUND)
CLIENT_COUNT = 5  # of the consumer protocol, the first two of which are static
CLASSIC_COUNT = 2


@attrs.define(eq=False)
class ModernClient(ConsumerClient):
    """A client that takes its time to give up partitions, and that may never see an answer."""

    told: Partitions = attrs.field(factory=dict, init=False)  # the assignment it was told last
    lives: int = attrs.field(default=0, init=False)
    is_unsure: bool = attrs.field(
        default=False, init=False
    )  # an answer got lost: as all clients do, it says everything

    def send(self, *, is_full: bool, reply_arrives: bool) -> int:
        before = self.harness.group.state.members.get(self.member_id)
        reply = self.harness.heartbeat(self.request(is_full=is_full or self.is_unsure or self.epoch == 0))
        self.is_unsure = not reply_arrives
        if before is None and self.epoch > 0:
            assert reply.error_code in REFUSALS, "a member that the group does not have was let in"
        if not reply_arrives:
            return e.NONE
        if reply.error_code == e.NONE:
            assert reply.member_epoch >= self.epoch, "a member's epoch went back"
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.told = reply.assignment
            if is_subset(self.owned, self.told):
                self.owned = self.told  # there is nothing to give up first
        elif reply.error_code in REFUSALS:
            self.abandon()
        return reply.error_code

    def obey(self) -> None:
        self.owned = self.told

    def abandon(self) -> None:
        self.epoch, self.owned, self.told = 0, {}, {}

    def live_again(self) -> None:
        self.lives += 1
        self.member_id = f"{self.member_id.partition('#')[0]}#{self.lives}"
        self.abandon()


@attrs.define(eq=False)
class ClassicClient:
    """A consumer of the classic protocol; a cooperative one keeps what it has while it joins."""

    harness: ConsumerGroupHarness
    cooperative: bool
    topics: tuple[str, ...] = ("a",)
    member_id: str = ""
    generation_id: int = -1
    owned: dict[str, set[int]] = attrs.field(factory=dict)

    def step(self) -> None:
        """Join, or send a heartbeat and join again if that says so."""
        if self.generation_id < 0:
            self._join()
            return
        code = self.harness.group.heartbeat(self._identity())
        if code == e.REBALANCE_IN_PROGRESS:
            self._join()
        elif code != e.NONE:
            self._abandon()

    def _join(self) -> None:
        if not self.cooperative:
            self.owned = {}
        request = joins(self.member_id, *self.topics, owned=self.owned)
        reply = self.harness.took(self.harness.group.join(request))
        if reply.error_code != e.NONE:
            self._abandon()
            return
        self.member_id, self.generation_id = reply.member_id, reply.generation_id
        sync = Sync(identity=self._identity(), protocol_type="consumer", protocol_name=reply.protocol_name)
        synced = self.harness.took(self.harness.group.sync(sync))
        if synced.error_code == e.NONE:
            assigned = read_assignment(synced.assignment, self.harness.context.topics)
            by_id = self.harness.context.topics.by_id
            self.owned = {by_id[each].name: set(numbers) for each, numbers in assigned.items()}

    def leave(self) -> None:
        leaving = MemberIdentity(member_id=self.member_id)
        self.harness.group.leave([leaving])
        self._abandon()

    def _identity(self) -> GroupMemberIdentity:
        return GroupMemberIdentity(member_id=self.member_id, generation_id=self.generation_id)

    def _abandon(self) -> None:
        self.member_id, self.generation_id, self.owned = "", -1, {}


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Five clients of the consumer protocol and two of the classic one, three topics that come, grow and go."""

    @initialize(assignor=st.sampled_from(["uniform", "range"]))
    def begin(self, assignor: str) -> None:
        self.harness = ConsumerGroupHarness(
            settings=Settings(
                coordinator=CoordinatorSettings(group_consumer_assignors=(assignor,)),
                limits=Limits(group_consumer_max_size_count=8),
            )
        )
        self.harness.put_topics(a=4, b=3)
        self.topic_lives = 0
        self.epochs: dict[str, int] = {}
        self.group_epoch = 0
        self.clients = [
            ModernClient(
                harness=self.harness,
                member_id=f"modern-{number}",
                topics=("a",),
                instance_id=f"static-{number}" if number < 2 else None,
            )
            for number in range(CLIENT_COUNT)
        ]
        self.classic_clients = [ClassicClient(self.harness, cooperative=bool(each)) for each in range(CLASSIC_COUNT)]
        self.gone: set[int] = set()
        for number in (0, 2, 3):
            self.clients[number].send(is_full=True, reply_arrives=True)
        self.gone |= {1, 4}

    # What clients do.

    @rule(
        number=st.integers(0, CLIENT_COUNT - 1), is_full=st.booleans(), arrives=st.integers(0, 4), obeys=st.booleans()
    )
    def beat(self, number: int, is_full: bool, arrives: int, obeys: bool) -> None:
        client = self.clients[number]
        self.gone.discard(number)
        if obeys:
            client.obey()
        client.send(is_full=is_full, reply_arrives=arrives > 0)

    @rule(obey=st.lists(st.booleans(), min_size=CLIENT_COUNT, max_size=CLIENT_COUNT))
    def all_beat(self, obey: list[bool]) -> None:
        """Some go on reading what they were told to give up."""
        for number, obeys in enumerate(obey):
            if number not in self.gone:
                self.beat(number, False, 1, obeys)
                self.no_client_reads_what_another_reads()

    @rule(number=st.integers(0, CLIENT_COUNT - 1), topics=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, number: int, topics: tuple[str, ...]) -> None:
        self.clients[number].topics, self.clients[number].regex = topics, ""
        self.clients[number].send(is_full=True, reply_arrives=True)

    @rule(number=st.integers(0, CLIENT_COUNT - 1), regex=st.sampled_from(["a.*", "b|ab", "none"]))
    def subscribe_by_regex(self, number: int, regex: str) -> None:
        self.clients[number].topics, self.clients[number].regex = (), regex
        self.clients[number].send(is_full=True, reply_arrives=True)

    @rule()
    def find_topics(self) -> None:
        self.harness.find_topics()

    @rule(number=st.integers(0, CLIENT_COUNT - 1), stays=st.booleans())
    def leave(self, number: int, stays: bool) -> None:
        """A static client may leave so that it can come back under another member id."""
        client = self.clients[number]
        if client.epoch > 0:
            client.leave(-2 if stays and client.instance_id is not None else -1)
        client.live_again()
        self.gone.add(number)

    @rule(number=st.integers(2, CLIENT_COUNT - 1))
    def client_dies(self, number: int) -> None:
        self.clients[number].live_again()
        self.gone.add(number)

    @precondition(lambda self: self.harness.classic is None and self.harness.group.state.members)
    @rule(number=st.integers(0, CLASSIC_COUNT - 1), topics=st.sampled_from(SUBSCRIPTIONS[:3]))
    def classic_step(self, number: int, topics: tuple[str, ...]) -> None:
        self.classic_clients[number].topics = topics
        self.classic_clients[number].step()

    @precondition(lambda self: self.harness.classic is None)
    @rule(number=st.integers(0, CLASSIC_COUNT - 1))
    def classic_leave(self, number: int) -> None:
        if self.classic_clients[number].generation_id >= 0:
            self.classic_clients[number].leave()

    # What happens to the broker.

    @rule(by_ms=st.sampled_from([1000, 20_000, 50_000]))
    def time_passes(self, by_ms: int) -> None:
        self.harness.advance(by_ms)

    @rule(name=st.sampled_from(TOPICS), partition_count=st.integers(1, 6))
    def topic_grows(self, name: str, partition_count: int) -> None:
        known = self.harness.context.topics.by_name.get(name)
        if known is not None:
            grown = attrs.evolve(known, partition_count=max(partition_count, known.partition_count))
        else:
            self.topic_lives += 1
            grown = KnownTopic(
                topic_id=topic_id(f"{name}#{self.topic_lives}"), name=name, partition_count=partition_count
            )
        self.harness.context.topics.change(version=self.harness.context.topics.version + 1, put=[grown])

    @rule(name=st.sampled_from(TOPICS))
    def topic_goes(self, name: str) -> None:
        self.harness.remove_topics(name)

    @precondition(lambda self: self.harness.classic is None)
    @rule(number=st.integers(0, CLIENT_COUNT - 1), data=st.data())
    def broker_dies(self, number: int, data: st.DataObject) -> None:
        """It dies over a heartbeat: any beginning of what that writes is in the log, and nobody sees the answer."""
        written_count = len(self.harness.log)
        self.clients[number].obey()
        self.clients[number].send(is_full=True, reply_arrives=False)
        if self.harness.classic is None:
            kept_count = data.draw(st.integers(written_count, len(self.harness.log)))
            self.harness.restart(kept_count)
            self.group_epoch = min(self.group_epoch, self.harness.group.state.epoch)

    # What must hold.

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        check_ownership(self.harness.group.state)

    @invariant()
    def no_client_reads_what_another_reads(self) -> None:
        """It holds of those that the group still has; others learn with their next heartbeat that they are out."""
        readers = [client for client in self.clients if client.member_id in self.harness.group.state.members]
        for client in readers:
            for other in readers:
                assert client is other or not intersect(client.owned, other.owned)

    @invariant()
    def epochs_never_go_back(self) -> None:
        state = self.harness.group.state
        if not state.exists:  # deleted, or a classic group
            self.group_epoch, self.epochs = 0, {}
            return
        assert state.epoch >= self.group_epoch
        assert state.assignment_epoch <= state.epoch
        for member in state.members.values():
            assert member.member_epoch <= state.epoch
            before = self.epochs.get(member.member_id, 0)
            assert member.member_epoch >= before or member.member_epoch in (-2, 0)
        self.group_epoch = state.epoch
        self.epochs = {member.member_id: member.member_epoch for member in state.members.values()}

    @invariant()
    def a_restart_would_change_nothing(self) -> None:
        if self.harness.classic is None:
            check_restart(self.harness)

    @invariant()
    def what_is_counted_is_what_there_is(self) -> None:
        assert self.harness.context.state_bytes.used_bytes == self.harness.group.state.counted_bytes

    def teardown(self) -> None:
        """Left alone, the group comes to rest, and everything is read."""
        if not hasattr(self, "harness"):
            return
        clients = [client for number, client in enumerate(self.clients) if number not in self.gone]
        self._beat_for_rounds(clients, 30)
        if self.harness.classic is None and clients:
            check_at_rest(self.harness, clients)
            self.topic_grows("a", 6)
            self.topic_grows("b", 6)
            self._beat_for_rounds(clients, 8)
            check_at_rest(self.harness, clients)

    def _beat_for_rounds(self, clients: list[ModernClient], round_count: int) -> None:
        for _ in range(round_count):
            for client in clients:
                client.obey()
                client.send(is_full=False, reply_arrives=True)
            if self.harness.classic is None and self.harness.group.state.members:
                for classic_client in self.classic_clients:
                    classic_client.step()
            self.harness.advance(5000)
            self.harness.find_topics()


def check_ownership(state: GroupState) -> None:
    """No partition is with two members, and the index says who has what."""
    owners: dict[tuple[bytes, int], str] = {}
    for member in state.members.values():
        held = union(member.assigned, member.pending_revocation)
        assert count(held) == count(member.assigned) + count(member.pending_revocation)
        for each, numbers in held.items():
            for number in numbers:
                assert (each, number) not in owners, "a partition is with two members"
                owners[each, number] = member.member_id
    for (each, number), owner in owners.items():
        assert state.owner(each, number) == owner
    assert sum(map(len, state._owners.values())) == len(owners)


def check_restart(harness: ConsumerGroupHarness) -> None:
    restored = GroupState(GROUP_ID)
    for record in harness.log:
        restored.apply(record)
    state = harness.group.state
    for name in ("exists", "epoch", "metadata_hash", "assignment_epoch", "members", "static", "targets", "regexes"):
        assert getattr(restored, name) == getattr(state, name), name
    for name in ("subscriptions", "assignors", "classic_count", "classic_protocols", "regex_counts", "counted_bytes"):
        assert getattr(restored, name) == getattr(state, name), name
    assert list(restored.members) == list(state.members), "members are in another order"


def check_at_rest(harness: ConsumerGroupHarness, clients: list[ModernClient]) -> None:
    state, topics = harness.group.state, harness.context.topics
    assert state.state is ConsumerGroupState.STABLE, state.state
    wanted = {each for member in state.members.values() for each in state.topic_names_of(member.subscription)}
    everything = {
        topics.by_name[name].topic_id: frozenset(range(topics.by_name[name].partition_count))
        for name in wanted
        if name in topics.by_name
    }
    read: Partitions = {}
    for member in state.members.values():
        names = {topics.by_id[each].name for each in member.assigned}
        assert names <= state.topic_names_of(member.subscription), "a member has what it does not want"
        read = union(read, member.assigned)
    assert read == everything, "not everything is read"
    for client in clients:
        assert client.owned == state.members[client.member_id].assigned
    subscriptions = {state.topic_names_of(member.subscription) for member in state.members.values()}
    sizes = [count(member.assigned) for member in state.members.values()]
    if len(subscriptions) == 1 and harness.settings.coordinator.group_consumer_assignors[0] == "uniform":
        assert max(sizes) - min(sizes) <= 1, "not balanced"


TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
TestConsumerGroupMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def _story() -> Iterator[ConsumerGroupHarness]:
    """A group that all kinds of records are written for; what its log has after each event."""
    harness = ConsumerGroupHarness()
    harness.put_topics(a=4, b=3, ab=2)
    clients = [ConsumerClient(harness=harness, member_id=f"m{each}", topics=("a", "b")) for each in range(3)]
    clients.append(ConsumerClient(harness=harness, member_id="s1", topics=("a",), instance_id="static"))
    clients.append(ConsumerClient(harness=harness, member_id="r1", regex="a.*"))
    for client in clients:
        client.beat()
        harness.find_topics()
    for _ in range(3):
        for client in clients:
            client.beat(is_full=False)
    classic = ClassicClient(harness, cooperative=True, topics=("b",))
    classic.step()
    clients[3].leave(-2)
    clients[3].member_id = "s2"
    clients[3].beat()
    clients[0].leave()
    harness.put_topics(a=6)
    for _ in range(3):
        for client in clients[1:]:
            client.beat(is_full=False)
        classic.step()
    clients[4].leave()
    clients[1].beat(is_full=False)
    yield harness


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_beginning_of_the_log_is_a_group_that_comes_to_rest(data: st.DataObject) -> None:
    (harness,) = _story()
    harness.restart(data.draw(st.integers(1, len(harness.log))))
    check_ownership(harness.group.state)
    clients = [ModernClient(harness=harness, member_id=f"new-{each}", topics=("a", "b")) for each in range(3)]
    for _ in range(25):  # who was there before is never heard of again
        for client in clients:
            client.obey()
            assert client.send(is_full=False, reply_arrives=True) == e.NONE
            check_ownership(harness.group.state)
        harness.advance(5000)
    check_at_rest(harness, clients)
    assert set(harness.group.state.members) == {client.member_id for client in clients}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_compacted_log_is_the_same_group(data: st.DataObject) -> None:
    """Of the part that is compacted only the last record of each key is left, and tombstones may be."""
    (harness,) = _story()
    dirty = data.draw(st.integers(0, len(harness.log)))
    keep_tombstones = data.draw(st.booleans())
    last = {record.key: position for position, record in enumerate(harness.log[:dirty])}
    compacted = [
        record
        for position, record in enumerate(harness.log[:dirty])
        if last[record.key] == position and (keep_tombstones or record.value is not None)
    ]
    before = harness.group.state
    harness.log = compacted + harness.log[dirty:]
    harness.restart()
    after = harness.group.state
    assert (after.epoch, after.assignment_epoch, after.members) == (
        before.epoch,
        before.assignment_epoch,
        before.members,
    )
    assert after.targets == before.targets
    check_ownership(after)
