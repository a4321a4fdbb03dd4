"""`python -m bench.profile`: where the CPU time of a request goes, by load, sampled by py-spy from outside.

Writes the stacks of each load (folded, as flame graph tools take them) and a table by stage. What a stage takes is its
share of the samples of the event loop, or of the other threads, times the CPU time of that by the measure of `/proc`.
A thread that waits for the disk is sampled too, so the shares among these threads are those of time and not of CPU.
Options after `--` go to `kafscale serve`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from bench.brokers import OwnBroker, RunningBroker
from bench.consume import SOURCE_OPTIONS, FetchPoint, fill
from bench.fetch_load import run_fetch
from bench.figures import Figures, Result
from bench.options import RunOptions, common_options, parsed
from bench.places import RESULTS
from bench.points import Point
from bench.processes import main_thread_cpu_seconds
from bench.produce_load import ProduceLoad, run_produce
from bench.runner import Runner
from bench.stages import OTHER, OTHER_THREADS, STAGES, by_stage, folded

DIRECTORY = RESULTS / "profiles"
SAMPLES_PER_SECOND = 250
SHOWN_MIN_COUNT = 2  # samples of a stack, to be in the file


@attrs.frozen(kw_only=True)
class _Load:
    """A point that is profiled: what it sends, and how."""

    point: Point | FetchPoint
    run: Callable[[Any], Figures]

    @classmethod
    def parse(cls, text: str) -> _Load:
        """Parse a point as `bench.produce` or `bench.consume` names it. Raises ValueError."""
        if text.partition("/")[0] in SOURCE_OPTIONS:
            return cls(point=FetchPoint.parse(text), run=run_fetch)
        return cls(point=Point.parse(text), run=run_produce)

    @property
    def broker_options(self) -> Sequence[str]:
        return SOURCE_OPTIONS[self.point.source] if isinstance(self.point, FetchPoint) else ()

    def of(self, runner: Runner, broker: RunningBroker) -> Any:
        if isinstance(self.point, FetchPoint):
            return fill(runner, broker, self.point)
        return ProduceLoad(address=broker.address, point=self.point, seconds=0)

    @property
    def file_name(self) -> str:
        return str(self.point).replace("/", "-")


STANDARD = ("1KiB/64/1", "1KiB/64/16", "16KiB/64/16", "960KiB/5/1", "tail/1KiB/1", "tail/960KiB/1", "backlog/960KiB/1")


@click.command()
@click.option("--point", "loads", multiple=True, metavar="POINT", callback=parsed(_Load.parse))
@click.option("--label", default="now", show_default=True, help="Of the files that are written.")
@common_options
def main(loads: Sequence[_Load], label: str, options: RunOptions) -> None:
    """Profile a broker that is started for each load."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    runner = Runner()
    profiles: list[_Profile] = []
    for load in loads or [_Load.parse(text) for text in STANDARD]:
        own = OwnBroker(options=[*load.broker_options, *options.broker_options], directory=options.directory)
        with own.running() as running:
            profile, stacks = _profile(load, runner, running, options)
        lines = [f"{';'.join(stack)} {count}" for stack, count in stacks.most_common() if count >= SHOWN_MIN_COUNT]
        (DIRECTORY / f"{label}-{load.file_name}.folded").write_text("\n".join(lines) + "\n")
        profiles.append(profile)
    runner.close()
    table = _table(profiles)
    (DIRECTORY / f"{label}.txt").write_text(f"# CPU time of the broker by stage, us per request: {label}\n\n{table}")
    click.echo(table)


@attrs.frozen
class _Profile:
    result: Result
    stages_us: Mapping[str, float]
    event_loop_us: float


def _profile(
    load: _Load, runner: Runner, broker: RunningBroker, options: RunOptions
) -> tuple[_Profile, Counter[tuple[str, ...]]]:
    broker.create_topic(load.point.partitions)
    sent = load.of(runner, broker)
    runner.send(load.run, attrs.evolve(sent, seconds=options.warm_up_seconds))
    sent = attrs.evolve(sent, seconds=options.seconds)
    assert broker.pid is not None
    with _Sampler(broker.pid, options.seconds) as sampler:
        before = main_thread_cpu_seconds(broker.pid)
        result = runner.measure(load.run, sent, broker, point=str(load.point), round=0)
        event_loop_us = (main_thread_cpu_seconds(broker.pid) - before) / result.figures.requests * 1e6
    stacks = folded(sampler.lines())
    threads_us = (result.cpu_us_per_request or 0) - event_loop_us
    return _Profile(result, by_stage(stacks, event_loop_us=event_loop_us, threads_us=threads_us), event_loop_us), stacks


@attrs.define(eq=False)
class _Sampler:
    """py-spy beside a process, for the time of the block."""

    pid: int
    seconds: float
    _directory: tempfile.TemporaryDirectory[str] = attrs.field(factory=tempfile.TemporaryDirectory, init=False)
    _process: subprocess.Popen[bytes] = attrs.field(init=False)

    @property
    def _output(self) -> Path:
        return Path(self._directory.name) / "raw"

    def __enter__(self) -> _Sampler:
        program = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
        if program is None:
            raise click.ClickException(f"py-spy is not there: {sys.executable} -m pip install py-spy")
        command = [program, "record", "--pid", str(self.pid), "--format", "raw", "--output", str(self._output)]
        command += ["--threads", "--rate", str(SAMPLES_PER_SECOND), "--duration", str(max(1, round(self.seconds)))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        errors = self._process.communicate()[1]
        if self._process.returncode:
            raise click.ClickException(f"py-spy failed; it may need root: {errors.decode()}")

    def lines(self) -> Sequence[str]:
        """Return what it has seen."""
        with self._directory:
            return self._output.read_text().splitlines()


def _table(profiles: Sequence[_Profile]) -> str:
    """Stages by load, as Markdown."""
    rows = [["stage", *(profile.result.point for profile in profiles)], ["---"] * (len(profiles) + 1)]
    for stage in (*STAGES, OTHER, OTHER_THREADS):
        if any(profile.stages_us.get(stage) for profile in profiles):
            rows.append([stage, *(_figure(profile.stages_us.get(stage, 0.0)) for profile in profiles)])
    rows.append(["all", *(_figure(profile.result.cpu_us_per_request or 0) for profile in profiles)])
    rows.append(["of this, the event loop", *(_figure(profile.event_loop_us) for profile in profiles)])
    rows.append(["requests/s", *(f"{profile.result.requests_per_second:,.0f}" for profile in profiles)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _figure(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:,.0f}"


if __name__ == "__main__":
    main()
