"""K9: a `.kfs` without `.index` never blocks a restart; an `.index` without `.kfs` is invisible.

Each half of a segment, wherever it lies, missing, cut off, damaged or another segment's, in simulated time: a start
succeeds, what is good is served, nothing that was acknowledged and is still there is missing, offsets are not given out
again, and the half is rebuilt, or set aside and told once.
"""

from __future__ import annotations

from bench.claims.claim import Claim, Finding
from bench.claims.suite import run_suite

TARGETS = ("tests/log/repair/test_quarantine.py", "tests/log/bucket/test_restore.py")


def run() -> Finding:
    suite = run_suite(*TARGETS)
    return suite.finding(f"{suite.cases_count} cases: the start succeeds and serves all that is good")


CLAIM = Claim(
    row="k9",
    source="KafScale, restore",
    claim="a .kfs without .index never blocks a restart; an .index without .kfs is invisible",
    source_figure="restore failed before",
    run=run,
)
