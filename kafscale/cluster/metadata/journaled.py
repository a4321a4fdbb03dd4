"""Metadata that is acknowledged by the log in the bucket: in the modes `s3-wal` and `segment`.

A transaction is an entry of the log; when that is durable it is applied to the local store, then its caller goes on.
So the local store never has what the log has not, and a broker with an empty disk finds everything in a checkpoint and
the entries behind it. Transactions of a batch are waited for once, so under load they share PUTs. What one expects is
looked at in the local store before its batch is logged: nothing of that batch touches it, and everything earlier has
been applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from kafscale.cluster.metadata.base import Outcome, Transaction
from kafscale.cluster.metadata.log_first import LogFirst
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import WalObject, WalPosition
from kafscale.log.wal.journal import Round

_NO_TOPIC = bytes(16)


class MetadataJournal(Protocol):
    """The log in the bucket."""

    def append(self, entry: WalEntry) -> Round: ...


@attrs.define(eq=False, repr=False)
class JournaledMetadataStore(LogFirst):
    """A MetadataStore around the local one; usable while `run` runs.

    `applied_position`: everything in the log up to there is in the local store.
    """

    _journal: MetadataJournal
    applied_position: WalPosition

    async def _apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        refused = await self._refusals(transactions)
        wanted = [each for each in transactions if id(each) not in refused]
        applied = iter(await self._log_and_apply(wanted) if wanted else ())
        return [refused[id(each)] if id(each) in refused else next(applied) for each in transactions]

    async def _log_and_apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        entries = [_entry(each) for each in transactions]
        rounds = [self._journal.append(entry) for entry in entries]
        await rounds[-1].wait()
        outcomes = await self._apply_all(
            [attrs.evolve(each.unconditionally(), essential=True) for each in transactions]
        )
        written = entries[-1].file
        assert isinstance(written, WalObject)
        self.applied_position = written.position
        return outcomes


def _entry(transaction: Transaction) -> WalEntry:
    return WalEntry(_NO_TOPIC, -1, 0, 0, encode_transaction(transaction), kind=METADATA)
