"""Metadata that is durable elsewhere before it is applied here (`LogFirst`): in the log in the bucket, or in the head.

In the modes `s3-wal` and `segment` of a lone broker it is the log (`JournaledMetadataStore`). A transaction is an entry
of the log; when that is durable it is applied to the local store, then its caller goes on. So the local store never has
a change that the log lacks, and a broker with an empty disk finds everything in a checkpoint and the entries behind it.
Transactions of a batch are waited for once, so under load they share PUTs. The expectations of a transaction are
checked in the local store before its batch is logged: nothing of that batch touches them, and everything earlier has
been applied.

A full disk refuses transactions before they are written to the log. Those in the log are applied in the reserved room,
and if that is too small wait for more; transactions behind them are refused meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from kafscale.cluster.metadata.base import Outcome, Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.errors import StorageFull
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import WalObject, WalPosition
from kafscale.log.wal.journal import Round

_NO_TOPIC = bytes(16)
NO_ROOM_RETRY_SECONDS = 1.0


class MetadataJournal(Protocol):
    """The log in the bucket."""

    def append(self, entry: WalEntry) -> Round: ...


@attrs.define(eq=False, repr=False)
class LogFirst(GroupCommit):
    """A MetadataStore around the local one, which it never lets have what is not durable elsewhere."""

    async def _refusals(self, transactions: Sequence[Transaction]) -> dict[int, Exception]:
        """Find those that may not be written to the log now, by their identity."""
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
        """Apply transactions that are in the log, and so can't be refused any more."""
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
    """A MetadataStore around the local one; usable while `run` runs.

    `applied_position`: everything in the log up to there is in the local store.
    """

    _journal: MetadataJournal
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
