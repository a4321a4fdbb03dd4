"""What an object of the write-ahead log in the bucket has, as those know it who read it beside its broker.

Of each batch a few numbers are kept, not its bytes. May not import trio.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from kafscale.errors import CorruptBatch, DamagedObject
from kafscale.formats.manifest import PartitionId
from kafscale.formats.metadata_changes import Transaction, decode_transaction
from kafscale.formats.wal_entries import METADATA, RECORD_BATCH, WalEntry
from kafscale.formats.wal_objects import ObjectHeader, decode_object
from kafscale.store.paths import NumberedKey
from kafscale.wire.batch_header import BatchHeader, parse_header
from kafscale.wire.control_records import EndMarker, parse_marker


@attrs.frozen(kw_only=True)
class LoggedBatch:
    """A record batch in an object of the log, at `position` behind the header of its entry.

    `header` is kept of batches of transactions and of control batches only, `marker` of what ends a transaction.
    """

    key: NumberedKey
    salt: int
    position: int
    length_bytes: int
    leader_epoch: int
    base_offset: int
    next_offset: int
    max_timestamp_ms: int
    header: BatchHeader | None = None
    marker: EndMarker | None = None


@attrs.frozen
class LoggedObject:
    """What an object has: batches by partition, each in order, and changes of metadata."""

    header: ObjectHeader
    batches: Mapping[PartitionId, Sequence[LoggedBatch]]
    transactions: Sequence[Transaction]

    @classmethod
    def decode(cls, key: NumberedKey, data: memoryview) -> LoggedObject:
        """Raises DamagedObject."""
        header, entries = decode_object(key.key, data)
        batches: dict[PartitionId, list[LoggedBatch]] = defaultdict(list)
        transactions: list[Transaction] = []
        for entry in entries:
            if entry.kind == RECORD_BATCH:
                batches[entry.topic_id, entry.partition].append(_batch(key, header, entry))
            elif entry.kind == METADATA:
                transactions.append(decode_transaction(memoryview(entry.data)))
        return cls(header, dict(batches), transactions)


def _batch(key: NumberedKey, of: ObjectHeader, entry: WalEntry) -> LoggedBatch:
    data = memoryview(entry.data)
    try:
        header = parse_header(data)
        marker = parse_marker(data, header) if header.is_control else None
    except CorruptBatch as exc:
        raise DamagedObject(f"{key.key}: the batch at {entry.position} can't be read: {exc}") from exc
    return LoggedBatch(
        key=key,
        salt=of.salt,
        position=entry.position,
        length_bytes=len(data),
        leader_epoch=entry.leader_epoch,
        base_offset=entry.base_offset,
        next_offset=entry.base_offset + header.last_offset_delta + 1,
        max_timestamp_ms=header.max_timestamp_ms,
        header=header if header.is_transactional or header.is_control else None,
        marker=marker,
    )
