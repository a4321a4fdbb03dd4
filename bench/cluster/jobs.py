"""Descriptions of the measurements, by group of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import attrs

from bench.cluster.findings import Findings, Key
from bench.options import RunOptions

SCALING, MOVING, KILLING, BESIDE, CONTROLLER = "scaling", "moving", "killing", "beside", "controller"


@attrs.frozen(kw_only=True)
class Job:
    """A load on a system: `measure` gives its figures, by the headings of their columns.

    is_row: whether what must be reached needs it.
    """

    group: str
    load: str
    system: str
    measure: Callable[[RunOptions], Mapping[str, float]]
    needs_java: bool = False
    is_row: bool = True

    def key(self, round: int) -> Key:
        return self.group, self.load, self.system, round


def turns(jobs: Sequence[Job], rounds: int, done: Collection[Key]) -> Iterator[tuple[int, Job]]:
    """Yield what is not done yet, round by round; every other round goes the other way."""
    for round in range(rounds):
        for job in jobs if round % 2 == 0 else reversed(jobs):
            if job.key(round) not in done:
                yield round, job


AT_MOST, AT_LEAST = "<=", ">="


@attrs.frozen(kw_only=True)
class Target:
    """A figure of a load on a system, and what is wanted of it: `factor` times the peer's, or a value.

    peer_load: of the peer, where it is not the same load.
    """

    group: str
    load: str
    system: str
    figure: str
    factor: float
    wanted: str = AT_MOST
    peer: str | None = None
    peer_load: str | None = None

    def cells(self, findings: Findings) -> Sequence[str] | None:
        """Return the row as text, under `HEADINGS`; None if it was not measured."""
        found = findings.of(self.group)
        ours = found.get((self.load, self.system), {}).get(self.figure)
        theirs = 1.0 if self.peer is None else found.get((self.peer_load or self.load, self.peer), {}).get(self.figure)
        if ours is None or theirs is None:
            return None
        ratio = ours / theirs if theirs else float("inf")
        peer = self.peer if self.peer_load is None else f"{self.peer}, {self.peer_load.rsplit(', ', 1)[-1]}"
        is_reached = ratio <= self.factor if self.wanted == AT_MOST else ratio >= self.factor
        return [
            self.load,
            self.system,
            self.figure,
            f"{ours:,.4g}",
            "–" if self.peer is None else f"{theirs:,.4g} ({peer})",
            "–" if self.peer is None else f"{ratio:.2f}",
            f"{self.wanted} {self.factor:g}{'' if self.peer is None else 'x'}",
            "yes" if is_reached else MISSED,
        ]


MISSED = "NO"
HEADINGS = ("load", "system", "figure", "ours", "theirs", "ratio", "wanted", "reached")
