"""K5: flushes of one partition are serialised.

A property test over random schedules of appends, flushes on demand, pressure, and uploads that fail, take long or lose
their replies, in simulated time: it looks at each upload as it begins, and at the segments in the end. An upload beside
that of the flusher, which is what a missing lock would give, is planted once, and seen.
"""

from __future__ import annotations

from bench.claims.claim import Claim, Finding
from bench.claims.suite import run_suite

TARGETS = ("tests/log/test_flush_schedules.py",)
SCHEDULES_COUNT = 500  # for each mode of durability


def run() -> Finding:
    suite = run_suite(*TARGETS, environ={"FLUSH_SCHEDULES": str(SCHEDULES_COUNT)})
    return suite.finding(
        f"{suite.counted['schedules']:,} schedules with {suite.counted['uploads']:,} uploads: never two of a partition "
        "at once, segments in order"
    )


CLAIM = Claim(
    row="k5",
    source="KafScale, flush",
    claim="flushes of one partition are serialised",
    source_figure="flag + condition",
    run=run,
)
