"""Takes the turns of a run. What is found goes into the journal at once; a failure costs its own turn alone.

The host of a virtual machine may keep its cores from it. How much is measured with each result, and what was disturbed
by more than `steal_max_percent` is measured again, in a calmer moment if one comes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby

import attrs
import click

from bench.brokers import OwnBroker, RunningBroker, Startable
from bench.figures import Result
from bench.options import RunOptions
from bench.peers.journal import Journal
from bench.peers.load import Context
from bench.peers.plan import Turn, estimated_seconds
from bench.processes import Stolen
from bench.runner import Runner
from kafscale.config import Address

SHOWN_ERROR_LENGTH = 300
TRUSTED_SECONDS = 120.0  # an estimate weighs as much as so long a time in which it was right
MEASURED_MAX_COUNT = 3  # times, of which the one is kept that was disturbed least
CALM_WITHIN_SECONDS = 60.0
CALM_SECONDS = 3.0
MOST_GETS_FROM_MEMORY = 0.1  # per request: the broker reads its own things now and then


@attrs.define(eq=False)
class RunningBrokers:
    """The brokers of one round. Each is started when it is first needed, and stays: a JVM must get warm.

    One that has options of its own for some loads runs beside the one without. Those that have nothing to do cost
    next to nothing.
    """

    _running: dict[tuple[str, tuple[str, ...]], tuple[ExitStack, RunningBroker]] = attrs.field(factory=dict, init=False)

    def get(self, startable: Startable, serve_options: Sequence[str]) -> RunningBroker:
        """Return a running broker; of a peer there is only one."""
        if serve_options and isinstance(startable, OwnBroker):
            startable = attrs.evolve(startable, options=[*startable.options, *serve_options])
        key = startable.name, tuple(serve_options) if isinstance(startable, OwnBroker) else ()
        if key not in self._running:
            stack = ExitStack()
            self._running[key] = stack, stack.enter_context(startable.running())
        return self._running[key][1]

    def stop(self, name: str) -> None:
        """The broker failed; the next load gets a new one."""
        for key in [key for key in self._running if key[0] == name]:
            self._running.pop(key)[0].close()

    @contextmanager
    def stopped_in_the_end(self) -> Iterator[RunningBrokers]:
        with ExitStack() as stack:
            stack.callback(self._stop_all)
            yield self

    def _stop_all(self) -> None:
        for name in dict.fromkeys(name for name, _ in self._running):
            self.stop(name)


@attrs.define(eq=False, kw_only=True)
class PeersRun:
    """`startables`: brokers by name. `steal_max_percent`: None if nothing is measured again.

    keeps_brokers: whether they run for all rounds, so that a JVM is warm after the first one, where rounds are short.
    """

    options: RunOptions
    startables: Mapping[str, Startable]
    journal: Journal
    steal_max_percent: float | None = None
    keeps_brokers: bool = False
    runner: Runner = attrs.field(factory=Runner)
    _began: float = attrs.field(factory=time.monotonic, init=False)

    def take(self, turns: Sequence[Turn]) -> None:
        """All of them; brokers are started once a round, or once."""
        self.journal.begin_part(self.options)
        click.echo(f"{len(turns)} measurements, about {_minutes(estimated_seconds(turns, self.options))}", err=True)
        with ExitStack() as stack:
            stack.callback(self.runner.close)
            for _, group in groupby(enumerate(turns), lambda numbered: not self.keeps_brokers and numbered[1].round):
                with RunningBrokers().stopped_in_the_end() as brokers:
                    for number, turn in group:
                        click.echo(f"{self._left(turns, number)} left: {_named(turn)}", err=True)
                        self._take(turn, brokers)

    def _left(self, turns: Sequence[Turn], number: int) -> str:
        """Tell how much is left: as estimated, corrected by how long it took until now; in the beginning that says
        little.
        """
        left, done = (estimated_seconds(part, self.options) for part in (turns[number:], turns[:number]))
        taken = time.monotonic() - self._began
        return _minutes(left * (taken + TRUSTED_SECONDS) / (done + TRUSTED_SECONDS))

    def _take(self, turn: Turn, brokers: RunningBrokers) -> None:
        try:
            result = self._measure_calmly(turn, brokers)
        except Exception as exc:  # a failure is reported, and tried again by the next run; keep the other results
            told = f"{type(exc).__name__}: {exc}"
            click.echo(f"FAILED: {told[:SHOWN_ERROR_LENGTH]}", err=True)
            self.journal.fail(turn, told)
            brokers.stop(turn.broker)
            self.runner.renew()
            return
        if result is None:
            click.echo("left out: what it takes a share of was not measured", err=True)
            return
        self.journal.add(result)
        click.echo(f"  {_told(result)}", err=True)

    def _measure_calmly(self, turn: Turn, brokers: RunningBrokers) -> Result | None:
        """Measure a turn, and again if it was disturbed.

        What decides that is the host's part alone, never the result.
        """
        if (limit := self.steal_max_percent) is None:
            return self._measure(turn, brokers)
        calmest: Result | None = None
        for _ in range(MEASURED_MAX_COUNT):
            _wait_for_calm(limit)
            result = self._measure(turn, brokers)
            if result is None:
                return None
            if calmest is None or _steal(result) < _steal(calmest):
                calmest = result
            if _steal(result) <= limit:
                break
            click.echo(f"  {_told(result)}: disturbed", err=True)
        return calmest

    def _measure(self, turn: Turn, brokers: RunningBrokers) -> Result | None:
        load, startable = turn.load, self.startables.get(turn.broker)
        if load.partitions:
            assert startable is not None
            running = brokers.get(startable, load.serve_options)
            running.create_topic(load.partitions)
        else:
            running = RunningBroker(name=turn.broker, address=Address("", 0), pid=None, metrics_url=None)
        results = [result for result in self.journal.findings.results if result.round <= turn.round]
        context = Context(
            runner=self.runner, startable=startable, broker=running, options=self.options, results=results
        )
        task = load.task(context)
        if task is None:
            return None
        if task.warm_up is not None:
            self.runner.send(task.run, task.warm_up)
        if not load.is_from_memory:
            _let_disk_rest(running)
        result = self.runner.measure(task.run, task.load, running, point=load.name, round=turn.round)
        if load.is_from_memory and (result.gets or 0) > MOST_GETS_FROM_MEMORY * result.figures.requests:
            raise RuntimeError(f"{result.gets} GETs for what should have come from memory")
        if load.partitions:
            running.remove_topic()
        _let_disk_rest(running)
        return result


def _steal(result: Result) -> float:
    return result.steal_percent or 0.0


def _wait_for_calm(steal_max_percent: float) -> None:
    """Wait for the machine to be calm, for as long as that may take; then it is measured anyhow."""
    give_up = time.monotonic() + CALM_WITHIN_SECONDS
    steal_percent = math.inf
    while steal_percent > steal_max_percent and time.monotonic() < give_up:
        before = Stolen.now()
        time.sleep(CALM_SECONDS)
        steal_percent = Stolen.now().percent_since(before)


def _let_disk_rest(running: RunningBroker) -> None:
    """Let the disk rest, so that no broker pays for what another one, or its own warm-up, has written."""
    running.flush()
    os.sync()


def _named(turn: Turn) -> str:
    return f"round {turn.round + 1}, {turn.load.name}, {turn.broker}"


def _told(result: Result) -> str:
    p99 = "" if math.isnan(result.figures.p99_ms) else f", p99 {result.figures.p99_ms:,.1f} ms"
    steal = f", {_steal(result):.0f} % of the cores stolen" if _steal(result) >= 1 else ""
    return f"{result.mib_per_second:,.1f} MiB/s, {result.requests_per_second:,.0f} requests/s{p99}{steal}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02} min"
