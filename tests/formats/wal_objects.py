"""Objects of the write-ahead log in the bucket, as a broker writes them."""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, WalEntry
from kafscale.formats.wal_objects import ObjectHeader, encode_object


def written(entries: Sequence[WalEntry]) -> bytes:
    """Return object 7 of epoch 3, whose first entry is number 40."""
    for sequence, entry in enumerate(entries, start=40):
        entry.sequence = sequence
    header = ObjectHeader(
        salt=99,
        epoch=3,
        entry_count=len(entries),
        number=7,
        durable_number=5,
        sequence=40,
        body_bytes=sum(ENTRY_HEADER_BYTES + len(entry.data) for entry in entries),
    )
    return b"".join(map(bytes, encode_object(header, entries, durable_sequence=30)))
