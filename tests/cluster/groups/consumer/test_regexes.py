"""Subscriptions by regular expression: what is looked for, when, and for whom."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from kafscale.cluster.groups.common.context import REGEXES_MAX_COUNT, RegexRefresh
from kafscale.cluster.groups.common.patterns import PATTERN_MAX_LENGTH, PIECE_MAX_COUNT, Piece
from kafscale.cluster.groups.consumer.deciding import Viewers
from kafscale.cluster.groups.consumer.regexes import KnownMatches, Search
from kafscale.wire import error_codes as e
from tests.cluster.groups.consumer_groups import ConsumerClient, ConsumerGroupHarness, named, settle


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    made = ConsumerGroupHarness()
    made.put_topics(foo=2, foobar=2, bar=2)
    return made


def client(harness: ConsumerGroupHarness, member_id: str, regex: str) -> ConsumerClient:
    return ConsumerClient(harness=harness, member_id=member_id, regex=regex)


def test_topics_are_looked_for_after_the_heartbeat_that_asks(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo.*")
    assert only.beat().assignment == {}
    assert harness.refresh == RegexRefresh(viewers={"foo.*": frozenset()}, asker=None, version=1)
    only.beat(is_full=False)
    assert harness.last.refresh is None, "it is being looked for"
    harness.find_topics()
    settle(only)
    assert named(only.owned) == {"foo": {0, 1}, "foobar": {0, 1}}
    assert harness.group.is_subscribed_to("foobar")
    assert not harness.group.is_subscribed_to("bar")


@pytest.mark.parametrize(
    ("regex", "topics"),
    [("foo", {"foo"}), ("o", set()), ("foo|bar", {"foo", "bar"}), (".{3}", {"foo", "bar"}), (r"\w+bar", {"foobar"})],
)
def test_an_expression_must_match_the_whole_name(harness: ConsumerGroupHarness, regex: str, topics: set[str]) -> None:
    only = client(harness, "a", regex)
    only.beat()
    harness.find_topics()
    settle(only)
    assert named(only.owned).keys() == topics


def test_topics_of_names_and_of_an_expression_are_both_read(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo")
    only.topics = ("bar",)
    only.beat()
    harness.find_topics()
    settle(only)
    assert named(only.owned).keys() == {"foo", "bar"}


def test_a_member_with_a_resolved_regex_gets_topics_without_another_search(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo.*"), client(harness, "b", "foo.*")
    first.beat()
    harness.find_topics()
    settle(first)
    second.beat()
    settle(first, second)
    assert sorted(sum(map(len, each.owned.values())) for each in (first, second)) == [2, 2]
    assert harness.refresh is None


def test_new_topics_are_looked_for_but_not_more_often_than_every_ten_seconds(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo.*")
    only.beat()
    harness.find_topics()
    settle(only)
    harness.put_topics(foo2=1)
    harness.advance(10_000)
    only.beat(is_full=False)
    assert harness.refresh is None
    harness.advance(1)
    only.beat(is_full=False)
    harness.find_topics()
    settle(only)
    assert named(only.owned).keys() == {"foo", "foobar", "foo2"}


def test_an_old_regex_search_is_repeated(harness: ConsumerGroupHarness) -> None:
    """Without new topics: what a member may see can have changed."""
    only = client(harness, "a", "foo.*")
    only.beat()
    harness.find_topics()
    for _ in range(120):
        harness.advance(5000)
        only.beat(is_full=False)
        assert harness.refresh is None
    harness.advance(5000)
    only.beat(is_full=False)
    assert harness.refresh is not None
    epoch = harness.group.state.epoch
    harness.find_topics()
    assert harness.group.state.epoch == epoch, "nothing new was found"


def test_a_regex_without_subscribers_is_removed(harness: ConsumerGroupHarness) -> None:
    first, second = client(harness, "a", "foo.*"), client(harness, "b", "bar")
    first.beat()
    second.beat()
    harness.find_topics()
    harness.advance(10_001)
    settle(first, second)
    harness.find_topics()
    settle(first, second)
    assert harness.group.state.regexes.keys() == {"foo.*", "bar"}
    first.regex = "bar"
    first.beat()
    settle(first, second)
    assert harness.group.state.regexes.keys() == {"bar"}
    assert sorted(named(each.owned).keys() for each in (first, second)) == [{"bar"}, {"bar"}]
    second.leave()
    first.leave()
    assert not harness.group.state.regexes


def test_a_member_that_drops_its_expression_drops_its_topics(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo.*")
    only.beat()
    harness.find_topics()
    settle(only)
    only.regex, only.topics = "", ()
    only.beat()
    settle(only)
    assert only.owned == {}


def test_resolved_regexes_survive_a_restart(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo.*")
    only.beat()
    harness.find_topics()
    settle(only)
    harness.restart()
    written_count = len(harness.log)
    settle(only)
    assert named(only.owned).keys() == {"foo", "foobar"}
    assert len(harness.log) == written_count


def run(search: Search) -> Iterator[Piece]:
    for piece in search.pieces():
        piece.run()
        search.learn(piece)
        yield piece


def test_a_search_comes_in_pieces() -> None:
    names = [f"t{number}" for number in range(3 * PIECE_MAX_COUNT + 1)]
    search = Search(RegexRefresh(viewers={"t.*": frozenset()}, asker=None, version=1), names)
    lengths = [len(piece.names) for piece in run(search)]
    assert lengths == [PIECE_MAX_COUNT] * 3 + [1]
    assert search.found == {"t.*": frozenset(names)}


def test_matches_found_for_one_group_are_reused_for_another() -> None:
    refresh, known = RegexRefresh(viewers={"a.*": frozenset()}, asker=None, version=1), KnownMatches()
    for names, new in ((["ab", "b"], ["ab", "b"]), (["ab", "ac", "b"], ["ac"]), (["ab", "b"], [])):
        search = Search(refresh, names, known)
        assert [piece.names for piece in run(search)] == [new]
        assert search.found == {"a.*": frozenset(name for name in names if name.startswith("a"))}


def test_remembered_matches_have_a_bound() -> None:
    known = KnownMatches(max_count=10)
    for number in range(9):
        known.put(f"{number}", [f"t{number}" for number in range(4)], ["t1"])
    assert [bool(known.of(f"{number}")) for number in range(9)] == [False] * 7 + [True] * 2


def test_a_group_has_a_bound_of_expressions(harness: ConsumerGroupHarness) -> None:
    for number in range(REGEXES_MAX_COUNT):
        assert client(harness, f"m{number}", f"foo{number}").beat().error_code == e.NONE
    refused = client(harness, "one-too-many", "bar").beat()
    assert refused.error_code == e.INVALID_REQUEST
    assert client(harness, "same", "foo1").beat().error_code == e.NONE


@pytest.mark.parametrize(
    "regex",
    ["(", "[z-a]", r"(a)\1", "(?=a)b", "(?<!a)b", "a{1001}", "((a{100}){100}){100}", "x" * (PATTERN_MAX_LENGTH + 1)],
)
def test_an_invalid_or_too_large_regex_is_refused(harness: ConsumerGroupHarness, regex: str) -> None:
    refused = client(harness, "a", regex).beat()
    assert refused.error_code == e.INVALID_REGULAR_EXPRESSION
    assert len(refused.error_message or "") < 2 * PATTERN_MAX_LENGTH + 200


# -- Rights -----------------------------------------------------------------------------------------------------------


@attrs.define
class Table:
    """Rights as a table: by client, the topics that it may describe."""

    topics: dict[str, set[str]]
    version: int = 0

    def may_describe(self, viewer: str, topic: str) -> bool:
        return topic in self.topics[viewer]


@pytest.fixture
def guarded() -> ConsumerGroupHarness:
    rights = Table({"alice": {"foo", "foobar", "bar"}, "bob": {"bar"}})
    made = ConsumerGroupHarness(rights=rights)
    made.put_topics(foo=2, foobar=2, bar=2)
    return made


def change_rights(harness: ConsumerGroupHarness, **topics: set[str]) -> None:
    assert isinstance(harness.context.rights, Table)
    harness.context.rights.topics.update(topics)
    harness.context.rights.version += 1


def topics_of(client: ConsumerClient) -> set[str]:
    return set(named(client.owned))


def test_a_regex_finds_only_topics_that_the_member_can_describe(guarded: ConsumerGroupHarness) -> None:
    bob = client(guarded, "b", ".*")
    bob.viewer = "bob"
    bob.beat()
    guarded.find_topics()
    settle(bob)
    assert topics_of(bob) == {"bar"}


def test_an_expression_finds_other_topics_when_rights_change(guarded: ConsumerGroupHarness) -> None:
    bob = client(guarded, "b", ".*")
    bob.viewer = "bob"
    bob.beat()
    guarded.find_topics()
    settle(bob)
    for topics in ({"bar", "foo"}, {"foo"}, set[str]()):
        change_rights(guarded, bob=topics)
        guarded.advance(10_001)
        bob.beat(is_full=False)
        guarded.find_topics()
        settle(bob)
        assert topics_of(bob) == topics
        guarded.advance(10_001)
        bob.beat(is_full=False)
        assert guarded.refresh is None, "it has been looked for with these rights"


def test_joining_a_shared_regex_does_not_reveal_topics_of_another_client(
    guarded: ConsumerGroupHarness,
) -> None:
    """Kafka gives the newcomer what the expression has found with the other client's rights."""
    alice, bob = client(guarded, "a", ".*"), client(guarded, "b", ".*")
    alice.viewer, bob.viewer = "alice", "bob"
    alice.beat()
    guarded.find_topics()
    settle(alice)
    assert topics_of(alice) == {"foo", "foobar", "bar"}
    bob.beat()
    settle(bob, alice)
    assert topics_of(bob) == set()
    assert topics_of(alice) == {"foo", "foobar", "bar"}
    guarded.advance(10_001)
    bob.beat(is_full=False)
    guarded.find_topics()
    settle(bob, alice)
    assert topics_of(alice) | topics_of(bob) == {"bar"}, "the topics that both may describe"
    bob.leave()
    change_rights(guarded)
    guarded.advance(10_001)
    alice.beat(is_full=False)
    guarded.find_topics()
    settle(alice)
    assert topics_of(alice) == {"foo", "foobar", "bar"}


