"""L5: at 75 % of the pool flushes come early; when it is exhausted producers wait; so memory is bounded.

Producers and consumers under full load, while the store is stalled for half of the time, as in `bench.memory`. With a
small pool and a small write-ahead log producers have to wait; without the feature the pool is larger than all that they
could produce, so that nothing makes them wait.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.claims.claim import Claim, Finding, Variant
from bench.memory import Outcome, Setup, measure
from kafscale.config.units import parse_size

SECONDS = 40.0
STALL_FROM, STALL_TO = 0.2, 0.7
PRODUCERS_COUNT, TAIL_COUNT = 60, 30
POOL_SIZE, WAL_SIZE = "64MiB", "128MiB"
UNBOUNDED = ("--chunk-pool-bytes", "4GiB", "--wal-max-bytes", "16GiB")


def run() -> Finding:
    setup = _setup("--chunk-pool-bytes", POOL_SIZE, "--wal-max-bytes", WAL_SIZE)
    bounded, unbounded = measure(setup), measure(_setup(*UNBOUNDED))
    return Finding(
        ours=f"RSS at most {bounded.most_rss_mib:.0f} MiB with a pool of {POOL_SIZE}, allowed {setup.bound_mib:.0f}; "
        f"{unbounded.most_rss_mib:,.0f} MiB without a bound; {len(bounded.anomalies)} of {bounded.records_count:,} "
        f"records lost or doubled, {bounded.silent_count} producers did not resume",
        is_shown=bounded.most_rss_mib <= setup.bound_mib
        and bounded.most_rss_mib < unbounded.most_rss_mib
        and bounded.is_sound,
        variants=[
            Variant(name=f"pool {POOL_SIZE}", figures=_figures(bounded)),
            Variant(name="no bound", figures=_figures(unbounded)),
        ],
    )


def _setup(*options: str) -> Setup:
    return Setup(
        seconds=SECONDS,
        stall_from=STALL_FROM,
        stall_to=STALL_TO,
        producers_count=PRODUCERS_COUNT,
        tail_count=TAIL_COUNT,
        backlog_count=0,
        options=(*options, "--cache-bytes", "0"),
        bounded_bytes=parse_size(POOL_SIZE),
    )


def _figures(outcome: Outcome) -> Mapping[str, float]:
    found = {f"{variant.name}: RSS max MiB": variant.figures["RSS max MiB"] for variant in outcome.variants()}
    return {
        **found,
        "connections paused while stalled": outcome.pauses_count,
        "records": outcome.records_count,
        "anomalies": len(outcome.anomalies),
    }


CLAIM = Claim(
    row="l5",
    source="klite, memory",
    claim="early flush at 75 %; exhausted, producers wait; memory is bounded",
    source_figure="75 %",
    run=run,
)
