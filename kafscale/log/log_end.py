"""What a partition's last footer tells and a start needs: where the log ends, its producers and its leader epochs.

encoded = i64 last offset | u32 length of the producers | producers | leader epochs         (as in a footer)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from kafscale.formats.segment import (
    EpochStart,
    Footer,
    decode_epochs,
    decode_producers,
    encode_epochs,
    encode_producers,
)
from kafscale.log.producers import Producer
from kafscale.store.base import Buffer

PRODUCERS_MAX_COUNT = 100  # of a partition; its last footer, which has them all, is read at a start then

_HEAD = struct.Struct(">qI")


@attrs.frozen
class LogEnd:
    """The state after the record at `last_offset`."""

    last_offset: int
    producers: Sequence[Producer]
    epochs: Sequence[EpochStart]

    @classmethod
    def of(cls, footer: Footer) -> LogEnd:
        return cls(footer.last_offset, footer.producers, footer.epochs)

    def encode(self) -> bytes:
        """Empty for more than PRODUCERS_MAX_COUNT producers."""
        if len(self.producers) > PRODUCERS_MAX_COUNT:
            return b""
        producers = encode_producers(self.producers)
        return _HEAD.pack(self.last_offset, len(producers)) + producers + encode_epochs(self.epochs)

    @classmethod
    def decode(cls, data: Buffer) -> LogEnd | None:
        """None for what is empty. Raises struct.error, ValueError for what `encode` did not make."""
        if not data:
            return None
        last_offset, size = _HEAD.unpack_from(data)
        rest = memoryview(data)[_HEAD.size :]
        return cls(last_offset, decode_producers(rest[:size]), decode_epochs(rest[size:]))
