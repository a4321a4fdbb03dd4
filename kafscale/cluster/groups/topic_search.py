"""Search the topics that groups subscribe to by regular expressions, piece by piece and in turn, in a thread.

A large expression takes milliseconds for a single name, in which RE2 lets other threads run. Clients take turns, and
within each client its groups, so the searches of one client delay only its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs
import trio

from kafscale.cluster.groups.common.context import RegexRefresh, Rights
from kafscale.cluster.groups.common.patterns import Piece
from kafscale.cluster.groups.common.topics import KnownTopics
from kafscale.cluster.groups.consumer.group import ConsumerGroup
from kafscale.cluster.groups.consumer.regexes import KnownMatches, Search
from kafscale.concurrency.signals import Signal
from kafscale.concurrency.turns import FairQueue

RunPiece = Callable[[Piece], Awaitable[None]]


async def run_in_thread(piece: Piece) -> None:
    await trio.to_thread.run_sync(piece.run)


@attrs.frozen(eq=False, repr=False)
class _Searching:
    group: ConsumerGroup
    search: Search
    pieces: Iterator[Piece]


@attrs.define(eq=False, repr=False)
class TopicSearch:
    """Searches while `run` runs; each group waits for one search at most."""

    topics: KnownTopics
    rights: Rights | None = None
    run_piece: RunPiece = run_in_thread
    _waiting: FairQueue[_Searching] = attrs.field(factory=FairQueue, init=False)  # clients take turns
    _asked: Signal = attrs.field(factory=Signal, init=False)
    _known: KnownMatches = attrs.field(factory=KnownMatches, init=False)
    _names: Sequence[str] = attrs.field(factory=tuple, init=False)
    _names_version: int = attrs.field(default=-1, init=False)

    def ask(self, group: ConsumerGroup, refresh: RegexRefresh) -> None:
        """Search for topics, and tell the group the result."""
        if self._names_version != self.topics.version:
            self._names, self._names_version = sorted(self.topics.by_name), self.topics.version
        search = Search(refresh, self._names, self._known)
        if self.rights is not None:
            search.may_describe = self.rights.may_describe
        self._waiting.append(refresh.asker, _Searching(group, search, search.pieces()))
        self._asked.wake()

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            while not self._waiting:
                await self._asked.wait()
            asker, searching = self._waiting.pop()
            if await self._goes_on(searching):
                self._waiting.append(asker, searching)

    async def _goes_on(self, searching: _Searching) -> bool:
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
