"""What readers beside a broker see of an object of the log."""

from __future__ import annotations

from kafscale.formats.wal_contents import LoggedObject
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, WalEntry
from kafscale.formats.wal_index import with_index
from kafscale.formats.wal_objects import ObjectHeader, encode_object
from kafscale.store.paths import NumberedKey
from tests.devtools.segment_objects import make_batch

KEY = NumberedKey(namespace="default", kind="wal", epoch=3, number=7)
TOPIC = bytes(range(16))


def test_an_index_is_no_batch_of_anybody() -> None:
    batches = [WalEntry(TOPIC, index, 3, offset, make_batch(offset, [b"v"])) for offset in (0, 1) for index in (1, 0)]
    entries = with_index(batches)
    for sequence, entry in enumerate(entries, start=1):
        entry.sequence = sequence
    size_bytes = sum(ENTRY_HEADER_BYTES + len(each.data) for each in entries)
    header = ObjectHeader(
        salt=5,
        epoch=3,
        entry_count=len(entries),
        number=7,
        durable_number=6,
        sequence=1,
        body_bytes=size_bytes,
    )
    content = b"".join(map(bytes, encode_object(header, entries, durable_sequence=0)))
    found = LoggedObject.decode(KEY, memoryview(content))
    assert {key: [each.base_offset for each in of_one] for key, of_one in found.batches.items()} == {
        (TOPIC, 0): [0, 1],
        (TOPIC, 1): [0, 1],
    }
    assert found.transactions == []
