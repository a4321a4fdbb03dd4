"""Points of measurement, as the command line names them and as the table shows them."""

from __future__ import annotations

import attrs

from kafscale.config.units import KIB, format_size, parse_size

TOPIC = "bench"
LARGE_BATCH_BYTES = 960 * KIB  # fits into Kafka's default max.message.bytes of 1 MiB with room to spare
RECORD_OVERHEAD_BYTES = 12  # lengths and deltas of a record, and its share of the batch's header


@attrs.frozen(kw_only=True)
class Point:
    """Batches of about `batch_bytes`, `in_flight` requests at a time, each with one batch, to partitions in turn."""

    batch_bytes: int
    in_flight: int
    partitions: int

    def __str__(self) -> str:
        return f"{format_size(self.batch_bytes)}/{self.in_flight}/{self.partitions}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """`16KiB/64/16`: batch size, in flight, partitions. Raises ValueError."""
        size, in_flight, partitions = text.split("/")
        return cls(batch_bytes=parse_size(size), in_flight=int(in_flight), partitions=int(partitions))

    @property
    def record_bytes(self) -> int:
        """Small batches have records of 1 KiB at most, large ones of 64 KiB."""
        return min(self.batch_bytes, KIB if self.batch_bytes <= 64 * KIB else 64 * KIB) - RECORD_OVERHEAD_BYTES

    @property
    def record_count(self) -> int:
        return max(1, self.batch_bytes // (self.record_bytes + RECORD_OVERHEAD_BYTES))


def standard_points() -> list[Point]:
    """1 partition and 16; 960, 16 and 1 KiB; 1, 5 and 64 in flight."""
    return [
        Point(batch_bytes=batch_bytes, in_flight=in_flight, partitions=partitions)
        for partitions in (1, 16)
        for batch_bytes in (LARGE_BATCH_BYTES, 16 * KIB, KIB)
        for in_flight in (1, 5, 64)
    ]
