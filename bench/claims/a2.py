"""A2: order is kept: parsing, ordering and persistence each are serial, and sequence numbers are checked.

Idempotent producers with five requests in flight over connections that break at random moments, in simulated time,
while disk and store answer when they like. A checker of requests, answers and reads looks for lost,
doubled or reordered records. Without the check of sequence numbers it finds that.
"""

from __future__ import annotations

from bench.claims.claim import Claim, Finding
from bench.claims.suite import run_suite

TARGETS = ("tests/server/test_dropped_connections.py",)
SCHEDULES_COUNT = 20  # for each mode of durability


def run() -> Finding:
    suite = run_suite(*TARGETS, environ={"DROP_SCHEDULES": str(SCHEDULES_COUNT)})
    return suite.finding(
        f"{suite.counted['records']:,} records over {suite.counted['connections dropped']:,} broken connections: each "
        "once, in order"
    )


CLAIM = Claim(
    row="a2",
    source="AutoMQ",
    claim="order is kept with requests in flight: sequence numbers are checked in the ordering step",
    source_figure="no OUT_OF_ORDER",
    run=run,
)
