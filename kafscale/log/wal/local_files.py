"""The files of the local log: those in use, the next one, and spares.

    in use     oldest first; the last one is being written, those before it are sealed
    next       made in advance, so that a write need not wait for it
    spares     released files, kept for reuse: overwriting needs no transaction of the file system's journal

Files are allocated when they are made, so a full disk shows when the next one is made; that waits until deletions have
made room. Files are deleted from the oldest on, so that numbers have no gap. Knows no entries, only how many of a file
are pending. Order of use: `restore`, then `prepare` as a task, and `rotate` by the writer.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import StorageFailed, StorageFull
from kafscale.formats.wal_entries import FILE_HEADER_BYTES, FileHeader, WalFile, encode_file_header
from kafscale.log.wal.disk import NO_SPACE_ERRORS, Disk
from kafscale.log.wal.journal import KeptAside
from kafscale.log.wal.local_replay import SPARE_PREFIX, Extents, FilesReplay, file_name
from kafscale.store.paths import topic_id_text

NO_SPACE_RETRY_SECONDS = 1.0
KEPT_PREFIX = "superseded-"  # of the copy of a file, which no replay looks at
TOPICS_TOLD_MAX_COUNT = 10  # in one line of the log
SPARES_MAX_COUNT = 4  # files kept to be used again; one flush frees about one

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class Room:
    """State of the disk: `out_of_space` after a failed attempt to make or overwrite a file.

    `disk_is_full` if the disk was the reason, not the log's limit. `stalled_since` is set while the writer is held up
    by that, or by a file that is not ready.
    """

    out_of_space: bool = attrs.field(default=False, init=False)
    disk_is_full: bool = attrs.field(default=False, init=False)
    stalled_since: float | None = attrs.field(default=None, init=False)
    resumed: Signal = attrs.field(factory=Signal, init=False)

    def stall(self) -> None:
        self.stalled_since = trio.current_time()

    def resume(self) -> None:
        """Note that the writer goes on, and wake those who wait for room."""
        if self.stalled_since is not None:
            self.stalled_since = None
            self.out_of_space = self.disk_is_full = False
            self.resumed.wake()


@attrs.define(eq=False, kw_only=True, repr=False)
class LocalFiles:
    """The files of one log on one disk. `on_no_space` is called when there is no space for the next one.

    The limit is `max_bytes` of files, or `waiting_max_count` pending entries.
    """

    disk: Disk
    segment_bytes: int
    max_bytes: int
    waiting_max_count: int
    on_no_space: Callable[[], None]
    extents: Extents
    room: Room = attrs.field(factory=Room, init=False)
    in_use: deque[WalFile] = attrs.field(factory=deque, init=False)
    durable_sequence: int = attrs.field(default=0, init=False)  # of the last entry that is: a file begins behind it
    stall_count: int = attrs.field(default=0, init=False)  # how often the next file was not ready
    _next: WalFile | None = attrs.field(default=None, init=False)
    _spares: list[str] = attrs.field(factory=list, init=False)  # files of `segment_bytes`
    _next_number: int = attrs.field(default=1, init=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)  # held while files are made and deleted
    _work: Signal = attrs.field(factory=Signal, init=False)  # a file was taken, or may be deleted

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.in_use)

    @property
    def pending_count(self) -> int:
        return sum(file.pending_count for file in self.in_use)

    def restore(self, replay: FilesReplay) -> None:
        """Take over the files that a replay has found; called once, first."""
        self.in_use.extend(replay.files)
        self._next_number = replay.next_number
        self.durable_sequence = replay.next_sequence - 1

    async def note(
        self, *, is_end: bool = False, without: Collection[WalFile] = (), new: WalFile | None = None
    ) -> None:
        """Note which files there are; at the `is_end` of a run only those from the first pending entry on.

        Raises StorageFailed, StorageFull.
        """
        files = [file for file in (*self.in_use, self._next, new) if file is not None and file not in without]
        if is_end:
            first = next((at for at, file in enumerate(files) if file.pending_count), len(files))
            files = [file for file in files[first:] if file.header.started]
        await self.extents.note(
            [file.header.number for file in files],
            first_sequence=files[0].header.sequence if files else self.durable_sequence + 1,
            sequence=self.durable_sequence,
            last_number=self._next_number - 1,
        )

    async def prepare(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the next file ready and delete released ones. Raises StorageFailed when the disk fails."""
        task_status.started()
        while True:
            await self._prepare_next(self.segment_bytes)
            async with self._lock:
                all_deleted = await self._delete_released()
            if not all_deleted:
                await trio.sleep(NO_SPACE_RETRY_SECONDS)
            elif self._next is not None and not self.can_delete():
                await self._work.wait()

    async def rotate(self, entry_bytes: int) -> None:
        """Go on in the next file; one too short for the entry is replaced by one of the entry's size."""
        size_bytes = max(self.segment_bytes, FILE_HEADER_BYTES + entry_bytes)
        if self._next is None or self._next.size_bytes < size_bytes:
            self.stall_count += bool(self.in_use)
            self.room.stall()
            try:
                await self._prepare_next(size_bytes)
            finally:
                self.room.resume()
        assert self._next is not None
        if self.in_use:
            self.in_use[-1].sealed = True
        self.in_use.append(self._next)
        self._next = None
        self.wake()

    def can_delete(self) -> bool:
        return bool(self.in_use) and self.in_use[0].sealed and not self.in_use[0].pending_count

    def wake(self) -> None:
        self._work.wake()

    async def keep_aside(self, kept: KeptAside, topic_names: Mapping[bytes, str]) -> None:
        """Copy these files and report the new ones; the others are taken out of `kept`. Raises StorageFailed."""
        for file in kept.files:
            try:
                is_new = await self.keep_copy(file)
            except StorageFull as exc:
                logger.error(
                    "%s, which has acknowledged record batches that are not in the log: it stays in the write-ahead "
                    "log, and all files behind it, until a start finds room for the copy",
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
                self.disk.location,
            )
        if kept.unknown:
            logger.error(
                "%d record batches that were acknowledged here are not in the log, as the metadata does not know their "
                "topics: %s. Their metadata.db was lost, or an older copy of it is in its place. They are kept in %s "
                "of %s: stop the broker and run `kafscale adopt`, which creates the topics anew and gives the records "
                "back",
                kept.unknown.total(),
                _topics_text(kept, topic_names),
                ", ".join(dict.fromkeys(kept_name(file) for file, _ in kept.unknown)),
                self.disk.location,
            )

    async def keep_copy(self, file: WalFile) -> bool:
        """Copy a replayed file under a name that replays ignore; False if the copy exists already.

        Raises StorageFailed, or StorageFull: then the file stays in the log until a start has room for a copy.
        """
        name = kept_name(file)
        unfinished = f"{SPARE_PREFIX}{name}"  # which the next replay deletes
        try:
            listed = await self.disk.list()
            if name in listed:
                return False
            if unfinished in listed:
                await self.disk.delete(unfinished)
            content = await self.disk.read(file.name, 0, file.size_bytes)
            await self.disk.create(unfinished, len(content), content[:FILE_HEADER_BYTES])
            await self.disk.write_and_sync(unfinished, [content], 0)
            await self.disk.rename(unfinished, name)
        except OSError as exc:
            if exc.errno in NO_SPACE_ERRORS:
                file.pending_count += 1
                raise StorageFull(f"no space in {self.disk.location} for a copy of {file.name}") from exc
            raise self.failure(f"copy {file.name} to {name}", exc) from exc
        return True

    def failure(self, what: str, exc: OSError) -> StorageFailed:
        told = f"the WAL in {self.disk.location} failed: cannot {what}: {exc.strerror} (errno {exc.errno})"
        return StorageFailed(f"{told}; free some space, nothing is lost" if exc.errno in NO_SPACE_ERRORS else told)

    async def _prepare_next(self, size_bytes: int) -> None:
        async with self._lock:
            while self._next is None or self._next.size_bytes < size_bytes:
                if self._next is not None:
                    too_short, self._next = self._next, None
                    await self.note()
                    await self._discard(too_short)  # or a start does: it holds nothing
                if self._over_limit(size_bytes):
                    self.room.disk_is_full = False
                    await self._wait_for_space(size_bytes)
                    continue
                may_reuse = not self._spares and size_bytes == self.segment_bytes
                try:
                    self._next = await self._make(size_bytes)
                except StorageFull:
                    self.room.disk_is_full = True
                    await self._wait_for_space(size_bytes, may_reuse=may_reuse)
            self.room.out_of_space = self.room.disk_is_full = False

    def _over_limit(self, size_bytes: int) -> bool:
        """Tell whether one more file is too much; not at a start, nor beside a single file."""
        if len(self.in_use) < 2 or self.in_use[-1].sealed:
            return False
        files_bytes = self.size_bytes
        if size_bytes != self.segment_bytes:
            files_bytes += len(self._spares) * self.segment_bytes
        return self._has_too_many() or files_bytes + size_bytes > self.max_bytes

    def _has_too_many(self) -> bool:
        return self.pending_count > self.waiting_max_count * 3 // 4  # this file and the next one come on top

    async def _wait_for_space(self, size_bytes: int, *, may_reuse: bool = False) -> None:
        """Wait until some got free. A released file is kept if it can be reused: others may take its space."""
        if not self.room.out_of_space:
            logger.warning(
                "%s: produces wait until flushes have freed some",
                f"{self.pending_count} batches wait for a flush, as many as the memory is meant for"
                if self._has_too_many()
                else f"no space for a WAL file of {size_bytes} bytes in {self.disk.location}",
            )
        self.room.out_of_space = True
        self.on_no_space()
        if not self.can_delete() and not self._spares:
            with trio.move_on_after(NO_SPACE_RETRY_SECONDS):
                await self._work.wait()
        released = await self._delete_released()
        if may_reuse and self._spares:
            return
        if not (released and await self._delete_spares()):
            await trio.sleep(NO_SPACE_RETRY_SECONDS)

    async def _make(self, size_bytes: int) -> WalFile:
        try:
            file = await self._create(size_bytes)
        except OSError as exc:
            if exc.errno not in NO_SPACE_ERRORS:
                raise self.failure("make a file", exc) from exc
            raise StorageFull(f"no space for a WAL file of {size_bytes} bytes in {self.disk.location}") from exc
        try:
            await self.note(new=file)
        except StorageFull:
            await self._delete(file.name)
            await trio.sleep(NO_SPACE_RETRY_SECONDS)  # room for files is none for the note
            raise
        return file

    async def _create(self, size_bytes: int) -> WalFile:
        header = FileHeader(
            number=self._next_number,
            sequence=self.durable_sequence + 1,  # not the next one to be given out: those before it may yet be lost
            salt=random.getrandbits(32),
            created_ms=time.time_ns() // 1_000_000,
        )
        self._next_number += 1
        file = WalFile(file_name(header.number), header, size_bytes)
        spare = self._spares[-1] if self._spares and size_bytes == self.segment_bytes else None
        await self.disk.create(file.name, size_bytes, encode_file_header(header), reuse=spare)
        if spare is not None:
            self._spares.remove(spare)
        return file

    async def _delete_released(self) -> bool:
        """Delete from the oldest on, so that numbers have no gap; under the lock. False if one can't be deleted now."""
        released = list(takewhile(lambda file: file.sealed and not file.pending_count, self.in_use))
        if not released:
            return True
        try:
            await self.note(without=released)
        except StorageFull:
            return False
        for file in released:
            if not await self._discard(file):
                return False
            self.in_use.popleft()
        return True

    async def _delete_spares(self) -> bool:
        while self._spares:
            if not await self._delete(self._spares[-1]):
                return False
            self._spares.pop()
        return True

    async def _discard(self, file: WalFile) -> bool:
        """Keep the file as a spare, or delete it if its size differs or there are enough."""
        spares_max_count = SPARES_MAX_COUNT
        if self.room.out_of_space:
            spares_max_count = 1 if self.room.disk_is_full else 0
        if file.size_bytes != self.segment_bytes or len(self._spares) >= spares_max_count:
            return await self._delete(file.name)
        spare = f"{SPARE_PREFIX}{file.name}"
        try:
            await self.disk.rename(file.name, spare)
        except OSError as exc:
            if exc.errno in NO_SPACE_ERRORS:
                return await self._delete(file.name)
            raise self.failure(f"rename {file.name}", exc) from exc
        self._spares.append(spare)
        return True

    async def _delete(self, name: str) -> bool:
        """Delete a file; False without the room that a copy-on-write file system needs for that."""
        try:
            await self.disk.delete(name)
        except OSError as exc:
            if exc.errno in NO_SPACE_ERRORS:
                return False
            raise self.failure(f"delete {name}", exc) from exc
        return True


def kept_name(file: WalFile) -> str:
    return f"{KEPT_PREFIX}{file.name}"


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
