"""The journal of `--durability segment`: nothing is kept, and a batch is durable when the flush that takes it commits.

So a batch is to be flushed as soon as it is appended. What comes while a flush of its partition is under way waits for
the next one, and shares a `Round` with all else that waits for that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

import attrs

from kafscale.errors import StorageFailed
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.log.wal.journal import Handle, ReplayProgress, Round
from kafscale.log.wal.kept_aside import KeptAside


@attrs.define(eq=False, repr=False)
class _Waiting:
    """What one partition waits for: `taken` are rounds that flushes have begun with, and the offset behind each."""

    round: Round = attrs.field(factory=Round, init=False)
    taken: deque[tuple[int, Round]] = attrs.field(factory=deque, init=False)


@attrs.define(eq=False, repr=False)
class FlushOnAppend:
    """The rounds of all partitions. It has no entries, no tasks and no limits of its own."""

    keeps_entries: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    is_last_word: ClassVar[bool] = False
    is_full: ClassVar[bool] = False
    lacks_room: ClassVar[bool] = False
    is_crowded: ClassVar[bool] = False
    pending_count: ClassVar[int] = 0
    small_count: ClassVar[int] = 0
    tasks: ClassVar[Sequence[Callable[..., Awaitable[None]]]] = ()
    on_growth: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _waiting: defaultdict[object, _Waiting] = attrs.field(factory=lambda: defaultdict(_Waiting), init=False)

    def append(self, entry: WalEntry) -> Round:
        return self._waiting[entry.owner].round

    def flush_began(self, owner: object, next_offset: int) -> None:
        """Have what comes from now on share no round with what has come, so as not to put that off."""
        waiting = self._waiting[owner]
        if not waiting.taken or waiting.taken[-1][0] < next_offset:
            waiting.taken.append((next_offset, waiting.round))
            waiting.round = Round()

    def flush_committed(self, owner: object, end_offset: int) -> None:
        """Acknowledge whatever lies below the offset."""
        taken = self._waiting[owner].taken
        while taken and taken[0][0] <= end_offset:
            taken.popleft()[1].succeed()

    def forget(self, owner: object, failure: StorageFailed) -> None:
        waiting = self._waiting.pop(owner, None)
        if waiting is not None:
            for _, taken in waiting.taken:
                taken.fail(failure)
            waiting.round.fail(failure)

    def retain(self, file: WalFile) -> None:
        raise AssertionError(f"{file.name}: no entry is in a file")

    def release(self, file: WalFile, count: int = 1) -> None:
        raise AssertionError(f"{file.name}: no entry is in a file")

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        raise AssertionError(f"{file.name}: no entry is in a file")

    async def wait_for_room(self) -> None:
        """There is room."""

    async def replay(self, handle: Handle, *, on_progress: Callable[[ReplayProgress], None] | None = None) -> None:
        """There is nothing: what was acknowledged is in segments."""

    @property
    def has_lost_entries(self) -> bool:
        """Answer no: it keeps none."""
        return False

    async def settle_loss(self) -> None:
        """Do nothing."""

    async def keep_aside(self, kept: KeptAside) -> None:
        """There is nothing."""

    async def settle(self) -> None:
        """All that was appended can be flushed."""
