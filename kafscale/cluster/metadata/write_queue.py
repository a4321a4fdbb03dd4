"""Changes of synchronous state machines on their way into the metadata store.

`submit` returns at once; `run`, one task, commits what has come together meanwhile as one transaction and then calls
each submitter back, in the order of their calls. So a change survives the connection that asked for it, later changes
of a key overwrite earlier ones, and what a callback does to the state in memory happens in the order of the commits.

A store that can't be reached fails the changes of that transaction; a lost disk (StorageFailed) ends the task, and so
the broker, after every submitter has been told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NoReturn

import attrs
import trio

from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.errors import StorageFailed, StoreError

logger = logging.getLogger(__name__)

# A transaction takes changes until it has this many keys, so that one commit stays short. etcd's default is 128
# operations a transaction, SQLite has no limit. (One submitter's changes stay together, however many they are.)
TRANSACTION_TARGET_COUNT = 1000

Changes = Mapping[str, bytes | None]  # key -> its new value, None: gone
Then = Callable[[bool], None]  # told whether the changes are durable


@attrs.frozen(eq=False)
class _Submission:
    changes: Changes
    then: Then


@attrs.define(eq=False)
class WriteQueue:
    """How much waits is bounded by who submits: one request per connection, one change of state per group."""

    _store: MetadataStore
    _waiting: list[_Submission] = attrs.field(factory=list, init=False)
    _submitted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _failed: bool = attrs.field(default=False, init=False)
    _committing: bool = attrs.field(default=False, init=False)

    def submit(self, changes: Changes, then: Then) -> None:
        """Commit the changes, all or none, and then call `then`, which must not raise."""
        if self._failed:
            then(False)
            return
        self._waiting.append(_Submission(changes, then))
        self._submitted.set()

    async def wait_settled(self) -> None:
        """Until everything that has been submitted so far is durable or lost; at once if nothing is on its way."""
        if self._waiting or self._committing:
            settled = trio.Event()
            self.submit({}, lambda durable: settled.set())
            await settled.wait()

    def statistics(self) -> int:
        """How many submissions wait for the next transaction."""
        return len(self._waiting)

    async def run(self) -> NoReturn:
        """Commit until cancelled. Raises StorageFailed."""
        while True:
            await self._submitted.wait()
            batch, puts, deletes = self._take()
            durable = True
            self._committing = True
            try:
                await self._store.commit(Transaction(puts=puts, deletes=deletes))
            except StorageFailed:
                self._fail(batch)
                raise
            except StoreError as exc:
                logger.warning("%d changes of metadata are lost: %s", len(puts) + len(deletes), exc)
                durable = False
            finally:
                self._committing = False
            for submission in batch:
                submission.then(durable)

    def _take(self) -> tuple[list[_Submission], dict[str, bytes], list[str]]:
        merged: dict[str, bytes | None] = {}
        taken_count = 0
        for submission in self._waiting:
            if merged and len(merged) + len(submission.changes) > TRANSACTION_TARGET_COUNT:
                break
            merged.update(submission.changes)
            taken_count += 1
        batch, self._waiting = self._waiting[:taken_count], self._waiting[taken_count:]
        if not self._waiting:
            self._submitted = trio.Event()
        puts = {key: value for key, value in merged.items() if value is not None}
        return batch, puts, [key for key, value in merged.items() if value is None]

    def _fail(self, batch: list[_Submission]) -> None:
        self._failed = True
        doomed, self._waiting = batch + self._waiting, []
        for submission in doomed:
            submission.then(False)
