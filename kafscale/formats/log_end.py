"""The state at the end of a partition's log, from which a start goes on: end offset, producers, open transactions and
leader epochs, read from the last footers.

encoded = i64 last offset | u32 length of the producers | u32 length of the coordinator epochs
          | u32 length of the open transactions | producers | coordinator epochs | open transactions | leader epochs
                                                                                            (as in a footer)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import attrs

from kafscale.buffers import Buffer
from kafscale.formats.segment import (
    EpochStart,
    Footer,
    decode_epochs,
    decode_producers,
    encode_epochs,
    encode_producers,
)
from kafscale.formats.transactions import (
    OpenTransaction,
    Producer,
    decode_coordinators,
    decode_open,
    encode_coordinators,
    encode_open,
    stable_end,
    with_coordinators,
)

PRODUCERS_MAX_COUNT = 100  # of a partition; its last footers, which have them all, are read at a start then

_HEAD = struct.Struct(">qIII")


@attrs.frozen
class LogEnd:
    """The state after the record at `last_offset`.

    `kept_in` has, by producer id, the base offset of the segment whose footer holds that producer's latest state, if it
    is not the last segment.
    """

    last_offset: int
    producers: Sequence[Producer]
    epochs: Sequence[EpochStart]
    kept_in: Mapping[int, int] = attrs.field(factory=dict)
    open_transactions: Sequence[OpenTransaction] = ()

    @property
    def stable_end(self) -> int:
        return stable_end(self.open_transactions, self.last_offset + 1)

    @classmethod
    def of(cls, last: Footer, earlier: Iterable[Footer] = ()) -> LogEnd:
        """Combine the last footer with `earlier` ones, in order of offset, that have its other producers."""
        latest: dict[int, Producer] = {}
        kept_in: dict[int, int] = {}
        for footer in earlier:
            for producer in footer.producers:
                latest[producer.producer_id] = producer
                kept_in[producer.producer_id] = footer.identity.base_offset
        for producer in last.producers:
            latest[producer.producer_id] = producer
            kept_in.pop(producer.producer_id, None)
        return cls(last.last_offset, list(latest.values()), last.epochs, kept_in, last.open_transactions)

    def encode(self) -> bytes:
        """Encode; empty for more than PRODUCERS_MAX_COUNT producers, and if the last footer lacks some."""
        if len(self.producers) > PRODUCERS_MAX_COUNT or self.kept_in:
            return b""
        told = [
            encode_producers(self.producers),
            encode_coordinators(self.producers),
            encode_open(self.open_transactions),
        ]
        return b"".join([_HEAD.pack(self.last_offset, *map(len, told)), *told, encode_epochs(self.epochs)])

    @classmethod
    def decode(cls, data: Buffer) -> LogEnd | None:
        """Decode; None for empty data. Raises struct.error or ValueError."""
        if not data:
            return None
        view = memoryview(data)
        last_offset, *sizes = _HEAD.unpack_from(view)
        parts, position = [], _HEAD.size
        for size in sizes:
            parts.append(view[position : position + size])
            position += size
        return cls(
            last_offset,
            with_coordinators(decode_producers(parts[0]), decode_coordinators(parts[1])),
            decode_epochs(view[position:]),
            open_transactions=decode_open(parts[2]),
        )
