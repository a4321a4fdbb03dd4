"""Metadata that several brokers share: each commit replaces one object, the head, conditionally (decision 0040).

    a batch of transactions    checked here, then written behind the head's entries: PUT, If-Match
        another was faster     GET, apply the others' commits, check again, PUT again
        no answer              GET: an entry with our nonce tells that the write has taken effect
    applied to the local store

Conditions are checked in the local store first. That store may be behind: then the conditional write fails. A refusal
is right in any case: its caller has read the local store, too. Each commit leaves out the entries that checkpoints have
(`kept_until`). A start applies again all commits since the start before, and only then notes how far it has come. For a
broker that can't read the head, as of a later version, the bucket is away.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from secrets import token_bytes

import attrs
import trio

from kafscale.cluster.metadata.base import POSITION_KEY, LocalMetadataStore, Outcome, Transaction, revision_of
from kafscale.cluster.metadata.checkpoint import find_checkpoints, replacing_all
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.cluster.metadata.group_commit import LogFirst
from kafscale.errors import (
    DamagedObject,
    Fenced,
    NewerVersion,
    NotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from kafscale.formats.metadata_changes import decode_transaction, encode_transaction
from kafscale.formats.metadata_head import NONCE_BYTES, Head, HeadEntry, decode_head, encode_head, head_key
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore

# While the store is away or others are always faster; then the outcome of the commit is unknown.
ATTEMPTS_MAX_SECONDS = 30.0
RETRY_SECONDS = 0.2
UNREADABLE_SECONDS = 10.0  # before a head that can't be read is read again, unless it changes
HEAD_MAX_BYTES = 8 << 20  # without trimming; every commit writes it, so it is slow long before

logger = logging.getLogger(__name__)


@attrs.frozen
class _Seen:
    """Outcomes of new entries of the head, by nonce; incomplete if some entries are in a checkpoint only."""

    outcomes: Mapping[bytes, Outcome]
    is_complete: bool = True


@attrs.frozen
class _Unreadable:
    """A head that could not be read, and is not read again before `until`."""

    reason: str
    etag: str
    until: float


@attrs.define(eq=False, repr=False)
class SharedMetadataStore(LogFirst):
    """Metadata whose transactions are entries of the head; made by `join`.

    `applied`: everything up to that revision of the head is in the local store. `kept_until` returns the revision up to
    which checkpoints have everything, 0 if this broker writes none. `check_writer` is called before each write, and
    raises Fenced if the local store says that this broker may change nothing any more.
    """

    _store: ObjectStore
    _key: str
    applied: WalPosition
    _head: Head
    _etag: str
    kept_until: Callable[[], int] = attrs.field(default=lambda: 0, init=False)
    check_writer: Callable[[], Awaitable[None]] = attrs.field(default=trio.lowlevel.checkpoint, init=False)
    lost_race_count: int = attrs.field(default=0, init=False)
    _unreadable: _Unreadable | None = attrs.field(default=None, init=False)
    _newest_told: int = attrs.field(default=0, init=False)  # a revision that others know
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    async def join(
        cls, local: LocalMetadataStore, store: ObjectStore, namespace: str, *, may_have_ended: bool = False
    ) -> SharedMetadataStore:
        """Bring the local store to the revision of the head.

        Raises NotFound if there is no head, or if it has ended, unless `may_have_ended`; DamagedObject, StoreError.
        """
        key = head_key(namespace)
        found = await store.get(key)
        head = decode_head(key, found.data)
        if head.claim is not None and not may_have_ended:
            raise NotFound(f"{key}: one broker has the bucket to itself again")
        entry = await local.get(POSITION_KEY)
        position = START if entry is None else decode(WalPosition, entry.value)
        if position.epoch != head.epoch:
            position = WalPosition(head.epoch, -1)  # of a broker alone: checkpoints have all that was before
        shared = cls(local, store, key, position, head, found.etag)
        await shared._take_head(head, found.etag)
        await local.commit(Transaction(puts={POSITION_KEY: encode(shared.applied)}, essential=True))
        return shared

    def register(self, metrics: Metrics) -> None:
        super().register(metrics)
        help = "Metadata commits repeated because another broker was faster."
        metrics.count("kafscale_metadata_lost_races_total", help, lambda: self.lost_race_count)
        metrics.gauge(
            "kafscale_metadata_head_bytes", "Size of the metadata head in the bucket.", lambda: self.head_bytes
        )

    @property
    def head_bytes(self) -> int:
        return self._head.size_bytes

    async def refresh(self) -> None:
        """Apply everything that any broker committed before the call. Raises StoreError, Fenced."""
        async with self._turn:
            await self._look()

    def note_newer(self, revision: int) -> None:
        """Note that another broker knows this revision, so that the next look reads the head at once."""
        self._newest_told = max(self._newest_told, revision)

    async def trim(self) -> None:
        """Remove entries that checkpoints have from the head, by an empty commit. Raises StoreError, Fenced."""
        if self.kept_until() > self._head.kept_until:
            await self.commit(Transaction(essential=True))

    async def commit_now(self, transaction: Transaction) -> int:
        (outcome,) = await self._apply([transaction])
        return revision_of(outcome)

    async def end(self, claim: bytes) -> None:
        """End the head by the claim of a lone broker: no broker can commit or join any more.

        Raises PreconditionFailed if another broker has committed meanwhile, or the reply was lost; StoreError.
        """
        async with self._turn:
            head = attrs.evolve(self._head, claim=claim)
            await self._store.put_if_match(self._key, encode_head(head), self._etag)

    # ---- committing ------------------------------------------------------------------------------------------------

    async def _apply(self, transactions: Sequence[Transaction]) -> Sequence[Outcome]:
        async with self._turn:
            return await self._commit([(token_bytes(NONCE_BYTES), transaction) for transaction in transactions])

    async def _commit(self, transactions: Sequence[tuple[bytes, Transaction]]) -> Sequence[Outcome]:
        give_up_at = trio.current_time() + ATTEMPTS_MAX_SECONDS
        while True:
            refused = await self._refusals([transaction for _, transaction in transactions])
            wanted = [(nonce, transaction) for nonce, transaction in transactions if id(transaction) not in refused]
            seen = await self._attempt(wanted, give_up_at) if wanted else _Seen({})
            if not wanted or seen.outcomes.keys() & {nonce for nonce, _ in wanted}:
                return [refused.get(id(transaction)) or seen.outcomes[nonce] for nonce, transaction in transactions]
            if not seen.is_complete or trio.current_time() >= give_up_at:
                raise StoreUnavailable(f"{self._key}: it is not known whether a change of the metadata took effect")

    async def _attempt(self, transactions: Sequence[tuple[bytes, Transaction]], give_up_at: float) -> _Seen:
        """Write once; return the outcomes of the new entries, ours or those of others."""
        entries = [HeadEntry(nonce, encode_transaction(transaction)) for nonce, transaction in transactions]
        head = self._head.with_entries(entries, self.kept_until())
        if head.size_bytes > HEAD_MAX_BYTES:
            raise StoreUnavailable(
                f"{self._key} would become too large, as no broker writes checkpoints of the metadata: the log of the "
                "controller, which `kafscale brokers list` names, says why"
            )
        await self.check_writer()
        try:
            try:
                etag = await self._store.put_if_match(self._key, encode_head(head), self._etag)
            except PreconditionFailed:
                self.lost_race_count += 1
                return await self._read()
            return await self._take_head(head, etag)
        except StoreError as exc:
            if trio.current_time() >= give_up_at or self._is_unreadable:
                raise
            logger.warning("the metadata can't be changed, trying again: %s", exc)
            await trio.sleep(RETRY_SECONDS)
            return _Seen({})  # if the write has taken effect, the next one is refused, and then ours is found

    # ---- following -------------------------------------------------------------------------------------------------

    async def _look(self) -> _Seen:
        is_told = self._newest_told > self.applied.number
        if not is_told and (await self._store.head(self._key)).etag == self._etag:
            return _Seen({})
        return await self._read()

    async def _read(self) -> _Seen:
        found = await self._store.get(self._key)
        if self._unreadable is not None and self._is_unreadable and self._unreadable.etag == found.etag:
            raise StoreUnavailable(self._unreadable.reason)
        try:
            head = decode_head(self._key, found.data)
        except DamagedObject as exc:  # damaged on its way, or for all brokers
            raise self._unavailable(exc, found.etag, 0.0) from exc
        if head.claim is not None:
            raise Fenced(f"{self._key}: one broker has the bucket to itself again, by `kafscale brokers unshare`")
        try:
            seen = await self._take_head(head, found.etag)
        except DamagedObject as exc:
            raise self._unavailable(exc, found.etag, UNREADABLE_SECONDS) from exc
        self._newest_told = 0  # a later revision that the head does not have was told wrongly
        self._unreadable = None
        return seen

    @property
    def _is_unreadable(self) -> bool:
        return self._unreadable is not None and trio.current_time() < self._unreadable.until

    def _unavailable(self, exc: DamagedObject, etag: str, seconds: float) -> StoreUnavailable:
        """Note a head that can't be read, and log the reason once."""
        reason = f"the metadata in the bucket can't be read: {exc}"
        if self._unreadable is None or self._unreadable.reason != reason:
            logger.error("this broker keeps the partitions that it leads, and can't change the metadata: %s", reason)
        self._unreadable = _Unreadable(reason, etag, trio.current_time() + seconds)
        return StoreUnavailable(reason)

    async def _take_head(self, head: Head, etag: str) -> _Seen:
        if head.epoch != self.applied.epoch or head.revision < self.applied.number:
            raise Fenced(
                f"{self._key} is that of another cluster, or an older one, and this broker's metadata is newer: if the "
                "bucket is right, as where an earlier state of it was restored, start it with an empty --data-dir"
            )
        entries = head.behind(self.applied.number)
        is_complete = entries is not None
        if entries is None:
            await self._load(head)
            entries = head.behind(self.applied.number)
            assert entries is not None, "a checkpoint is older than what the head says of it"
        outcomes: Sequence[Outcome] = ()
        if entries:
            transactions = [decode_transaction(memoryview(entry.data)) for entry in entries]
            outcomes = await self._apply_all(
                [attrs.evolve(transaction, essential=True) for transaction in transactions]
            )
            self.applied = WalPosition(head.epoch, head.revision)
        self._head, self._etag = head, etag
        return _Seen(dict(zip([entry.nonce for entry in entries], outcomes, strict=True)), is_complete)

    async def _load(self, head: Head) -> None:
        """Begin with the newest checkpoint, which has everything that the head lacks."""
        namespace = self._key.split("/")[1]
        checkpoints = await find_checkpoints(self._store, namespace)
        found = checkpoints.newest
        if found is None or found.position.epoch != head.epoch or found.position.number < head.kept_until:
            for newer in checkpoints.damage:
                if isinstance(newer, NewerVersion):
                    raise newer
            raise DamagedObject(
                f"{self._key}: no checkpoint has the metadata up to revision {head.kept_until}; the controller writes "
                "another one when something changes"
            )
        await self._apply_all([await replacing_all(self.local, found)])
        self.applied = found.position
