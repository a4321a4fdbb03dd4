"""A page of the list of topics: what a query filters, its order, and the topics of one page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

import attrs
from starlette.datastructures import QueryParams

from kafscale.client.admin import list_topics
from kafscale.client.client import Client
from kafscale.console.paging import page_number, paged
from kafscale.console.topic_facts import TopicFacts, TopicFactsReader
from kafscale.wire.messages.topics import MetadataResponseTopic

PAGE_COUNT = 50
REST_FACTOR = 20  # a live part reuses a list for 20 times the seconds that it took: at most 5 % of a broker's time
SORTS = ("name", "partitions", "records", "bytes")
SORTS_BY_FACTS = ("records", "bytes")


@attrs.frozen(kw_only=True)
class TopicQuery:
    """Parameters of the list: a part of the name, the order, and the page from 1."""

    text: str = ""
    sort: str = "name"
    is_descending: bool = False
    has_internal: bool = False
    page: int = 1

    @classmethod
    def read(cls, given: QueryParams) -> TopicQuery:
        """Read parameters; wrong ones become the defaults."""
        sort = given.get("sort", "")
        return cls(
            text=given.get("q", "").strip(),
            sort=sort.removeprefix("-") if sort.removeprefix("-") in SORTS else "name",
            is_descending=sort.startswith("-"),
            has_internal=given.get("internal") == "1",
            page=page_number(given.get("page", "")),
        )

    def encoded(self, *, sort: str | None = None, page: int = 1) -> str:
        """Return the query of the same list in another order or at another page."""
        wanted = ("-" if self.is_descending else "") + self.sort if sort is None else sort
        values = {
            "q": self.text,
            "sort": "" if wanted == "name" else wanted,
            "internal": "1" if self.has_internal else "",
            "page": "" if page == 1 else str(page),
        }
        return urlencode({name: value for name, value in values.items() if value})

    def sorted_by(self, sort: str) -> str:
        """Return the query of a click on a column: numbers begin with the largest, a second click turns the order."""
        is_first_ascending = sort == "name"
        is_ascending = self.is_descending if self.sort == sort else is_first_ascending
        return self.encoded(sort=sort if is_ascending else f"-{sort}")

    def matches(self, topic: MetadataResponseTopic) -> bool:
        return (self.has_internal or not topic.is_internal) and self.text.lower() in (topic.name or "").lower()


@attrs.frozen(kw_only=True)
class TopicPage:
    query: TopicQuery
    rows: Sequence[TopicFacts]
    page_count: int
    found_count: int
    total_count: int


@attrs.define(eq=False, repr=False)
class TopicList:
    """The topics of one user."""

    facts: TopicFactsReader = attrs.field(factory=TopicFactsReader)
    clock: Callable[[], float] = time.monotonic
    _topics: Sequence[MetadataResponseTopic] = attrs.field(default=(), init=False)
    _fresh_until: float = attrs.field(default=0.0, init=False)

    async def page(self, client: Client, query: TopicQuery, *, is_live: bool = False) -> TopicPage:
        """Read one page. A live part may take a list that is some seconds old. Raises KafkaError, BrokerUnavailable."""
        topics = await self._list(client, is_live=is_live)
        found = [topic for topic in topics if query.matches(topic)]
        if query.sort in SORTS_BY_FACTS:
            all_facts = await self.facts.read(client, found, with_lag=False)
            by_size = sorted(all_facts, key=lambda facts: _number(facts, query.sort), reverse=query.is_descending)
            found = [facts.topic for facts in by_size]
        else:
            found.sort(key=_partition_count if query.sort == "partitions" else _name, reverse=query.is_descending)
        pages = paged(found, str(query.page), "/topics", parameters={}, per_page=PAGE_COUNT)
        return TopicPage(
            query=attrs.evolve(query, page=pages.number),
            rows=await self.facts.read(client, pages.rows),
            page_count=pages.last,
            found_count=pages.total,
            total_count=len(topics),
        )

    async def _list(self, client: Client, *, is_live: bool) -> Sequence[MetadataResponseTopic]:
        began = self.clock()
        if not is_live or began >= self._fresh_until:
            self._topics = await list_topics(client)
            ended = self.clock()
            self._fresh_until = ended + REST_FACTOR * (ended - began)
        return self._topics


def _name(topic: MetadataResponseTopic) -> str:
    return topic.name or ""


def _partition_count(topic: MetadataResponseTopic) -> int:
    return len(topic.partitions)


def _number(facts: TopicFacts, sort: str) -> int:
    return (facts.record_count if sort == "records" else facts.size_bytes) or 0
