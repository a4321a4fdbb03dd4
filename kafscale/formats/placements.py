"""Rows of the metadata that name each partition's leader and the start of its epoch, with several brokers on a bucket.

    assignments/<topic id, 32 hex digits>/<hundred, 5 digits>     partitions 100 * hundred to 100 * hundred + 99

A row is JSON, with a list for each column. Broker `leaders[n]` leads the n-th partition of the row, with leader epoch
`epochs[n]`. Where its epoch begins is committed before anybody is served: by the leader before, which released it with
all of it in the bucket, or else by this one, when it has listed what the bucket holds. `decided_epochs[n]` began at
`decided_offsets[n]`, and the partition is *decided* while that is the epoch of its leader. Any other column is an
object with values by place, `{"3": ...}`, and so is each that a later version adds: a broker that does not know it
writes it back for each partition as it was, and can't read a row with a column of any other form.

What a broker of an earlier epoch has written that ends at or behind that came too late (`resolution`, which is told so
by `begun`). While a partition is not decided, its leader may have listed it already: an object that has come since will
be late, and looks like one that came before. So a reader of the bucket reads the row *after* its listing, and trusts
the listing if the partition is decided: the next leader lists it later.
"""

from __future__ import annotations

import json
import re

import attrs

from kafscale.buffers import Buffer
from kafscale.formats.segment import EpochStart

ASSIGNMENTS = "assignments/"
ROW_COUNT = 100  # partitions in one entry: 100,000 partitions are 1,000 entries, and a move writes 2 KB
_ROW_KEY = re.compile(f"{ASSIGNMENTS}([0-9a-f]{{32}})/([0-9]+)")


@attrs.frozen
class Beginning:
    """A partition's leader epoch, and the last epoch with a committed start offset; -1 for none."""

    epoch: int
    decided_epoch: int
    decided_offset: int

    @property
    def is_decided(self) -> bool:
        """Tell whether the start of the leader's epoch is committed."""
        return self.decided_epoch == self.epoch

    @property
    def begun(self) -> tuple[EpochStart, ...]:
        """Return the start of the last decided epoch, as for `resolve`."""
        return decided_begin(self.decided_epoch, self.decided_offset)


def decided_begin(decided_epoch: int, decided_offset: int) -> tuple[EpochStart, ...]:
    """Return the start of a decided epoch, as for `resolve`; nothing for epoch -1."""
    return (EpochStart(decided_epoch, decided_offset),) if decided_epoch >= 0 else ()


def topic_rows_prefix(topic_id: bytes) -> str:
    return f"{ASSIGNMENTS}{topic_id.hex()}/"


def row_key(topic_id: bytes, index: int) -> str:
    return f"{topic_rows_prefix(topic_id)}{index // ROW_COUNT:05d}"


def parse_row_key(key: str) -> tuple[bytes, int] | None:
    """Return the topic's id, and the index of the row's first partition; None for any other key."""
    found = _ROW_KEY.fullmatch(key)
    return None if found is None else (bytes.fromhex(found[1]), int(found[2]) * ROW_COUNT)


def decode_beginnings(value: Buffer) -> list[Beginning]:
    """Decode a row of epoch starts. Raises ValueError, KeyError or TypeError."""
    row = json.loads(bytes(value))
    columns = zip(row["epochs"], row["decided_epochs"], row["decided_offsets"], strict=True)
    return [Beginning(int(epoch), int(decided), int(offset)) for epoch, decided, offset in columns]
