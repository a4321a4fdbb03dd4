"""A walk from record to record of a batch: what stands in front of each key, and where the record ends.

For whoever reads stored records: clients, look-ups by time, and compaction. The check of what producers send
(`kafscale.wire.record_check`) reads more of each record, and many of one shape together; Spark's reader has arrays
(`kafscale.spark.bucket.decode`).
"""

from __future__ import annotations

from collections.abc import Iterator

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError
from kafscale.wire.primitives import read_uvarint, read_varlong


def record_heads(records: Buffer, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield, of each of `count` records: timestamp delta, offset delta, where its key begins, and where it ends.

    `records` has nothing compressed in it. A record that ends before its key begins, or behind the buffer, is for the
    caller to notice. Written out without calls for numbers of one or two bytes it takes 0.35 to 0.7 us a record; with
    them it took 0.6 to 0.85.

    Raises:
        IndexError: the buffer ends early.
        DecodeError: no bytes could make it right.
    """
    end = 0
    for _ in range(count):
        length, position = records[end], end + 1
        if length >= 128:
            more = records[position]
            if more < 128:
                length += (more << 7) - 128
                position += 1
            else:
                length, position = read_uvarint(records, end)
        if length & 1:
            raise DecodeError(f"the record at byte {end} has a negative length")
        end = position + (length >> 1)
        timestamp_delta = records[position + 1]  # behind the attributes, of which none is in use
        if timestamp_delta < 128:
            timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
            position += 2
        else:
            timestamp_delta, position = read_varlong(records, position + 1)
        offset_delta = records[position]
        position += 1
        if offset_delta >= 128:
            more = records[position]
            if more < 128:
                offset_delta += (more << 7) - 128
                position += 1
            else:
                offset_delta, position = read_uvarint(records, position - 1)
        yield timestamp_delta, (offset_delta >> 1) ^ -(offset_delta & 1), position, end
