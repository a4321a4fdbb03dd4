"""K10: every reader of the pair tolerates orphans.

One suite, reader by kind of damage, in simulated time: fetch, read-ahead, look-up by time, restore, merge, retention,
collection of orphans and verify over a segment of which one half is missing, cut off, damaged or another segment's, at
a start and while the broker runs.
"""

from __future__ import annotations

from bench.claims.claim import Claim, Finding
from bench.claims.suite import run_suite

TARGETS = ("tests/log/test_damaged_readers.py",)


def run() -> Finding:
    suite = run_suite(*TARGETS)
    return suite.finding(f"{suite.cases_count} cases: no reader fails, none returns what is wrong, all else is read")


CLAIM = Claim(
    row="k10",
    source="KafScale, parallel uploads",
    claim="every reader of the pair tolerates orphans",
    source_figure="a table of readers",
    run=run,
)
