"""Transactions that come together share one durable write.

There are two ways in. `commit` makes a transaction of its own, with its own expectations, revision and outcome, and
waits. `submit` is for synchronous state machines: it returns at once, and the changes of all that have submitted
meanwhile become one transaction, after which each is called back, in the order of the calls. So a change survives the
connection that asked for it, later changes of a key overwrite earlier ones, and the effects of callbacks on memory
happen in the order of the commits. Both take effect in the order of the calls.

One task, `run`, takes the waiting changes as a batch and writes it. A full disk, or a store that can't be reached,
fails the batch; a lost disk (StorageFailed) fails everything that waits, and ends the task and so the broker.

A commit that is cancelled before it was taken has no effect. Afterwards it is waited for, but only for a bounded time:
storage that is away must not keep a broker from stopping. If that commit takes effect, followers of the changes see it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from kafscale.cluster.metadata.base import Change, Entry, LocalMetadataStore, Outcome, Snapshot, Transaction
from kafscale.cluster.metadata.changes import ChangeReader, revision_of
from kafscale.concurrency.signals import OneShot, Signal
from kafscale.errors import StorageFailed, StorageFull, StoreError
from kafscale.metrics import Counter, Metrics

logger = logging.getLogger(__name__)

# Keys that share a durable write, so that it stays short; one caller's changes are never divided. etcd's default is 128
# operations a transaction, SQLite has no limit.
BATCH_TARGET_COUNT = 1000
CANCELLED_COMMIT_SECONDS = 2.0  # a disk sync or a PUT takes a fraction of this unless the storage is away

Changes = Mapping[str, bytes | None]  # key -> its new value, None: gone
Then = Callable[[bool], None]  # told whether the changes are durable


@attrs.frozen(eq=False, repr=False)
class _SubmittedChanges:
    """Changes that may share a transaction with others."""

    changes: Changes
    then: Then
    essential: bool


@attrs.define(eq=False, repr=False)
class _Ticket:
    """A transaction on its way: of one that waits for its outcome, or of submissions."""

    transaction: Transaction
    submissions: Sequence[_SubmittedChanges] = ()
    outcome: OneShot[Outcome] = attrs.field(factory=OneShot, init=False)

    @property
    def essential(self) -> bool:
        return self.transaction.essential

    @property
    def change_count(self) -> int:
        """The number of changes in it, at least 1."""
        transaction = self.transaction
        return len(transaction.puts) + len(transaction.deletes) + len(transaction.delete_prefixes) or 1

    def settle(self, outcome: Outcome) -> None:
        """Say what became of it."""
        if isinstance(outcome, StoreError) and self.submissions:  # of a full disk or a lost one the store itself tells
            logger.warning("%d changes of metadata are lost: %s", self.change_count, outcome)
        self.outcome.set(outcome)
        for submission in self.submissions:
            submission.then(isinstance(outcome, Change))


@attrs.define(eq=False, repr=False)
class _Touched:
    """Keys and prefixes that the transactions of a batch may change."""

    _keys: set[str] = attrs.field(factory=set, init=False)
    _prefixes: tuple[str, ...] = attrs.field(default=(), init=False)

    def add(self, transaction: Transaction) -> None:
        self._keys.update(transaction.puts, transaction.deletes)
        self._prefixes += tuple(transaction.delete_prefixes)

    def decides(self, transaction: Transaction) -> bool:
        """Tell whether it may depend on these whether what a transaction expects holds."""
        plan = transaction.planned_from
        keys = [*transaction.expect, *(plan.keys if plan is not None else ())]
        if any(key in self._keys or key.startswith(self._prefixes) for key in keys):
            return True
        prefixes = tuple(plan.prefixes) if plan is not None else ()
        if any(one.startswith(other) or other.startswith(one) for one in prefixes for other in self._prefixes):
            return True
        return bool(prefixes) and any(key.startswith(prefixes) for key in self._keys)


@attrs.define(eq=False, repr=False)
class GroupCommit:
    """A MetadataStore around a local one, which nothing else changes while `run` runs.

    The callers bound how much waits: one request per connection, one change of state per group.
    """

    local: LocalMetadataStore
    refused_count: Counter = attrs.field(factory=Counter, init=False)  # transactions, for want of room on the disk
    _waiting: deque[_Ticket | _SubmittedChanges] = attrs.field(factory=deque, init=False)
    _came: Signal = attrs.field(factory=Signal, init=False)
    _taken: Sequence[_Ticket] = attrs.field(default=(), init=False)  # the batch that is being written
    _failure: str | None = attrs.field(default=None, init=False)

    def register(self, metrics: Metrics) -> None:
        """Export the refused transactions."""
        help = "Transactions of metadata that a full disk had no room for."
        metrics.adopt_counter("kafscale_metadata_changes_refused_total", help, self.refused_count)

    @property
    def revision(self) -> int:
        return self.local.revision

    def changes(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
        return self.local.changes(after, notify)

    async def get(self, key: str) -> Entry | None:
        return await self.local.get(key)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self.local.list(prefix)

    async def check_room(self) -> None:
        await self.local.check_room()

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        return self.local.snapshot()

    async def aclose(self) -> None:
        """Do nothing: the local store is closed where it was opened."""
        await trio.lowlevel.checkpoint()

    def statistics(self) -> int:
        """Count the commits and submissions that wait for the next batch."""
        return len(self._waiting)

    # ---- what comes ------------------------------------------------------------------------------------------------

    async def commit(self, transaction: Transaction) -> int:
        if self._failure is not None:
            raise StorageFailed(self._failure)
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = _Ticket(transaction)
        self._queue(ticket)
        try:
            outcome = await ticket.outcome.wait()
        except trio.Cancelled:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                raise
            with trio.move_on_after(CANCELLED_COMMIT_SECONDS, shield=True):
                await ticket.outcome.wait()
            if not isinstance(ticket.outcome.value, Change):
                raise
            return ticket.outcome.value.revision
        return revision_of(outcome)

    def submit(self, changes: Changes, then: Then, *, essential: bool = False) -> None:
        """Commit the changes, all or none, and then call `then`, which must not raise.

        What is `essential` may use the room that a full disk has for that, and so may what is committed with it.
        """
        if self._failure is not None:
            then(False)
        else:
            self._queue(_SubmittedChanges(changes, then, essential))

    async def wait_settled(self) -> None:
        """Wait until everything that has come so far is durable or lost; return at once if nothing is on its way."""
        if self._waiting or self._taken:
            settled = trio.Event()
            self.submit({}, lambda durable: settled.set())
            await settled.wait()

    def _queue(self, comer: _Ticket | _SubmittedChanges) -> None:
        self._waiting.append(comer)
        self._came.set()

    # ---- what is written -------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled. Raises StorageFailed if the log or the local store fails."""
        try:
            task_status.started()
            while True:
                await self._came.wait()
                self._taken = self._take()
                if self._taken:
                    await self._write(self._taken)
        except StorageFailed as exc:
            self._failure = str(exc)
            self._fail(self._failure, submissions=True)
            raise
        finally:
            self._failure = self._failure or "the metadata store's writer has ended"
            self._fail(self._failure, submissions=False)

    async def _write(self, batch: Sequence[_Ticket]) -> None:
        """Make a batch durable, and say so in order."""
        try:
            outcomes = await self._apply([ticket.transaction for ticket in batch])
        except (StoreError, StorageFull) as exc:
            outcomes = [exc] * len(batch)
        self._taken = ()
        for ticket, outcome in zip(batch, outcomes, strict=True):
            self.refused_count.value += isinstance(outcome, StorageFull)
            ticket.settle(outcome)

    async def _apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Make them durable; none of them touches what a later one expects."""
        return await self.local.apply(transactions)

    def _take(self) -> Sequence[_Ticket]:
        """The next batch; empty if what waited has been cancelled."""
        batch: list[_Ticket] = []
        touched = _Touched()
        change_count = 0
        while self._waiting and change_count < BATCH_TARGET_COUNT:
            first = self._waiting[0]
            if isinstance(first, _SubmittedChanges):
                ticket = self._merged()
            elif touched.decides(first.transaction):
                break  # what it expects is looked at after everything that touches it has taken effect
            else:
                ticket = first
                self._waiting.popleft()
            batch.append(ticket)
            touched.add(ticket.transaction)
            change_count += ticket.change_count
        if not self._waiting:
            self._came.clear()
        return batch

    def _merged(self) -> _Ticket:
        """One transaction of the submissions that are in front."""
        merged: dict[str, bytes | None] = {}
        taken: list[_SubmittedChanges] = []
        while self._waiting and isinstance(submission := self._waiting[0], _SubmittedChanges):
            if merged and len(merged) + len(submission.changes) > BATCH_TARGET_COUNT:
                break
            merged.update(submission.changes)
            self._waiting.popleft()
            taken.append(submission)
        transaction = Transaction(
            puts={key: value for key, value in merged.items() if value is not None},
            deletes=[key for key, value in merged.items() if value is None],
            essential=any(submission.essential for submission in taken),
        )
        return _Ticket(transaction, taken)

    def _refuse_waiting(self, full: StorageFull) -> None:
        """Refuse waiting changes that are not essential, because the disk is full, without waiting for the present
        write.

        Submissions wait for it if it has some of them: they are called back in the order of their calls.
        """
        keeps_submissions = any(ticket.submissions for ticket in self._taken)
        waiting, self._waiting = self._waiting, deque()
        for comer in waiting:
            if comer.essential or (keeps_submissions and isinstance(comer, _SubmittedChanges)):
                self._waiting.append(comer)
                continue
            self.refused_count.value += 1
            if isinstance(comer, _SubmittedChanges):
                comer.then(False)
            else:
                comer.settle(full)

    def _fail(self, reason: str, *, submissions: bool) -> None:
        """Refuse what waits, as nothing is written any more.

        A submitter is told so only if that is because something has failed.
        """
        doomed, self._taken = self._taken, ()
        while doomed:
            for ticket in doomed:
                if submissions or not ticket.submissions:
                    ticket.settle(StorageFailed(reason))
            doomed = self._take()
