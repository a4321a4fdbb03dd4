"""Metadata that is acknowledged by the log in the bucket: in the modes `s3-wal` and `segment`.

A commit is an entry of the log; when that is durable it is applied to the local store, and then its caller goes on.
So the local store never has what the log has not, and a broker with an empty disk finds everything in a checkpoint and
the entries behind it.

One task takes what waits as a group: it checks what is expected against the local store, to which everything earlier
has been applied, appends an entry for each transaction, and waits for them once. A transaction that expects something
begins a group of its own. Commits that come meanwhile wait for the next group, so under load they share PUTs.

A commit that is cancelled before it was taken has no effect; afterwards it is waited for, but not for ever: a store
that is away must not keep a broker from stopping. Whether that commit took effect is known only after the next start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from kafscale.cluster.metadata.base import Entry, MetadataStore, Transaction
from kafscale.cluster.metadata.ticket import Ticket
from kafscale.errors import PreconditionFailed, StorageFailed
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import WalObject, WalPosition
from kafscale.log.wal.local_wal import Round

GROUP_MAX_COUNT = 1000  # transactions that are applied before the first of them is answered
CANCELLED_COMMIT_SECONDS = 2.0  # a PUT takes a fraction of this unless the store is away

_NO_TOPIC = bytes(16)


class MetadataJournal(Protocol):
    """The log in the bucket."""

    def append(self, entry: WalEntry) -> Round: ...


@attrs.define(eq=False)
class JournaledMetadataStore:
    """A MetadataStore around the local one; usable while `run` runs.

    `applied_position`: everything in the log up to there is in the local store. `change_count` grows with each commit.
    """

    _local: MetadataStore
    _journal: MetadataJournal
    applied_position: WalPosition
    change_count: int = attrs.field(default=0, init=False)
    _queue: deque[Ticket] = attrs.field(factory=deque, init=False)
    _queued: trio.Event = attrs.field(factory=trio.Event, init=False)
    _failure: str | None = attrs.field(default=None, init=False)

    async def get(self, key: str) -> Entry | None:
        return await self._local.get(key)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._local.list(prefix)

    async def commit(self, transaction: Transaction) -> int:
        if self._failure is not None:
            raise StorageFailed(self._failure)
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = Ticket(transaction)
        self._queue.append(ticket)
        self._queued.set()
        try:
            await ticket.done.wait()
        except trio.Cancelled:
            if ticket in self._queue:
                self._queue.remove(ticket)
                raise
            with trio.CancelScope(deadline=trio.current_time() + CANCELLED_COMMIT_SECONDS, shield=True):
                await ticket.done.wait()
            if not ticket.done.is_set() or isinstance(ticket.outcome, Exception):
                raise
        return ticket.revision()

    async def aclose(self) -> None:
        """The local store belongs to whoever opened it."""
        await trio.lowlevel.checkpoint()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. Raises StorageFailed if the log or the local store fails."""
        group: Sequence[Ticket] = ()
        try:
            task_status.started()
            while True:
                await self._queued.wait()
                group = self._take()
                if group:
                    await self._write(group)
        except StorageFailed as exc:
            self._failure = str(exc)
            raise
        finally:
            self._failure = self._failure or "the metadata store's writer has ended"
            for ticket in (*group, *self._queue):
                if not ticket.done.is_set():
                    ticket.settle(StorageFailed(self._failure))
            self._queue.clear()

    def _take(self) -> Sequence[Ticket]:
        """The next group; empty if what waited has been cancelled."""
        group: deque[Ticket] = deque()
        while self._queue and len(group) < GROUP_MAX_COUNT and not (group and self._queue[0].transaction.expect):
            group.append(self._queue.popleft())
        if not self._queue:
            self._queued = trio.Event()
        return tuple(group)

    async def _write(self, group: Sequence[Ticket]) -> None:
        refusal = await self._refusal(group[0].transaction)
        if refusal is not None:
            group[0].settle(refusal)
            group = group[1:]
        entries = [_entry(ticket.transaction) for ticket in group]
        rounds = [self._journal.append(entry) for entry in entries]
        if not rounds:
            return
        await rounds[-1].wait()
        self.change_count += len(group)
        for ticket in group:
            ticket.settle(await self._local.commit(attrs.evolve(ticket.transaction, expect={})))
        written = entries[-1].file
        assert isinstance(written, WalObject)
        self.applied_position = written.position

    async def _refusal(self, transaction: Transaction) -> PreconditionFailed | None:
        for key, expected in transaction.expect.items():
            entry = await self._local.get(key)
            actual = 0 if entry is None else entry.revision
            if actual != expected:
                return PreconditionFailed(f"{key} has revision {actual}, not {expected}")
        return None


def _entry(transaction: Transaction) -> WalEntry:
    return WalEntry(_NO_TOPIC, -1, 0, 0, encode_transaction(transaction), kind=METADATA)
