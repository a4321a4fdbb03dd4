"""Group commit: transactions that come together share one durable write, and take effect in the order of the calls.

A full disk, or a store that can't be reached, fails the batch; a lost disk (StorageFailed) fails everything that waits,
and ends `run` and so the broker. A commit that is cancelled before it was taken has no effect. Afterwards it is waited
for, but only for a bounded time: storage that is away must not keep a broker from stopping.

With `s3-wal` and `segment` a transaction is durable in the bucket before it is applied to the local store (`LogFirst`):
in the log of a lone broker (`JournaledMetadataStore`), or in the head (`shared`). Conditions are checked in the local
store before the batch is written: nothing of the batch touches them, and everything earlier has been applied. A full
disk refuses transactions before they are written. Those written already are applied in the reserved room, or wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import trio

from kafscale.cluster.metadata.base import (
    Change,
    Entry,
    Listener,
    LocalMetadataStore,
    Outcome,
    Transaction,
    revision_of,
)
from kafscale.concurrency.signals import OneShot, Signal
from kafscale.errors import StorageFailed, StorageFull, StoreError
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import WalObject, WalPosition
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.metrics import Counter, Metrics

# Keys that share a durable write, so that it stays short; one transaction is never divided. etcd's default is 128
# operations a transaction, SQLite has no limit.
BATCH_TARGET_COUNT = 1000
CANCELLED_COMMIT_SECONDS = 2.0  # a disk sync or a PUT takes a fraction of this unless the storage is away


@attrs.define(eq=False, repr=False)
class _Ticket:
    """A transaction that waits for its outcome."""

    transaction: Transaction
    outcome: OneShot[Outcome] = attrs.field(factory=OneShot, init=False)


@attrs.define(eq=False, repr=False)
class _Touched:
    """Keys and prefixes that the transactions of a batch may change."""

    _keys: set[str] = attrs.field(factory=set, init=False)
    _prefixes: tuple[str, ...] = attrs.field(default=(), init=False)

    def add(self, transaction: Transaction) -> None:
        self._keys.update(transaction.puts, transaction.deletes)
        self._prefixes += tuple(transaction.delete_prefixes)

    def decides(self, transaction: Transaction) -> bool:
        """Tell whether one of these may be among the conditions of a transaction."""
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

    The callers bound the number of waiting transactions: one request per connection, one change of state per group.
    """

    local: LocalMetadataStore
    refused_count: Counter = attrs.field(factory=Counter, init=False)  # transactions, for want of room on the disk
    _waiting: deque[_Ticket] = attrs.field(factory=deque, init=False)
    _came: Signal = attrs.field(factory=Signal, init=False)
    _taken: Sequence[_Ticket] = attrs.field(default=(), init=False)  # the batch that is being written
    _failure: str | None = attrs.field(default=None, init=False)

    def register(self, metrics: Metrics) -> None:
        help = "Metadata changes refused because the disk is full."
        metrics.adopt_counter("kafscale_metadata_changes_refused_total", help, self.refused_count)

    @property
    def revision(self) -> int:
        return self.local.revision

    def follow(self, listener: Listener) -> None:
        self.local.follow(listener)

    def unfollow(self, listener: Listener) -> None:
        self.local.unfollow(listener)

    async def get(self, key: str) -> Entry | None:
        return await self.local.get(key)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self.local.list(prefix)

    async def check_room(self) -> None:
        await self.local.check_room()

    async def commit(self, transaction: Transaction) -> int:
        if self._failure is not None:
            raise StorageFailed(self._failure)
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = _Ticket(transaction)
        self._waiting.append(ticket)
        self._came.set()
        try:
            return revision_of(await ticket.outcome.wait())
        except trio.Cancelled:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                raise
            with trio.move_on_after(CANCELLED_COMMIT_SECONDS, shield=True):
                await ticket.outcome.wait()
            if not isinstance(ticket.outcome.value, Change):
                raise
            return ticket.outcome.value.revision

    # ---- writing ---------------------------------------------------------------------------------------------------

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
            raise
        finally:
            self._failure = self._failure or "the metadata store's writer has ended"
            for ticket in (*self._taken, *self._waiting):
                ticket.outcome.set(StorageFailed(self._failure))
            self._taken = ()
            self._waiting.clear()

    def _take(self) -> Sequence[_Ticket]:
        """Return the next batch; empty if all that waited was cancelled."""
        batch: list[_Ticket] = []
        touched = _Touched()
        change_count = 0
        while self._waiting and change_count < BATCH_TARGET_COUNT:
            transaction = self._waiting[0].transaction
            if touched.decides(transaction):
                break  # its conditions are checked after all that touches them has taken effect
            batch.append(self._waiting.popleft())
            touched.add(transaction)
            change_count += (len(transaction.puts) + len(transaction.deletes) + len(transaction.delete_prefixes)) or 1
        if not self._waiting:
            self._came.clear()
        return batch

    async def _write(self, batch: Sequence[_Ticket]) -> None:
        try:
            outcomes = await self._apply([ticket.transaction for ticket in batch])
        except (StoreError, StorageFull) as exc:
            outcomes = [exc] * len(batch)
        self._taken = ()
        for ticket, outcome in zip(batch, outcomes, strict=True):
            self.refused_count.value += isinstance(outcome, StorageFull)
            ticket.outcome.set(outcome)

    async def _apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Make transactions durable, none of which touches the conditions of a later one."""
        return await self.local.apply(transactions)

    def _refuse_waiting(self, full: StorageFull) -> None:
        waiting, self._waiting = self._waiting, deque()
        for ticket in waiting:
            if ticket.transaction.essential:
                self._waiting.append(ticket)
            else:
                self.refused_count.value += 1
                ticket.outcome.set(full)


_NO_TOPIC = bytes(16)
NO_ROOM_RETRY_SECONDS = 1.0


@attrs.define(eq=False, repr=False)
class LogFirst(GroupCommit):
    """Applies a transaction to the local store only when it is durable elsewhere."""

    async def _refusals(self, transactions: Sequence[Transaction]) -> dict[int, Exception]:
        """Return the refused transactions by `id`, before any is written."""
        refused: dict[int, Exception] = {}
        try:
            await self.local.check_room()
        except StorageFull as full:
            refused = {id(transaction): full for transaction in transactions if not transaction.essential}
        if conditional := [transaction for transaction in transactions if transaction.is_conditional]:
            refusals = zip(conditional, await self.local.check(conditional), strict=True)
            refused |= {id(checked): refusal for checked, refusal in refusals if refusal is not None}
        return refused

    async def _apply_all(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        """Apply transactions that are durable elsewhere, and so can't be refused any more."""
        done: list[Outcome] = []
        while True:
            outcomes = await self.local.apply(transactions[len(done) :])
            full = next((place for place, outcome in enumerate(outcomes) if isinstance(outcome, StorageFull)), None)
            done += outcomes[:full]
            if full is None:
                return done
            refusal = outcomes[full]
            assert isinstance(refusal, StorageFull)
            self._refuse_waiting(refusal)
            await trio.sleep(NO_ROOM_RETRY_SECONDS)


@attrs.define(eq=False, repr=False)
class JournaledMetadataStore(LogFirst):
    """Metadata whose transactions are entries of the log in the bucket; those of a batch share objects.

    `applied_position`: everything in the log up to there is in the local store.
    """

    _journal: S3Wal
    applied_position: WalPosition

    async def _apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        refused = await self._refusals(transactions)
        wanted = [transaction for transaction in transactions if id(transaction) not in refused]
        applied = iter(await self._log_and_apply(wanted) if wanted else ())
        return [
            refused[id(transaction)] if id(transaction) in refused else next(applied) for transaction in transactions
        ]

    async def _log_and_apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        entries = [_entry(transaction) for transaction in transactions]
        rounds = [self._journal.append(entry) for entry in entries]
        await rounds[-1].wait()
        outcomes = await self._apply_all(
            [attrs.evolve(transaction.unconditionally(), essential=True) for transaction in transactions]
        )
        written = entries[-1].file
        assert isinstance(written, WalObject)
        self.applied_position = written.position
        return outcomes


def _entry(transaction: Transaction) -> WalEntry:
    return WalEntry(_NO_TOPIC, -1, 0, 0, encode_transaction(transaction), kind=METADATA)
