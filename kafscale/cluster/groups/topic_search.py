"""Looking for the topics that groups subscribe to by regular expressions: a piece of each search in turn, in a thread.

Expressions are clients': one that is large takes milliseconds for a single name, in which RE2 lets others run. Clients
take turns, and within each the groups that it asked for, so that the searches of one hold up its own alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence

import attrs
import trio

from kafscale.cluster.groups.consumer.deciding import Rights
from kafscale.cluster.groups.consumer.events import RegexRefresh
from kafscale.cluster.groups.consumer.regexes import KnownMatches, Search
from kafscale.cluster.groups.consumer.topics import KnownTopics
from kafscale.cluster.groups.hosted import HostedGroup
from kafscale.cluster.patterns import Piece
from kafscale.concurrency.signals import Signal

RunPiece = Callable[[Piece], Awaitable[None]]


async def run_in_thread(piece: Piece) -> None:
    """Run a piece of a search, while others run."""
    await trio.to_thread.run_sync(piece.run)


@attrs.define(eq=False, repr=False)
class _Searching:
    group: HostedGroup
    search: Search
    pieces: Iterator[Piece]


@attrs.define(eq=False, repr=False)
class TopicSearch:
    """Searches while `run` runs; each group waits for one search at most."""

    topics: KnownTopics
    rights: Rights | None = None
    run_piece: RunPiece = run_in_thread
    _waiting: dict[Hashable, deque[_Searching]] = attrs.field(factory=dict, init=False)  # by client; the next one first
    _asked: Signal = attrs.field(factory=Signal, init=False)
    _known: KnownMatches = attrs.field(factory=KnownMatches, init=False)
    _names: Sequence[str] = attrs.field(factory=tuple, init=False)
    _names_version: int = attrs.field(default=-1, init=False)

    def ask(self, group: HostedGroup, refresh: RegexRefresh) -> None:
        """Look for topics, and tell the group what was found."""
        if self._names_version != self.topics.version:
            self._names, self._names_version = sorted(self.topics.by_name), self.topics.version
        search = Search(refresh, self._names, self._known)
        if self.rights is not None:
            search.may_describe = self.rights.may_describe
        self._waiting.setdefault(refresh.asker, deque()).append(_Searching(group, search, search.pieces()))
        self._asked.wake()

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            while not self._waiting:
                await self._asked.wait()
            asker, searches = next(iter(self._waiting.items()))
            searching = searches.popleft()
            if await self._goes_on(searching):
                searches.append(searching)
            del self._waiting[asker]
            if searches:
                self._waiting[asker] = searches

    async def _goes_on(self, searching: _Searching) -> bool:
        """Run the next piece of a search, and tell whether there may be another one."""
        group, search = searching.group, searching.search
        piece = None if group.is_dead else next(searching.pieces, None)
        if piece is None:
            await trio.lowlevel.checkpoint()
            group.regexes_found(search.found, search.refresh.version)
        elif piece.names:
            await self.run_piece(piece)
            search.learn(piece)
        else:
            await trio.lowlevel.checkpoint()
        return piece is not None
