"""The journal protocol: make a batch durable and keep it until a segment has it. Three classes implement it.

start    `replay` hands over what no segment has; `keep_aside`; then `tasks` run
serving  `append` returns the `Round` to wait for; `read` returns entries that have left memory; `release` tells
         that a segment has an entry, so that unneeded files or objects can be deleted
stop     `settle`, then the last flush
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import StorageFailed
from kafscale.formats.wal_entries import WalEntry, WalFile


@attrs.define(eq=False, repr=False)
class KeptAside:
    """Record batches that a replay could not put back, counted by file; `unknown` ones also by topic id."""

    superseded: Counter[WalFile] = attrs.field(factory=Counter, init=False)
    unknown: Counter[tuple[WalFile, bytes]] = attrs.field(factory=Counter, init=False)

    @property
    def files(self) -> list[WalFile]:
        """The files that have such batches, in the order of the log."""
        found = {*self.superseded, *(file for file, _ in self.unknown)}
        return sorted(found, key=lambda file: file.header.number)

    def add_superseded(self, entry: WalEntry) -> None:
        assert entry.file is not None
        self.superseded[entry.file] += 1

    def add_unknown(self, entry: WalEntry) -> None:
        assert entry.file is not None
        self.unknown[entry.file, entry.topic_id] += 1

    def forget(self, file: WalFile) -> None:
        """Leave a file out: the user knows of its batches, or a later start will report them."""
        self.superseded.pop(file, None)
        for key in [key for key in self.unknown if key[0] is file]:
            del self.unknown[key]


CROWDED_FRACTION = 0.75  # of the bytes that a log may have
CROWDED_ENTRIES_COUNT = 250_000  # at 360 bytes of memory for each that waits for its flush


@attrs.define(eq=False, repr=False)
class Round:
    """Batches that become durable together: then `done` is set, or `failed` if they never will."""

    done: bool = attrs.field(default=False, init=False)
    failed: StorageFailed | None = attrs.field(default=None, init=False)
    _finished: trio.Event = attrs.field(factory=trio.Event, init=False)
    _signals: dict[Signal, None] = attrs.field(factory=dict, init=False)

    def succeed(self) -> None:
        self.done = True
        self._finish()

    def fail(self, failure: StorageFailed) -> None:
        self.failed = failure
        self._finish()

    def put_off(self) -> None:
        """Wake the waiters before it is durable; `wait` raises TooSlowError."""
        self._finish()

    def _finish(self) -> None:
        self._finished.set()
        for signal in self._signals:
            signal.set()
        self._signals.clear()

    def tell(self, signal: Signal) -> None:
        """Set a signal when `wait` would return, for callers that wait for several things."""
        if self._finished.is_set():
            signal.set()
        else:
            self._signals[signal] = None

    async def wait(self) -> None:
        """Wait until it is durable. Raises StorageFailed if it never will be, TooSlowError on a full disk."""
        await self._finished.wait()
        if self.failed is not None:
            raise StorageFailed(str(self.failed)) from self.failed
        if not self.done:
            raise trio.TooSlowError("the write-ahead log has no room")


Handle = Callable[[WalEntry], bool]  # whether a replayed entry is still needed; its data is valid during the call only


class EntryJournal:
    """The part of a journal that partitions and their readers use.

    By default it keeps entries, and its rounds do not depend on flushes.
    """

    __slots__ = ()

    @property
    def keeps_entries(self) -> bool:
        """Tell whether entries are durable before a flush takes them; if not, they are flushed at once."""
        return True

    def append(self, entry: WalEntry) -> Round:
        """Queue an entry behind all earlier ones; it is durable when the round is done.

        Raises StorageFailed if the journal is closed; the entry is not queued then.
        """
        raise NotImplementedError

    def retain(self, file: WalFile) -> None:
        """Keep a file with pending entries for a reader, who will `release` it."""
        raise NotImplementedError

    def release(self, file: WalFile, count: int = 1) -> None:
        """Report that `count` entries of the file are in segments, or are no longer wanted."""
        raise NotImplementedError

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        """Return the data of pending entries, one behind the other.

        `places` are position and length of each, in ascending order; what lies between is read too. Raises
        DamagedObject, StorageFailed, StoreError.
        """
        raise NotImplementedError

    def flush_began(self, owner: object, next_offset: int) -> None:
        """Note that a flush takes some or all of this owner's entries below `next_offset`."""

    def flush_committed(self, owner: object, end_offset: int) -> None:
        """Note that segments have the owner's entries below `end_offset`."""

    def forget(self, owner: object, failure: StorageFailed) -> None:
        """Forget an owner that is closed; waiters for its flush get the failure."""


