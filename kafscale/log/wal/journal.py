"""The journal protocol: make a batch durable and keep it until a segment has it. Three classes implement it.

    `--durability wal`      `local_wal.Wal`     a log on the local disk: durable by a sync
    `--durability s3-wal`   `s3_wal.S3Wal`      a log in the bucket: durable by a PUT
    `--durability segment`  `FlushOnAppend`     no log: durable by the flush that takes the batch

Its life:

    start    `replay` hands over what no segment has; `keep_aside`; then `tasks` run
    serving  `append` returns the `Round` to wait for; `read` returns entries that have left memory; `release` tells
             that a segment has an entry, so that unneeded files or objects can be deleted
    stop     `settle`, then the last flush

A start may find acknowledged batches that it cannot put back: `superseded` ones, whose offsets another broker has
written, and those of `unknown` topics, because `metadata.db` was lost or is an older copy. The files of a local log
that have such batches are copied (`KeptAside`), and `kafscale adopt` gives back the batches of unknown topics.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import StorageFailed, StorageFull
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.store.paths import topic_id_text

KEPT_PREFIX = "superseded-"  # of the copy of a file, which no replay looks at
TOPICS_TOLD_MAX_COUNT = 10  # in one line of the log

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class KeptAside:
    """Counts of record batches that a replay did not put back, by file, and `unknown` ones by the id of their topic."""

    superseded: Counter[WalFile] = attrs.field(factory=Counter, init=False)
    unknown: Counter[tuple[WalFile, bytes]] = attrs.field(factory=Counter, init=False)

    @property
    def files(self) -> list[WalFile]:
        """The files that have such batches, in the order of the log."""
        found = {*self.superseded, *(file for file, _ in self.unknown)}
        return sorted(found, key=lambda file: file.header.number)

    def add_superseded(self, entry: WalEntry) -> None:
        """Count a batch whose offsets another broker has written."""
        assert entry.file is not None
        self.superseded[entry.file] += 1

    def add_unknown(self, entry: WalEntry) -> None:
        """Count a batch of a topic or partition that the metadata does not know."""
        assert entry.file is not None
        self.unknown[entry.file, entry.topic_id] += 1

    def forget(self, file: WalFile) -> None:
        """Leave out what a file has: the user knows of it, or will be told by a later start."""
        self.superseded.pop(file, None)
        for key in [key for key in self.unknown if key[0] is file]:
            del self.unknown[key]


def kept_name(file: WalFile) -> str:
    """Return the name of the copy of a file."""
    return f"{KEPT_PREFIX}{file.name}"


async def keep_copies(
    kept: KeptAside,
    keep_copy: Callable[[WalFile], Awaitable[bool]],
    location: str,
    topic_names: Mapping[bytes, str],
) -> None:
    """Copy these files, and tell the user of those that are new; the others are taken out. Raises StorageFailed.

    `keep_copy` tells whether there was no copy yet; it raises StorageFull where there is no room for one.
    `topic_names` are those that the log has told.
    """
    for file in kept.files:
        try:
            is_new = await keep_copy(file)
        except StorageFull as exc:
            logger.error(
                "%s, which has acknowledged record batches that are not in the log: it stays in the write-ahead log, "
                "and all files behind it, until a start finds room for the copy",
                exc,
            )
            is_new = False
        if not is_new:
            kept.forget(file)  # an earlier start has kept it and told so, or a later one will
    if kept.superseded:
        logger.error(
            "%d record batches that were acknowledged here are not in the log: another broker has taken over and "
            "written the same partitions; they are kept in %s of %s: see `kafscale inspect --batches`",
            kept.superseded.total(),
            ", ".join(map(kept_name, sorted(kept.superseded, key=lambda file: file.header.number))),
            location,
        )
    if kept.unknown:
        logger.error(
            "%d record batches that were acknowledged here are not in the log, as the metadata does not know their "
            "topics: %s. Their metadata.db was lost, or an older copy of it is in its place. They are kept in %s of "
            "%s: stop the broker and run `kafscale adopt`, which creates the topics anew and gives the records back",
            kept.unknown.total(),
            _topics_text(kept, topic_names),
            ", ".join(dict.fromkeys(kept_name(file) for file, _ in kept.unknown)),
            location,
        )


def _topics_text(kept: KeptAside, topic_names: Mapping[bytes, str]) -> str:
    counts: Counter[bytes] = Counter()
    for (_, topic_id), count in kept.unknown.items():
        counts[topic_id] += count
    told = [
        f"{topic_names.get(topic_id, 'name unknown')} ({topic_id_text(topic_id)}): {count}"
        for topic_id, count in counts.most_common(TOPICS_TOLD_MAX_COUNT)
    ]
    more = len(counts) - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")


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
        """Mark it durable and wake the waiters."""
        self.done = True
        self._finish()

    def fail(self, failure: StorageFailed) -> None:
        """Fail it for good and wake the waiters."""
        self.failed = failure
        self._finish()

    def put_off(self) -> None:
        """Tell the waiters that it will become durable at an unknown time."""
        self._finish()

    def _finish(self) -> None:
        self._finished.set()
        for signal in self._signals:
            signal.set()
        self._signals.clear()

    def tell(self, signal: Signal) -> None:
        """Set a signal as soon as `wait` returns or raises, for callers that wait for several things."""
        if self._finished.is_set():
            signal.set()
        else:
            self._signals[signal] = None

    async def wait(self) -> None:
        """Wait until the round is durable.

        Raises StorageFailed if it can't become so, TooSlowError if it may yet, after waiting for space on the disk.
        """
        await self._finished.wait()
        if self.failed is not None:
            raise StorageFailed(str(self.failed)) from self.failed
        if not self.done:
            raise trio.TooSlowError("the write-ahead log has no room")


@attrs.frozen
class ReplayProgress:
    """Progress of a replay: `file_count` of `files_count` files or objects are done."""

    file_count: int
    files_count: int
    entry_count: int
    read_bytes: int


Handle = Callable[[WalEntry], bool]  # whether a replayed entry is still needed; its data is valid during the call only


class EntryJournal(Protocol):
    """The part of a journal that partitions and their readers use."""

    @property
    def keeps_entries(self) -> bool:
        """Tell whether entries are durable before a flush takes them; if not, they are to be flushed at once."""

    def append(self, entry: WalEntry) -> Round:
        """Take an entry behind all earlier ones; it is durable when the round is done.

        Raises StorageFailed if nothing is taken any more.
        """

    def retain(self, file: WalFile) -> None:
        """Keep a file that has entries pending, for a reader of one of them who will `release` it."""

    def release(self, file: WalFile, count: int = 1) -> None:
        """Say that `count` entries of the file are in segments, or are no longer wanted."""

    async def read(self, file: WalFile, places: Sequence[tuple[int, int]]) -> bytes:
        """The data of entries that are not released yet, one behind the other.

        `places` are position and length of each, in ascending order. Raises DamagedObject, StorageFailed, StoreError.
        """

    def flush_began(self, owner: object, next_offset: int) -> None:
        """A flush takes what has come of this owner, all of it below `next_offset`, or the first part of it."""

    def flush_committed(self, owner: object, end_offset: int) -> None:
        """Segments have the owner's entries below `end_offset`."""

    def forget(self, owner: object, failure: StorageFailed) -> None:
        """The owner is closed: nothing of it is flushed any more. Who waits for a flush gets the failure."""


