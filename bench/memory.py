"""`python -m bench.memory`: the broker's memory under load, while the store is stalled for part of the time.

200 connections: idempotent producers that send batches of up to 128 KiB as fast as they are answered, five in flight
each; consumers at the tail, one for each partition; and consumers that read the backlog from the log's start again and
again. The store is a stand-in S3 in a process of its own, which is stopped for a fifth of the time, so that its
connections hang. The write-ahead log is kept so small that producers have to wait meanwhile. Resident memory is sampled
once a second. A checker of requests, answers and reads looks for lost, doubled or reordered records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import attrs
import click
import trio

from bench.brokers import RunningBroker
from bench.claims.claim import Claim, Finding, Variant
from bench.claims.files import Done, save
from bench.claims.page import write_page
from bench.claims.plot import Plot, Point
from bench.claims.report import show, show_summary
from bench.memory_load import MemoryLoad
from bench.places import RESULTS
from bench.s3_process import S3Process, s3_process
from kafscale.config import Settings, StoreUrl
from kafscale.config.units import MIB, parse_size
from tests.devtools.processes.process import BrokerProcess, broker_process

ALLOWED_MIB = 200.0  # beside what options bound
POOL_SIZE = "128MiB"
WAL_SIZE = "256MiB"
BEFORE, STALLED, AFTER, READING_BACK = "before", "store stalled", "after", "reading the rest"
SAMPLE_SECONDS = 1.0
HELD = {  # what the broker says that it holds, by the names of its metrics
    "pool": "kafscale_pool_used_bytes",
    "cache": "kafscale_cache_bytes",
    "fetches": "kafscale_fetch_buffer_bytes",
    "footers": "kafscale_footer_cache_bytes",
}


@attrs.frozen(kw_only=True)
class Setup:
    """The load: how long, how many connections of each kind, and the broker's options."""

    seconds: float = 600.0
    stall_from: float = 0.4  # of the time
    stall_to: float = 0.6
    producers_count: int = 120
    tail_count: int = 60
    backlog_count: int = 20
    options: Sequence[str] = ("--chunk-pool-bytes", POOL_SIZE, "--wal-max-bytes", WAL_SIZE)
    bounded_bytes: int = attrs.field(default=attrs.Factory(lambda: bounded_bytes(POOL_SIZE)))

    @classmethod
    def of(cls, connections_count: int, *, seconds: float) -> Setup:
        """Give each kind its share of the connections."""
        tail_count, backlog_count = 3 * connections_count // 10, connections_count // 10
        return cls(
            seconds=seconds,
            producers_count=connections_count - tail_count - backlog_count,
            tail_count=tail_count,
            backlog_count=backlog_count,
        )

    @property
    def connections_count(self) -> int:
        return self.producers_count + self.tail_count + self.backlog_count

    @property
    def bound_mib(self) -> float:
        """Return what resident memory may be."""
        return self.bounded_bytes / MIB + ALLOWED_MIB


def bounded_bytes(pool_size: str) -> int:
    """Pool, cache and fetch budget, these two by default."""
    settings = Settings(store=StoreUrl.parse("s3://bench"))
    return parse_size(pool_size) + settings.cache_bytes + settings.fetch_buffer_bytes


@attrs.frozen(kw_only=True)
class Sample:
    """One look at the broker."""

    at_seconds: float
    phase: str
    rss_mib: float
    bytes_in: float
    bytes_out: float
    held_bytes: Mapping[str, float] = attrs.field(factory=dict)


@attrs.define(eq=False, kw_only=True)
class Outcome:
    """The outcome of a run."""

    samples: list[Sample] = attrs.field(factory=list)
    anomalies: Sequence[str] = ()
    records_count: int = 0
    silent_count: int = 0  # producers that got nothing acknowledged after the stall
    pauses_count: int = 0  # of connections, while the store was stalled

    @property
    def most_rss_mib(self) -> float:
        return max(sample.rss_mib for sample in self.samples)

    @property
    def is_sound(self) -> bool:
        """Tell whether nothing was lost, and everybody went on."""
        return not self.anomalies and not self.silent_count and self.records_count > 0

    def variants(self) -> Sequence[Variant]:
        """One for each phase."""
        return [self._variant(phase) for phase in (BEFORE, STALLED, AFTER)]

    def _variant(self, phase: str) -> Variant:
        samples = [sample for sample in self.samples if sample.phase == phase]
        first, last = samples[0], samples[-1]
        seconds = max(last.at_seconds - first.at_seconds, SAMPLE_SECONDS)
        return Variant(
            name=phase,
            figures={
                "RSS median MiB": median(sample.rss_mib for sample in samples),
                "RSS max MiB": max(sample.rss_mib for sample in samples),
                "in MiB/s": (last.bytes_in - first.bytes_in) / MIB / seconds,
                "out MiB/s": (last.bytes_out - first.bytes_out) / MIB / seconds,
                "seconds": seconds,
                **{f"{name} max MiB": max(sample.held_bytes.get(name, 0) for sample in samples) / MIB for name in HELD},
            },
        )


def measure(setup: Setup) -> Outcome:
    """Run the load against a broker that is started for it."""
    with s3_process() as store:
        with broker_process(*store.broker_options, *setup.options, environ=store.broker_environ) as process:
            return trio.run(Run(setup=setup, store=store, process=process).run)


