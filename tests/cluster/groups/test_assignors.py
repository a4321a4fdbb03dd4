"""The assignors, compared with the examples of Kafka's own tests, and with what must hold of any assignment."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.cluster.groups.common.assignors import GroupSpec, MemberSpec, Partitions, count, intersection, union
from kafscale.cluster.groups.consumer.target import ASSIGNORS
from tests.cluster.groups.consumer_groups import named, partitions, topic_id


def numbers(text: str) -> dict[str, set[int]]:
    """Partitions from `T1:0,1 T2:3`."""
    each = (part.split(":") for part in text.split())
    return {name: {int(number) for number in listed.split(",")} for name, listed in each}


def spec(topics: str, **members: str) -> GroupSpec:
    """A group from `T1=3 T2=2` and, for each member, the topics that it subscribes to | what it had."""
    counts = {topic_id(name): int(size) for name, _, size in (each.partition("=") for each in topics.split())}
    made = {}
    for member_id, told in members.items():
        subscribed, _, had = told.partition("|")
        instance_id = "instance" + member_id if "!" in subscribed else None
        made[member_id] = MemberSpec(
            instance_id=instance_id,
            topic_ids=frozenset(topic_id(name) for name in subscribed.replace("!", "").split()),
            previous=partitions(**numbers(had)),
        )
    return GroupSpec(members=made, partition_counts=counts)


def assigned(assignor: str, group: GroupSpec) -> dict[str, dict[str, set[int]]]:
    return {member_id: named(each) for member_id, each in ASSIGNORS[assignor](group).items()}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        # Kafka goes through topics by their hashes: T0 is its T3 there.
        (spec("T0=2 T1=3", A="T0 T1", B="T0 T1"), {"A": "T0:0,1", "B": "T1:0,1,2"}),
        (spec("T3=2", A="T3", B="T3", C="T3"), {"A": "", "B": "T3:0", "C": "T3:1"}),
        (
            spec("T1=3 T2=3", A="T1 T2|T1:0,1 T2:0,1", B="T1 T2|T1:2 T2:2"),
            {"A": "T1:0,1 T2:0", "B": "T1:2 T2:1,2"},
        ),
        (
            spec("T0=5 T1=6", A="T0 T1|T1:0,2 T0:0", B="T0 T1|T1:1 T0:1,2"),
            {"A": "T1:0,2 T0:0,3,4", "B": "T1:1,3,4,5 T0:1,2"},
        ),
        (
            spec("T1=3 T2=3", A="T1 T2|T1:0,2 T2:0", B="T1 T2|T1:1 T2:1,2", C="T1 T2"),
            {"A": "T1:0,2", "B": "T1:1 T2:1", "C": "T2:0,2"},
        ),
        (
            spec("T0=3 T1=3", A="T0 T1|T1:0 T0:0", B="T0 T1|T1:1 T0:1"),
            {"A": "T1:0 T0:0,2", "B": "T1:1,2 T0:1"},
        ),
        (spec("T1=2 T2=2", A="T2|T1:0 T2:0", B="T2|T1:1 T2:1"), {"A": "T2:0", "B": "T2:1"}),
        (spec("T1=5", A="T1|T1:0,3", B="T1|T1:1", C="T1|T1:2,4"), {"A": "T1:0,3", "B": "T1:1", "C": "T1:2,4"}),
        (spec("T1=3", A=""), {"A": ""}),
    ],
)
def test_uniform_does_as_kafka_where_all_subscribe_to_the_same(group: GroupSpec, expected: dict[str, str]) -> None:
    group = attrs.evolve(
        group,
        partition_counts={
            each: size
            for each, size in group.partition_counts.items()
            if any(each in member.topic_ids for member in group.members.values())
        },
    )
    assert assigned("uniform", group) == {member_id: numbers(each) for member_id, each in expected.items()}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (spec("T1=3 T3=6", A="T1 T3", B="T3"), {"A": "T1:0,1,2 T3:4", "B": "T3:0,1,2,3,5"}),
        (spec("T1=2 T3=1", A="T3", B="T3", C="T1"), {"A": "T3:0", "B": "", "C": "T1:0,1"}),
        (
            spec(
                "T1=6 T2=4 T3=4",
                A="T1|T1:0,1,2",
                B="T1 T2|T1:3 T2:0",
                C="T1 T2 T3|T1:4,5 T2:1,2,3 T3:0,1,2,3",
            ),
            {"A": "T1:0,1,2,5", "B": "T1:3 T2:0,1,2,3", "C": "T1:4 T3:0,1,2,3"},
        ),
        (
            spec(
                "T1=6 T2=5 T3=3 T4=3",
                A="T1 T3|T1:0,1,2,3 T3:0,1",
                B="T1 T2 T3 T4|T2:0,1,2 T4:0,1,2",
            ),
            {"A": "T1:0,1,2,3,4,5 T3:0,1,2", "B": "T2:0,1,2,3,4 T4:0,1,2"},
        ),
        (
            spec("T1=6 T2=7", A="T1|T1:0,2 T2:0", B="T1 T2|T1:1 T2:1,2", C="T1 T2"),
            {"A": "T1:0,2,3,4,5", "B": "T1:1 T2:1,2,6", "C": "T2:0,3,4,5"},
        ),
        (
            spec("T1=3 T2=8 T3=3", A="T1 T3|T1:0,1,2 T3:0,1", B="T2|T2:3,4,5,6"),
            {"A": "T1:0,1,2 T3:0,1,2", "B": "T2:0,1,2,3,4,5,6,7"},
        ),
        (
            spec("T1=3 T2=5", A="T1|T1:0,2 T2:1,3", B="T1 T2|T1:1 T2:0,2,4"),
            {"A": "T1:0,1,2", "B": "T2:0,1,2,3,4"},
        ),
        (spec("T1=3", A="T1", B=""), {"A": "T1:0,1,2", "B": ""}),
    ],
)
def test_uniform_does_as_kafka_where_subscriptions_differ(group: GroupSpec, expected: dict[str, str]) -> None:
    assert assigned("uniform", group) == {member_id: numbers(each) for member_id, each in expected.items()}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (spec("T1=3 T3=2", A="T1 T3", B="T1 T3"), {"A": "T1:0,1 T3:0", "B": "T1:2 T3:1"}),
        (
            spec("T1=3 T2=3 T3=2", A="T1 T2", B="T3", C="T2 T3"),
            {"A": "T1:0,1,2 T2:0,1", "B": "T3:0", "C": "T2:2 T3:1"},
        ),
        (
            spec("T1=3 T3=2", A="T1 T3", B="T1 T3", C="T1 T3"),
            {"A": "T1:0 T3:0", "B": "T1:1 T3:1", "C": "T1:2"},
        ),
        (spec("T1=3", A="!T1", B="!T1"), {"A": "T1:0,1", "B": "T1:2"}),
        (spec("T1=5", A="!T1", C="!T1", B="T1"), {"A": "T1:0,1", "C": "T1:2,3", "B": "T1:4"}),
        (
            spec("T1=2 T2=2", A="T1 T2|T1:0 T2:0", B="T1 T2|T1:1 T2:1", C="T1 T2"),
            {"A": "T1:0 T2:0", "B": "T1:1 T2:1", "C": ""},
        ),
        (
            spec("T1=4 T2=4", A="T1 T2|T1:0,1 T2:0,1", B="T1 T2|T1:2 T2:2"),
            {"A": "T1:0,1 T2:0,1", "B": "T1:2,3 T2:2,3"},
        ),
        (
            spec("T1=4 T2=3", A="T1 T2|T1:0,1 T2:0,1", B="T1 T2|T1:2 T2:2", C="T1"),
            {"A": "T1:0,1 T2:0,1", "B": "T1:2 T2:2", "C": "T1:3"},
        ),
        (
            spec("T1=3 T2=3 T3=2", A="T1|T1:0,1,2 T2:0", B="T1 T2 T3|T2:1", C="T2|T2:2 T3:0,1"),
            {"A": "T1:0,1", "B": "T1:2 T2:0,1 T3:0,1", "C": "T2:2"},
        ),
    ],
)
def test_range_does_as_kafka(group: GroupSpec, expected: dict[str, str]) -> None:
    assert assigned("range", group) == {member_id: numbers(each) for member_id, each in expected.items()}


TOPICS = [topic_id(f"t{number}") for number in range(4)]


@st.composite
def groups(draw: st.DrawFn, same: bool) -> GroupSpec:
    """Any group of which everything that was assigned before is still there, or not."""
    counts = {each: draw(st.integers(1, 12)) for each in TOPICS}
    shared = draw(st.frozensets(st.sampled_from(TOPICS), min_size=1))
    members: dict[str, MemberSpec] = {}
    free = {each: set(range(size)) for each, size in counts.items()}
    for number in range(draw(st.integers(1, 6))):
        topic_ids = shared if same else draw(st.frozensets(st.sampled_from(TOPICS)))
        previous: dict[bytes, frozenset[int]] = {}
        for each in draw(st.lists(st.sampled_from(TOPICS), unique=True)):
            taken = draw(st.frozensets(st.sampled_from(sorted(free[each])))) if free[each] else frozenset()
            free[each] -= taken
            if taken:
                previous[each] = taken
        members[f"m{number}"] = MemberSpec(topic_ids=topic_ids, previous=previous)
    wanted = frozenset().union(*(member.topic_ids for member in members.values()))
    return GroupSpec(members=members, partition_counts={each: counts[each] for each in wanted})


def check_complete(group: GroupSpec, assignment: Mapping[str, Partitions]) -> None:
    """Everything is assigned, once, to somebody who wants it."""
    assert assignment.keys() == group.members.keys()
    everything: Partitions = {}
    for member_id, each in assignment.items():
        assert each.keys() <= group.members[member_id].topic_ids
        assert all(each.values()), "an empty set"
        assert count(union(everything, each)) == count(everything) + count(each), "a partition is assigned twice"
        everything = union(everything, each)
    assert everything == {each: frozenset(range(size)) for each, size in group.partition_counts.items()}


@settings(deadline=None)
@given(group=st.one_of(groups(same=True), groups(same=False)), name=st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_is_assigned_once_to_a_subscriber(group: GroupSpec, name: str) -> None:
    check_complete(group, ASSIGNORS[name](group))


@settings(deadline=None)
@given(group=groups(same=True))
def test_the_uniform_assignor_is_even_and_moves_as_little_as_possible(group: GroupSpec) -> None:
    assignment = ASSIGNORS["uniform"](group)
    sizes = sorted(count(each) for each in assignment.values())
    assert sizes[-1] - sizes[0] <= 1
    share, extra_count = divmod(sum(group.partition_counts.values()), len(group.members))
    for member_id, member in group.members.items():
        had = {each: of_topic for each, of_topic in member.previous.items() if each in member.topic_ids}
        kept = count(intersection(had, assignment[member_id]))
        assert kept >= min(count(had), share), "a member lost what it could have kept"
    assert sum(count(each) > share for each in assignment.values()) == extra_count


@settings(deadline=None)
@given(group=groups(same=False))
def test_the_uniform_assignor_leaves_no_improving_single_move(group: GroupSpec) -> None:
    """No single move of a partition makes two members more even, unless the rounds were over."""
    assignment = ASSIGNORS["uniform"](group)
    for given_partitions in assignment.values():
        for taker, member in group.members.items():
            if not member.topic_ids.isdisjoint(given_partitions):
                assert count(given_partitions) - count(assignment[taker]) <= 1


@settings(deadline=None)
@given(group=groups(same=True), name=st.sampled_from(sorted(ASSIGNORS)))
def test_a_repeated_assignment_changes_nothing(group: GroupSpec, name: str) -> None:
    once = ASSIGNORS[name](group)
    members = {each: attrs.evolve(member, previous=once[each]) for each, member in group.members.items()}
    assert ASSIGNORS[name](attrs.evolve(group, members=members)) == once


def test_range_puts_equal_partitions_of_several_topics_together() -> None:
    for each in assigned("range", spec("T1=7 T2=7", A="T1 T2", B="T1 T2", C="T1 T2")).values():
        assert each["T1"] == each["T2"]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("topic_count", [1, 100])
def test_a_thousand_members_and_ten_thousand_partitions(name: str, topic_count: int) -> None:
    ids = [topic_id(f"t{number}") for number in range(topic_count)]
    members = {f"m{number}": MemberSpec(topic_ids=frozenset(ids)) for number in range(1000)}
    group = GroupSpec(members=members, partition_counts=dict.fromkeys(ids, 10_000 // topic_count))
    assignment = ASSIGNORS[name](group)
    check_sizes = sorted(count(each) for each in assignment.values())
    assert sum(check_sizes) == 10_000
    if name == "uniform":
        assert check_sizes[0] == check_sizes[-1] == 10
