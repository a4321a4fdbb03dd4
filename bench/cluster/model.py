"""Estimates for more cores and machines: arithmetic from measurements, and the first limit."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bench.cluster.controller import COSTS_LOAD, FAIL_OVER_FIGURES, LATENCY_SECONDS, RACES, SIZES
from bench.cluster.findings import Findings
from bench.cluster.jobs import CONTROLLER, SCALING
from bench.cluster.scaling import CPU, POINTS, load_of, system_of
from kafscale.cluster.membership.start.member import REST_SECONDS
from kafscale.config.units import KIB, MIB

BATCHES = POINTS[0]  # of 16 KiB
MACHINES = ((4, 1), (16, 1), (64, 1), (4, 3), (16, 3), (16, 10), (16, 30), (16, 100), (64, 100))  # cores, machines
LINE_GBITS = 12.5  # of a machine; of 16 cores as clouds have them
COPIES_OUT = 3  # of each byte that comes: to the stream, to a segment, to one consumer
STREAM_PUTS_PER_SECOND = 20.0  # of a broker, back to back at 50 ms
BUCKET_PUTS_PER_SECOND = 3500.0  # of S3, for one prefix; it splits prefixes under a load that lasts
SEGMENT_BYTES = 64 * MIB
DETECTION_SECONDS = 1.5  # until a process is missed whose address refuses connections
CONNECT_SECONDS = 0.001  # CPU of the controller for a new leader that sends it something: 0.4 ms, more with a login
WANTED_SECONDS = 5.0  # until all is served again
HEADINGS = (
    "machines", "cores each", "brokers", "MiB/s by CPU", "MiB/s by the line", "PUT/s", "GET and HEAD/s of the head",
    "fail-over s", "limited first by",
)  # fmt: skip


@attrs.frozen(kw_only=True)
class Costs:
    """Measured costs: CPU of a batch of 16 KiB, and seconds of a fail-over: for commits and for their CPU."""

    batch_us: float
    commits_seconds: float
    cpu_seconds: float

    @classmethod
    def of(cls, findings: Findings) -> Costs | None:
        """Return them; None if one was not measured."""
        scaling, races = findings.of(SCALING), findings.of(CONTROLLER)
        batch = scaling.get((load_of(BATCHES), system_of(4)))
        served = next(
            (race for (_, size), race in races.items() if size == str(RACES[-1]) and "partitions" in race), None
        )
        spent = races.get((COSTS_LOAD, str(SIZES[-1])), {})
        if batch is None or served is None or not spent.keys() >= set(FAIL_OVER_FIGURES):
            return None
        cpu_ms = sum(spent[fail_over_figure] for fail_over_figure in FAIL_OVER_FIGURES)
        return cls(batch_us=batch[CPU], commits_seconds=served["all served after s"], cpu_seconds=cpu_ms / 1000)


@attrs.frozen(kw_only=True)
class Reach:
    """The reach of some machines, with a broker for each core."""

    cores: int
    machines: int
    costs: Costs

    @property
    def brokers(self) -> int:
        return self.cores * self.machines

    @property
    def by_cpu(self) -> float:
        """MiB/s of batches of 16 KiB."""
        return self.brokers * 1e6 / self.costs.batch_us * BATCHES.batch_bytes / MIB

    @property
    def by_line(self) -> float:
        return self.machines * LINE_GBITS * 1e9 / 8 / MIB / COPIES_OUT

    @property
    def puts(self) -> float:
        """PUT/s at the smaller of the two rates: streams back to back, and a `.kfs` with its `.index`."""
        rate = min(self.by_cpu, self.by_line) * MIB
        return self.brokers * STREAM_PUTS_PER_SECOND + 2 * rate / SEGMENT_BYTES

    @property
    def looks(self) -> float:
        """HEAD/s while nothing is committed: the controller looks twice a second, the others every five seconds."""
        return 2.0 + (self.brokers - 1) / REST_SECONDS

    @property
    def fail_over_seconds(self) -> float:
        """Seconds until the controller has committed the epoch starts of the last new leader."""
        costs = self.costs
        return DETECTION_SECONDS + costs.commits_seconds + costs.cpu_seconds + CONNECT_SECONDS * self.brokers

    @property
    def limit(self) -> str:
        """The first limit when the load, or the number of brokers, grows."""
        if self.fail_over_seconds > WANTED_SECONDS:
            return f"metadata: a fail-over takes over {WANTED_SECONDS:.0f} s"
        if self.puts > BUCKET_PUTS_PER_SECOND:
            return "the bucket's PUT rate"
        return "CPU" if self.by_cpu < self.by_line else "the line to the bucket"

    def cells(self) -> Sequence[str]:
        """Return the row as text, under `HEADINGS`."""
        return [
            str(self.machines), str(self.cores), f"{self.brokers:,}", f"{self.by_cpu:,.0f}", f"{self.by_line:,.0f}",
            f"{self.puts:,.0f}", f"{self.looks:,.0f}", f"{self.fail_over_seconds:.1f}", self.limit,
        ]  # fmt: skip


_ABOUT = """Arithmetic, not measured. A batch of {batch_kib} KiB costs {batch_us:.0f} us of CPU, as with four
processes above, with a broker for each core. A machine's line has {line:g} Gbit/s, and each incoming byte goes out
{copies} times: to the stream, a segment and a consumer. Streams take {puts:.0f} PUT/s a broker
(`--s3-wal-min-interval` lowers it); S3 takes {most_puts:,.0f} PUT/s a prefix. A dead broker is missed after
{detection:g} s; then, for a thousand partitions, {commits_ms:.0f} ms for commits at {latency_ms:.0f} ms an operation,
{cpu_ms:.0f} ms of CPU and {connect_ms:g} ms of the controller for each new leader. So metadata limits the number of
brokers, not their load.
"""


def about(findings: Findings) -> str:
    """Return what the page says above the table."""
    costs = Costs.of(findings)
    assert costs is not None
    return _ABOUT.format(
        batch_kib=BATCHES.batch_bytes // KIB,
        batch_us=costs.batch_us,
        line=LINE_GBITS,
        copies=COPIES_OUT,
        puts=STREAM_PUTS_PER_SECOND,
        most_puts=BUCKET_PUTS_PER_SECOND,
        detection=DETECTION_SECONDS,
        commits_ms=costs.commits_seconds * 1000,
        cpu_ms=costs.cpu_seconds * 1000,
        connect_ms=CONNECT_SECONDS * 1000,
        latency_ms=LATENCY_SECONDS * 1000,
    )


def model_rows(findings: Findings) -> Sequence[Sequence[str]]:
    """Return the table; nothing if what it is made from was not measured."""
    costs = Costs.of(findings)
    if costs is None:
        return []
    return [Reach(cores=cores, machines=machines, costs=costs).cells() for cores, machines in MACHINES]
