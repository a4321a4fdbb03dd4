"""Checks records of batches within bounds of time and memory.

The cost of a batch is not known beforehand: 64 KiB may unpack to gigabytes. So a check begins on the event loop, for
some milliseconds at most. The rest unpacks in a thread (`kafscale.log.read.unpacking`), or walks in steps of a
millisecond, in which principals take turns. Only later requests of the connection wait.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeAlias

import attrs

from kafscale.concurrency.turns import FairTurns
from kafscale.errors import WrongOffsetDelta
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.read.unpacking import Unpacking, unpack_at_most
from kafscale.wire.batch_header import CODEC_MASK, HEADER_BYTES, BatchHeader, encode_batch
from kafscale.wire.record_check import STEP_UNITS, RecordCheck
from kafscale.wire.record_shapes import Shapes
from kafscale.wire.records import Renumbering, check_of

AT_ONCE_MAX_BYTES: Final = 256 << 10  # unpacking that takes 0.1 to 0.8 ms
AT_ONCE_MAX_RATIO: Final = 16  # otherwise many small batches of one read add up; text has a ratio of 3 to 8
AT_ONCE_UNITS: Final = 2 * STEP_UNITS  # of all batches of a request together
BYTES_PER_UNIT: Final = 128  # unpacking this many takes as long as looking at a record
FREE_HEADERS_COUNT: Final = 1 << 16
"""Headers of a request's batches beyond its number of bytes: 8 ms. An uncompressed header has at least two bytes, but
5 KB compressed may contain two million empty ones."""

Begun: TypeAlias = tuple[RecordCheck | None, int]
"""A check, and the units left: above 0 if the check has ended. None if the batch must be unpacked or renumbered."""


@attrs.define(eq=False, repr=False)
class RecordChecks:
    unpacking: Unpacking
    shapes: Shapes = attrs.field(factory=Shapes, init=False)
    _steps: FairTurns = attrs.field(factory=FairTurns, init=False)

    def begin(self, config: LogConfig, header: BatchHeader, batch: memoryview, units: int) -> Begun:
        """Check a batch for at most `units` of work. Raises KafkaError to refuse it."""
        if not header.attributes & CODEC_MASK:
            check = check_of(batch[HEADER_BYTES:], header, needs_keys=config.compact)
            try:
                left_units = check.advance(units)
            except WrongOffsetDelta:
                return None, 0
            if left_units > 0:
                self.shapes.learn(header, batch)
            return check, left_units
        most_bytes = min(AT_ONCE_MAX_BYTES, AT_ONCE_MAX_RATIO * len(batch), BYTES_PER_UNIT * units)
        records = unpack_at_most(header, batch, min(most_bytes, self.unpacking.max_batch_bytes), strict=True)
        if records is None:
            return None, 0
        check = check_of(records, header, needs_keys=config.compact)
        return check, check.advance(max(units - max(len(records), len(batch)) // BYTES_PER_UNIT, 1))

    async def renumbered(self, header: BatchHeader, batch: memoryview, owner: Hashable) -> memoryview:
        """Return a batch with right offset deltas, still unchecked. Raises InvalidRecord for a wrong length."""
        renumbering = Renumbering(batch[HEADER_BYTES:], header.record_count)
        while True:
            async with self._steps.turn(owner):
                if renumbering.advance():
                    return memoryview(encode_batch(header, renumbering.written))

    async def walk(self, check: RecordCheck, owner: Hashable) -> None:
        """Finish a check in steps; owners take turns. Raises KafkaError."""
        while True:
            async with self._steps.turn(owner):
                if check.advance() > 0:
                    return
