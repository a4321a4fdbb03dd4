"""Reading an object of the log in the bucket: whole, or what it has of some partitions, by its index."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.errors import DamagedObject
from kafscale.formats.manifest import PartitionId
from kafscale.formats.wal_entries import WalEntry
from kafscale.formats.wal_index import HEAD_BYTES, SpanRun, decode_spans, find_index, runs_of
from kafscale.formats.wal_objects import ObjectHeader, decode_header, decode_object
from kafscale.store.base import ObjectStore

WHOLE_FRACTION = 0.75  # of an object: who wants that much gets all of it by one GET


@attrs.frozen(eq=False, repr=False)
class ReadObject:
    """What was read of an object, for which `read_bytes` were got; the entries' data are views of that."""

    header: ObjectHeader
    entries: Sequence[WalEntry]
    read_bytes: int


async def read_object(store: ObjectStore, key: str) -> ReadObject:
    """Read all entries. Raises NotFound, DamagedObject, StoreError."""
    data = (await store.get(key)).data
    return ReadObject(*decode_object(key, data), len(data))


async def read_entries_of(store: ObjectStore, key: str, partitions: Collection[PartitionId]) -> ReadObject:
    """Read at least the entries of these partitions, in order. Raises NotFound, DamagedObject, StoreError."""
    head = await store.get_range(key, 0, HEAD_BYTES)
    header = decode_header(key, head.data)
    index = find_index(key, header, head.data)
    runs = [] if index is None else runs_of(index[each] for each in index.keys() & set(partitions))
    if index is None or sum(each.size_bytes for each in runs) > head.object_size_bytes * WHOLE_FRACTION:
        return await read_object(store, key)
    entries: dict[int, Sequence[WalEntry]] = {}  # by where they begin

    async def read(run: SpanRun) -> None:
        part = await store.get_range(key, run.start, run.size_bytes)
        if len(part.data) != run.size_bytes:
            raise DamagedObject(f"{key}: cut off, {len(part.data)} of {run.size_bytes} bytes at {run.start}")
        entries[run.start] = decode_spans(key, header, run, part.data)

    with ungrouped():
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(read, run)
    read_bytes = len(head.data) + sum(each.size_bytes for each in runs)
    return ReadObject(header, [entry for run in runs for entry in entries[run.start]], read_bytes)