class Journal(EntryJournal, Protocol):
    """The journal of all partitions."""

    @property
    def is_local(self) -> bool:
        """Tell whether what it keeps is read back at little cost, from the local disk, and need not stay in memory."""

    @property
    def is_last_word(self) -> bool:
        """Tell whether the durable entries here are all that can have been acknowledged by now."""

    # What holds back producers, or hurries flushes.

    @property
    def is_full(self) -> bool:
        """Tell whether what is appended now has to wait for room on the disk, so that nothing should be."""

    @property
    def lacks_room(self) -> bool:
        """Tell whether it is full as the local disk is."""

    async def wait_for_room(self) -> None:
        """Wait while it is full."""

    @property
    def is_crowded(self) -> bool:
        """Tell whether more should be flushed than is."""

    @property
    def small_count(self) -> int:
        """Count the small objects that it has written: who reads the log back asks for each. 0 of a log on a disk."""

    @property
    def on_growth(self) -> list[Callable[[], None]]:
        """Callbacks for when the log has one more object, or more entries while it is crowded."""

    @property
    def pending_count(self) -> int:
        """Count the entries that it keeps and that are not released yet."""

    # What the broker uses.

    async def replay(self, handle: Handle, *, on_progress: Callable[[ReplayProgress], None] | None = None) -> None:
        """Hand every entry that it kept over a restart to `handle`, in order; to be called once, before `tasks` run.

        What `handle` needs is pending until it is released. Raises DamagedObject, StorageFailed, StoreError.
        """

    @property
    def has_lost_entries(self) -> bool:
        """Tell whether acknowledged entries are missing from it, and partitions do not go on behind them yet.

        Known from the first entry on that a replay hands over.
        """

    async def settle_loss(self) -> None:
        """Forget that entries are missing, as it is durable that partitions go on behind them. Raises StorageFailed."""

    async def keep_aside(self, kept: KeptAside) -> None:
        """Keep for the user the files with acknowledged batches that the replay could not put back.

        Those files stay in `kept` that the user is told about now, for the first time. Raises StorageFailed.
        """

    @property
    def tasks(self) -> Sequence[Callable[..., Awaitable[None]]]:
        """The tasks that the storage nursery is to `start`. The log in the bucket has none: metadata runs it."""

    async def settle(self) -> None:
        """Wait until what was appended can be flushed, where it would be lost otherwise. Raises StorageFailed."""


class LogJournal:
    """Defaults shared by the two logs: for them a flush only releases entries."""

    __slots__ = ()

    keeps_entries: ClassVar[bool] = True

    def flush_began(self, owner: object, next_offset: int) -> None:
        """Do nothing: rounds do not depend on flushes."""

    def flush_committed(self, owner: object, end_offset: int) -> None:
        """Do nothing: rounds do not depend on flushes."""

    def forget(self, owner: object, failure: StorageFailed) -> None:
        """Do nothing: what was appended becomes durable all the same."""


@attrs.define(eq=False, repr=False)
class _Waiting:
    """The rounds that one partition waits for: `taken` ones are in a flush, each with its end offset."""

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
        """Start a new round, so that later batches do not delay the ones that are being flushed."""
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
        """Return at once: there is always room."""

    async def replay(self, handle: Handle, *, on_progress: Callable[[ReplayProgress], None] | None = None) -> None:
        """Do nothing: all acknowledged batches are in segments."""

    @property
    def has_lost_entries(self) -> bool:
        """Answer no: it keeps none."""
        return False

    async def settle_loss(self) -> None:
        """Do nothing."""

    async def keep_aside(self, kept: KeptAside) -> None:
        """Do nothing: nothing is kept."""

    async def settle(self) -> None:
        """All that was appended can be flushed."""