@attrs.define(eq=False, kw_only=True)
class Run:
    """The load, the stall, and who looks on."""

    setup: Setup
    store: S3Process
    process: BrokerProcess
    outcome: Outcome = attrs.field(factory=Outcome)
    phase: str = BEFORE
    began: float = attrs.field(factory=time.monotonic)

    async def run(self) -> Outcome:
        load = MemoryLoad(
            address=self.process.kafka,
            producers_count=self.setup.producers_count,
            tail_count=self.setup.tail_count,
            backlog_count=self.setup.backlog_count,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample)
            async with load.running():
                await self._enter(BEFORE)
                await trio.sleep(self.setup.seconds * self.setup.stall_from)
                await self._stall(self.setup.seconds * (self.setup.stall_to - self.setup.stall_from))
                acknowledged_before = load.acknowledged_counts()
                await self._enter(AFTER)
                await trio.sleep(self.setup.seconds * (1 - self.setup.stall_to))
            await self._enter(READING_BACK)
            await load.read_to_end()
            self.outcome.silent_count = sum(
                after <= before for before, after in zip(acknowledged_before, load.acknowledged_counts(), strict=True)
            )
            nursery.cancel_scope.cancel()
        self.outcome.anomalies = [str(anomaly) for anomaly in load.history.anomalies()]
        self.outcome.records_count = load.history.acknowledged_count
        return self.outcome

    async def _stall(self, seconds: float) -> None:
        pauses_before = await trio.to_thread.run_sync(self._pauses)
        self.store.stall()
        try:
            await self._enter(STALLED)
            await trio.sleep(seconds)
            self.outcome.pauses_count = await trio.to_thread.run_sync(self._pauses) - pauses_before
        finally:
            self.store.resume()

    async def _enter(self, phase: str) -> None:
        """Enter a phase; each has one sample at least."""
        self.phase = phase
        self.outcome.samples.append(await trio.to_thread.run_sync(self._look))

    async def _sample(self) -> None:
        while True:
            self.outcome.samples.append(await trio.to_thread.run_sync(self._look))
            await trio.sleep(SAMPLE_SECONDS)

    def _look(self) -> Sample:
        broker = self._broker()
        metrics = broker.samples()
        rss_mib = broker.rss_mib()
        assert rss_mib is not None
        return Sample(
            at_seconds=time.monotonic() - self.began,
            phase=self.phase,
            rss_mib=rss_mib,
            bytes_in=_sum(metrics, "kafscale_topic_appended_bytes_total"),
            bytes_out=_sum(metrics, "kafscale_topic_fetched_bytes_total"),
            held_bytes={name: _sum(metrics, metric) for name, metric in HELD.items()},
        )

    def _pauses(self) -> int:
        return int(_sum(self._broker().samples(), "kafscale_connection_pauses_total"))

    def _broker(self) -> RunningBroker:
        return RunningBroker(
            name="kafscale",
            address=self.process.kafka,
            pid=self.process.pid,
            metrics_url=f"http://{self.process.admin}/metrics",
        )


def _sum(metrics: Mapping[str, float], name: str) -> float:
    """Sum a metric over all labels."""
    return sum(value for sample, value in metrics.items() if sample.partition("{")[0] == name)


def finding_of(setup: Setup, outcome: Outcome) -> Finding:
    """Return the outcome as a row of the table, with a plot."""
    seconds = [Point(sample.at_seconds, sample.rss_mib) for sample in outcome.samples]
    bound = [Point(second.x, setup.bound_mib) for second in (seconds[0], seconds[-1])]
    told = f"{len(outcome.anomalies)} anomalies: {outcome.anomalies[0]}" if outcome.anomalies else "no produce lost"
    return Finding(
        ours=f"RSS at most {outcome.most_rss_mib:.0f} MiB, allowed {setup.bound_mib:.0f} MiB; {told} of "
        f"{outcome.records_count:,} records; {setup.producers_count - outcome.silent_count} of "
        f"{setup.producers_count} producers went on when the store did",
        is_shown=outcome.most_rss_mib <= setup.bound_mib and outcome.is_sound,
        variants=outcome.variants(),
        plot=Plot(
            title=f"{setup.connections_count} connections, the store stalled from {100 * setup.stall_from:.0f} to "
            f"{100 * setup.stall_to:.0f} % of the time",
            x_label="seconds",
            y_label="RSS MiB",
            series={"RSS": seconds, "~pool + cache + fetch budget + 200 MiB": bound},
            is_linear=True,
        ),
    )


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="How long the load lasts.")
@click.option("--connections", default=200, show_default=True, help="Six of ten produce, three read the tail.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    help="Where JSON, plot and page go. Default: bench/results, and the page to docs/benchmarks.",
)
def main(seconds: float, connections: int, directory: Path) -> None:
    """Show that memory is bounded, whatever the store does. Exits with 1 if it is not, or if anything was lost."""
    setup = Setup.of(connections, seconds=seconds)
    started = time.monotonic()
    finding = finding_of(setup, measure(setup))
    done = Done.of(CLAIM, finding, seconds=time.monotonic() - started)
    show(done)
    show_summary([done])
    save(done, directory)
    write_page(directory)
    sys.exit(0 if finding.is_shown else 1)


def run() -> Finding:
    """The whole of it, at its full length."""
    setup = Setup()
    return finding_of(setup, measure(setup))


CLAIM = Claim(
    row="memory",
    source="KafScale, in Python",
    claim="RSS <= pool + cache + fetch budget + 200 MiB under any load",
    source_figure="200 connections, 10 minutes, the store stalled for part of them",
    run=run,
)

if __name__ == "__main__":
    main()
