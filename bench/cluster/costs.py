"""The monthly cost of three zones at 100 MiB/s: arithmetic from prices that the page states, nothing measured."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kafscale.config.units import MIB

ZONE_GB = 0.02  # 0.01 a GB out of a zone, and 0.01 into the other
DISK_GB_MONTH = 0.08  # gp3
OBJECTS_GB_MONTH = 0.023  # S3 Standard, the first 50 TB
PUT = 0.005 / 1000
GET = 0.0004 / 1000

RATE_MIB = 100
RETENTION_DAYS = 3
DISK_FULL_SHARE = 0.7  # of Kafka's disks, at most
SECONDS_A_MONTH = 30 * 86_400
GB = 1e9
BROKERS = 3
SEGMENT_MIB = 64
REWRITES = 1.0  # merging writes most bytes once more
STREAM_PUTS = 20.0  # a second of each broker, back to back
LOOKS = 2.0  # HEAD a second of each broker
GET_MIB = 8  # of what consumers of another zone read ahead
HEADINGS = ("a month, US dollars", "Apache Kafka, 3 replicas", "kafscale s3-wal", "how")


@attrs.frozen
class Item:
    """The monthly cost of one item for both, and its reason."""

    name: str
    theirs: float
    ours: float
    how: str

    def cells(self) -> Sequence[str]:
        """Return the row as text."""
        return [self.name, f"{self.theirs:,.0f}", f"{self.ours:,.0f}", self.how]


def items() -> Sequence[Item]:
    """Return what differs; machines, which both need, are left out."""
    month_gb = RATE_MIB * MIB * SECONDS_A_MONTH / GB
    kept_gb = RATE_MIB * MIB * RETENTION_DAYS * 86_400 / GB
    writes = RATE_MIB / SEGMENT_MIB * 2 * (1 + REWRITES) + BROKERS * STREAM_PUTS
    reads = RATE_MIB / GET_MIB + BROKERS * LOOKS
    return [
        Item("producers to leaders in other zones", month_gb * 2 / 3 * ZONE_GB, month_gb * 2 / 3 * ZONE_GB,
             "two of three produces leave their zone, to either"),
        Item("replicas in other zones", month_gb * 2 * ZONE_GB, 0.0, "each byte twice; ours sends brokers none"),
        Item("consumers, once", 0.0, 0.0, "each reads in its zone, by `client.rack`"),
        Item("disks", kept_gb * BROKERS / DISK_FULL_SHARE * DISK_GB_MONTH, 0.0,
             f"{RETENTION_DAYS} days, three copies, disks {DISK_FULL_SHARE:.0%} full"),
        Item("objects", 0.0, kept_gb * OBJECTS_GB_MONTH, f"{RETENTION_DAYS} days, once"),
        Item("PUTs", 0.0, writes * SECONDS_A_MONTH * PUT,
             f"{writes:.0f}/s: streams {BROKERS * STREAM_PUTS:.0f}, the rest segments of 64 MiB, merged once"),
        Item("GETs and HEADs", 0.0, reads * SECONDS_A_MONTH * GET, f"{reads:.0f}/s"),
    ]  # fmt: skip


def rows() -> Sequence[Sequence[str]]:
    """Return the table, with its sum."""
    found = items()
    theirs, ours = sum(cost.theirs for cost in found), sum(cost.ours for cost in found)
    return [*(cost.cells() for cost in found), ["together", f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:.0%}"]]


_ABOUT = """{rate} MiB/s in, read once, kept for {days} days, without compression, at Amazon's list prices in
us-east-1 as we know them (look them up): {zone} $ a GB from zone to zone, both directions together; {disk} $ a GB and
month of gp3; {objects} $ of S3 Standard; {put:g} $ a thousand PUTs, {get:g} $ a thousand GETs and HEADs. Machines are
left out. With `--s3-wal-min-interval 250ms` streams are a fifth of the PUTs.
"""


def about() -> str:
    """Return what the page says above the table."""
    return _ABOUT.format(
        rate=RATE_MIB,
        days=RETENTION_DAYS,
        zone=ZONE_GB,
        disk=DISK_GB_MONTH,
        objects=OBJECTS_GB_MONTH,
        put=PUT * 1000,
        get=GET * 1000,
    )
