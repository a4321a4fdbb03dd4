"""Looking for the topics that groups subscribe to by regular expressions: one group after the other, in a thread.

An expression is a client's: one that is large takes milliseconds for a single name, in which RE2 lets others run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping

import attrs
import trio

from kafscale.cluster.groups.consumer.events import RegexRefresh
from kafscale.cluster.groups.consumer.regexes import search
from kafscale.cluster.groups.consumer.topics import Topics
from kafscale.cluster.groups.hosted.group import HostedGroup
from kafscale.concurrency.signals import Signal

Found = Mapping[str, frozenset[str]]
Step = Callable[[Iterator[Found | None]], Awaitable[Found | None]]  # the next piece of a search


async def step_in_thread(searching: Iterator[Found | None]) -> Found | None:
    """Take the next step of a search, while others run."""
    return await trio.to_thread.run_sync(next, searching)


@attrs.define(eq=False, repr=False)
class TopicSearch:
    """Searches while `run` runs; each group waits for one search at most."""

    topics: Topics
    step: Step = step_in_thread
    _waiting: deque[tuple[HostedGroup, RegexRefresh]] = attrs.field(factory=deque, init=False)
    _asked: Signal = attrs.field(factory=Signal, init=False)

    def ask(self, group: HostedGroup, refresh: RegexRefresh) -> None:
        """Look for topics, and tell the group what was found."""
        self._waiting.append((group, refresh))
        self._asked.wake()

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            while not self._waiting:
                await self._asked.wait()
            group, refresh = self._waiting.popleft()
            if not group.is_dead:
                group.regexes_found(await self._search(refresh), refresh.version)

    async def _search(self, refresh: RegexRefresh) -> Found:
        searching = search(refresh, sorted(self.topics.by_name))
        while (found := await self.step(searching)) is None:
            pass
        return found
