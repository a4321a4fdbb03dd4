"""K7: the switch is documented for operators.

Tests hold the page for operators against the code: each option of the store has a row, each of its metrics has one with
its labels, each class of work is there with its numbers, nothing is named that there is not, and the arithmetic is
right.
"""

from __future__ import annotations

from bench.claims.claim import Claim, Finding
from bench.claims.suite import run_suite

TARGETS = ("tests/docs/test_operations.py",)


def run() -> Finding:
    suite = run_suite(*TARGETS)
    return suite.finding(f"docs/operations.md, held to the code by {suite.cases_count} cases")


CLAIM = Claim(
    row="k7",
    source="KafScale, S3 concurrency",
    claim="the switch is documented for operators",
    source_figure="docs/operations",
    run=run,
)
