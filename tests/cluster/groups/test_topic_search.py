"""Searches for the topics of regular expressions: no group and no client holds up others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import attrs
import pytest
import trio

from kafscale.cluster.groups.common.context import REGEXES_MAX_COUNT, RegexRefresh
from kafscale.cluster.groups.common.patterns import Piece
from kafscale.cluster.groups.common.topics import KnownTopic, KnownTopics
from kafscale.cluster.groups.topic_search import TopicSearch

TOPICS_COUNT = 312


@attrs.define(eq=False)
class Group:
    """The part of a group that a search needs."""

    pieces: list[Piece]  # that were run for all groups
    is_dead: bool = False
    found: Mapping[str, frozenset[str]] | None = None
    found_after: int = -1
    event: trio.Event = attrs.field(factory=trio.Event)

    def regexes_found(self, found: Mapping[str, frozenset[str]], version: int) -> None:
        self.found, self.found_after = found, len(self.pieces)
        self.event.set()


@pytest.fixture
def pieces() -> list[Piece]:
    return []


@pytest.fixture
def search(pieces: list[Piece]) -> TopicSearch:
    async def run_piece(piece: Piece) -> None:
        await trio.lowlevel.checkpoint()
        piece.run()
        pieces.append(piece)

    topics = KnownTopics()
    names = [f"topic-{number}" for number in range(TOPICS_COUNT)]
    topics.change(version=1, put=[KnownTopic(topic_id=name.encode(), name=name, partition_count=1) for name in names])
    return TopicSearch(topics, None, run_piece)


def refresh(*regexes: str, asker: Hashable = None) -> RegexRefresh:
    return RegexRefresh(viewers=dict.fromkeys(regexes, frozenset()), asker=asker, version=1)


def large(number: int) -> str:
    """An expression of which one name takes a tenth of a millisecond or more."""
    return f"topic-({number}|((.{{0,5}}){{9}}){{9}})"


@pytest.mark.parametrize("asker", [None, "mallory"])
async def test_one_groups_expressions_do_not_hold_up_other_groups(
    search: TopicSearch, pieces: list[Piece], nursery: trio.Nursery, asker: Hashable
) -> None:
    """200 members with large expressions over 312 topics kept another group waiting for 75 s; alone it took 0.3 s."""
    hostile: Any = Group(pieces)
    search.ask(hostile, refresh(*map(large, range(REGEXES_MAX_COUNT)), asker=asker))
    nursery.start_soon(search.run)
    calm: Any = Group(pieces)
    search.ask(calm, refresh("topic-1."))
    await calm.event.wait()
    assert calm.found == {"topic-1.": frozenset(f"topic-1{digit}" for digit in range(10))}
    assert calm.found_after <= 2 * 3, "a piece of each in turn"
    hostile.is_dead = True
    await hostile.event.wait()


async def test_many_groups_of_one_client_do_not_hold_up_another_client(
    search: TopicSearch, pieces: list[Piece], nursery: trio.Nursery
) -> None:
    hostile: list[Any] = [Group(pieces) for _ in range(50)]
    for number, each in enumerate(hostile):
        search.ask(each, refresh(large(number), asker="mallory"))
    calm: Any = Group(pieces)
    search.ask(calm, refresh("topic-1.", asker="alice"))
    nursery.start_soon(search.run)
    await calm.event.wait()
    assert calm.found_after <= 2 * 3


async def test_groups_with_the_same_expression_share_the_search(
    search: TopicSearch, pieces: list[Piece], nursery: trio.Nursery
) -> None:
    groups: list[Any] = [Group(pieces) for _ in range(20)]
    for each in groups:
        search.ask(each, refresh("topic-1."))
    nursery.start_soon(search.run)
    for each in groups:
        await each.event.wait()
    tested = [name for piece in pieces for name in piece.names]
    assert len(tested) == TOPICS_COUNT


async def test_groups_that_ask_during_a_search_are_served(search: TopicSearch, nursery: trio.Nursery) -> None:
    nursery.start_soon(search.run)
    for _ in range(3):
        group: Any = Group([])
        search.ask(group, refresh("topic-1."))
        await group.event.wait()
        assert len(group.found["topic-1."]) == 10