def test_after_a_restart_an_expression_is_searched_when_all_its_members_were_heard_from(
    guarded: ConsumerGroupHarness,
) -> None:
    alice, bob = client(guarded, "a", ".*"), client(guarded, "b", ".*")
    alice.viewer, bob.viewer = "alice", "bob"
    alice.beat()
    bob.beat()
    guarded.find_topics()
    guarded.advance(10_001)
    settle(alice, bob)
    guarded.find_topics()
    settle(alice, bob)
    assert topics_of(alice) | topics_of(bob) == {"bar"}
    guarded.restart()
    guarded.advance(10_001)
    alice.beat(is_full=False)
    assert guarded.refresh is None, "nobody knows yet what Bob may see"
    assert topics_of(alice) | topics_of(bob) == {"bar"}
    bob.beat(is_full=False)
    guarded.find_topics()
    settle(alice, bob)
    assert topics_of(alice) | topics_of(bob) == {"bar"}


def test_a_member_that_changes_to_the_classic_protocol_holds_up_no_search(guarded: ConsumerGroupHarness) -> None:
    viewers = Viewers()
    viewers.put("a", ".*", "alice", is_known=False)
    viewers.put("b", ".*", "bob", is_known=False)
    assert viewers.of(".*", 2) == {"alice", "bob"}
    viewers.remove("b")
    assert viewers.of(".*", 1) == {"alice"}
    assert viewers.waiting == {"a"}