class Journal(EntryJournal):
    """The journal of all partitions. By default it is not on the local disk, has no limits and no tasks."""

    __slots__ = ()

    @property
    def is_local(self) -> bool:
        """Tell whether kept entries can be read back cheaply, so that they need not stay in memory."""
        return False

    @property
    def is_last_word(self) -> bool:
        """Tell whether no other journal can have acknowledged entries by now."""
        return False

    # What holds back producers, or hurries flushes.

    @property
    def is_full(self) -> bool:
        """Tell whether appended entries must wait for room on the disk, so that nothing should be appended."""
        return False

    @property
    def lacks_room(self) -> bool:
        """Tell whether it is full because the local disk is."""
        return False

    async def wait_for_room(self) -> None:
        """Wait while it is full."""

    @property
    def is_crowded(self) -> bool:
        """Tell whether flushes should go faster."""
        return False

    @property
    def small_count(self) -> int:
        """Count the small objects that it has written, each of which costs a reader of the log a request; 0 on a
        disk.
        """
        return 0

    @property
    def on_growth(self) -> list[Callable[[], None]]:
        """Callbacks for one more object, or more entries while it is crowded."""
        raise NotImplementedError

    @property
    def pending_count(self) -> int:
        """Count the entries that are not released yet."""
        return 0

    # What the broker uses.

    async def replay(self, handle: Handle, *, on_progress: Callable[[int], None] | None = None) -> None:
        """Hand every entry kept over a restart to `handle`, in order; called once, before `tasks` run.

        Entries that `handle` needs are pending until released. `on_progress` gets the number of entries so far. Raises
        DamagedObject, naming the place, StorageFailed, StoreError.
        """

    @property
    def has_lost_entries(self) -> bool:
        """Tell whether acknowledged entries are missing, unsettled; known from the first replayed entry on."""
        return False

    async def settle_loss(self) -> None:
        """Forget the missing entries, since partitions durably go on behind them. Raises StorageFailed."""

    async def keep_aside(self, kept: KeptAside) -> None:
        """Copy the files with acknowledged batches that the replay could not put back.

        `kept` keeps only those that are reported to the user now. Raises StorageFailed.
        """

    @property
    def tasks(self) -> Sequence[Callable[..., Awaitable[None]]]:
        """The tasks that the storage nursery starts. The log in the bucket has none: metadata runs it."""
        return ()

    async def settle(self) -> None:
        """Wait until appended entries can be flushed, if they would be lost otherwise. Raises StorageFailed."""


@attrs.define(eq=False, repr=False)
class _Waiting:
    """The rounds that one partition waits for: `taken` ones are in a flush, each with its end offset."""

    round: Round = attrs.field(factory=Round, init=False)
    taken: deque[tuple[int, Round]] = attrs.field(factory=deque, init=False)


@attrs.define(eq=False, repr=False)
class FlushOnAppend(Journal):
    """The rounds of all partitions, done by flushes. Keeps no entries."""

    on_growth: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _waiting: defaultdict[object, _Waiting] = attrs.field(factory=lambda: defaultdict(_Waiting), init=False)

    @property
    def keeps_entries(self) -> bool:
        return False

    def append(self, entry: WalEntry) -> Round:
        return self._waiting[entry.owner].round

    def flush_began(self, owner: object, next_offset: int) -> None:
        """Start a new round, so that later batches do not delay the ones being flushed."""
        waiting = self._waiting[owner]
        if not waiting.taken or waiting.taken[-1][0] < next_offset:
            waiting.taken.append((next_offset, waiting.round))
            waiting.round = Round()

    def flush_committed(self, owner: object, end_offset: int) -> None:
        taken = self._waiting[owner].taken
        while taken and taken[0][0] <= end_offset:
            taken.popleft()[1].succeed()

    def taken(self, owner: object, end_offset: int) -> Sequence[Round]:
        """Return the rounds that a flush up to `end_offset` will do, oldest first."""
        waiting = self._waiting.get(owner)
        return [] if waiting is None else [taken for end, taken in waiting.taken if end <= end_offset]

    def forget(self, owner: object, failure: StorageFailed) -> None:
        waiting = self._waiting.pop(owner, None)
        if waiting is not None:
            for _, taken in waiting.taken:
                taken.fail(failure)
            waiting.round.fail(failure)
