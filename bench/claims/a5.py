"""A5: quotas and memory limits still pause a connection, with the reason kept.

A property test over reasons that come and go in any order, in simulated time, and the same with a whole broker: a
connection that is paused for two reasons at once is read from when both are gone.
"""

from __future__ import annotations

from bench.claims.claim import Claim, Finding
from bench.claims.suite import run_suite

TARGETS = ("tests/server/kafka/test_pauses.py", "tests/server/test_connection_pauses.py")


def run() -> Finding:
    suite = run_suite(*TARGETS)
    return suite.finding(f"reading resumes with the last reason: {suite.cases_count} cases")


CLAIM = Claim(
    row="a5",
    source="AutoMQ",
    claim="quotas and memory limits pause a connection, with the reason kept",
    source_figure="MUTE flags",
    run=run,
)
