"""What readers beside a broker see of an object of the log."""

from __future__ import annotations

from kafscale.formats.wal_entries import WalEntry
from kafscale.formats.wal_index import LoggedObject, with_index
from kafscale.store.paths import NumberedKey
from tests.devtools.fakes.segment_objects import make_batch
from tests.formats.wal_objects import written

KEY = NumberedKey(namespace="default", kind="wal", epoch=3, number=7)
TOPIC = bytes(range(16))


def test_index_entries_in_a_wal_object_belong_to_no_partition() -> None:
    batches = [WalEntry(TOPIC, index, 3, offset, make_batch(offset, [b"v"])) for offset in (0, 1) for index in (1, 0)]
    content = written(with_index(batches))
    found = LoggedObject.decode(KEY, memoryview(content))
    assert {key: [each.base_offset for each in of_one] for key, of_one in found.batches.items()} == {
        (TOPIC, 0): [0, 1],
        (TOPIC, 1): [0, 1],
    }
    assert found.transactions == []
