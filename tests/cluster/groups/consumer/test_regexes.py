"""Subscriptions by regular expression: what is looked for, when, and that no expression takes the broker's time."""

from __future__ import annotations

import time

import pytest

from kafscale.cluster.groups.consumer.events import Refused, RegexRefresh
from kafscale.cluster.groups.consumer.regexes import SEARCH_PIECE_COUNT, compile_regex, search
from kafscale.cluster.groups.consumer.settings import REGEX_MAX_COUNT
from kafscale.wire import error_codes as e
from tests.devtools.consumer_groups import ConsumerClient, ConsumerGroupHarness, named, settle


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
    assert harness.refresh == RegexRefresh(regexes=frozenset({"foo.*"}), version=1)
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


def test_who_has_an_expression_that_is_known_has_its_topics_at_once(harness: ConsumerGroupHarness) -> None:
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


def test_what_is_old_is_looked_for_again(harness: ConsumerGroupHarness) -> None:
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


def test_what_nobody_subscribes_to_any_more_is_forgotten(harness: ConsumerGroupHarness) -> None:
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


def test_what_was_looked_for_in_vain_is_looked_for_again(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo.*")
    only.beat()
    harness.refresh = None
    harness.group.regexes_not_found()
    only.beat(is_full=False)
    assert harness.refresh is not None


def test_what_was_found_stays_over_a_restart(harness: ConsumerGroupHarness) -> None:
    only = client(harness, "a", "foo.*")
    only.beat()
    harness.find_topics()
    settle(only)
    harness.restart()
    written_count = len(harness.log)
    settle(only)
    assert named(only.owned).keys() == {"foo", "foobar"}
    assert len(harness.log) == written_count


def test_only_topics_that_may_be_described_are_found() -> None:
    refresh = RegexRefresh(regexes=frozenset({"a.*", ".*z"}), version=1)
    found = list(search(refresh, ["az", "ab", "z"], is_visible=lambda name: name != "ab"))
    assert found == [None, {"a.*": frozenset({"az"}), ".*z": frozenset({"az", "z"})}]


def test_a_search_comes_in_pieces() -> None:
    refresh = RegexRefresh(regexes=frozenset({"t.*"}), version=1)
    names = [f"t{number}" for number in range(3 * SEARCH_PIECE_COUNT + 1)]
    *pieces, found = search(refresh, names)
    assert pieces == [None] * 4
    assert found == {"t.*": frozenset(names)}


@pytest.mark.parametrize(
    "regex",
    ["(", "[z-a]", r"(a)\1", "(?=a)b", "(?<!a)b", "a{1001}", "((a{100}){100}){100}", "x" * (REGEX_MAX_COUNT + 1)],
)
def test_what_is_not_re2_or_too_large_is_refused(regex: str) -> None:
    with pytest.raises(Refused) as refused:
        compile_regex(regex)
    assert refused.value.error_code == e.INVALID_REGULAR_EXPRESSION
    assert len(refused.value.message) < 2 * REGEX_MAX_COUNT + 200


@pytest.mark.parametrize("regex", ["(a+)+$", "(a|aa)+$", "(a*)*b", "(.*a){20}b", "(x+x+)+y", "(a?){30}a{30}b"])
def test_no_expression_takes_longer_than_linear_time(regex: str) -> None:
    """Python's `re` comes to no end with some of these; the bound is a thousand times too wide."""
    begun = time.process_time()
    matches = compile_regex(regex).fullmatch
    for _ in range(10):
        assert matches("a" * 248 + "!") is None
    assert time.process_time() - begun < 5
