"""Many seeds of the simulation, in several processes:  python -m tests.devtools.simulate SEEDS

Ends with 1 if a seed failed. A seed that fails does so again, by itself and in any process.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

import attrs

from tests.devtools.world.cluster import Cluster
from tests.devtools.world.cluster_mutations import MUTATIONS
from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.one_broker import OneBroker
from tests.devtools.world.transactional import mutations as transactional
from tests.devtools.world.workload import forget_batches
from tests.devtools.world.world import World

SEEDS_AT_ONCE = 4  # what a process is given at a time
PROGRESS_EVERY_COUNT = 100
BRIEF_LINES_COUNT = 12
ALL_MUTATIONS = {**transactional.MUTATIONS, **MUTATIONS}
CPU_MAX_SECONDS = 60.0  # of one seed; most take less than four


@attrs.frozen(kw_only=True)
class Outcome:
    seed: int
    durability: str
    acknowledged_count: int
    committed_count: int  # transactions
    problems: Sequence[str]
    events: Sequence[str]


def run_seed(seed: int, *, is_short: bool = False, of_cluster: bool = False, mutation: str | None = None) -> Outcome:
    """Run a seed; an exception is one of its problems."""
    if mutation is not None:
        with ALL_MUTATIONS[mutation]():
            return run_seed(seed, is_short=is_short, of_cluster=of_cluster)
    world: World = Cluster(seed, is_short) if of_cluster else OneBroker(seed, is_short)
    problems: Sequence[str]
    with _cpu_limit():
        try:
            run_seeded(seed, world.run)
            problems = world.problems
        except Exception as exc:
            problems = traceback.format_exception(exc)
        finally:
            forget_batches()
    return Outcome(
        seed=seed,
        durability=world.settings.durability.value,
        acknowledged_count=world.history.acknowledged_count,
        committed_count=world.committed_count,
        problems=problems,
        events=world.log.lines if problems else (),
    )


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Fail a seed whose tasks are busy without end; an autojump clock would never pass that instant."""

    def give_up(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"busy for more than {CPU_MAX_SECONDS} s")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, CPU_MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_seeds(
    seeds: Sequence[int],
    processes_count: int,
    *,
    is_short: bool = False,
    of_cluster: bool = False,
    mutation: str | None = None,
) -> Iterator[Outcome]:
    """Run seeds in processes of their own, in order; they end with the caller."""
    run = partial(run_seed, is_short=is_short, of_cluster=of_cluster, mutation=mutation)
    with ProcessPoolExecutor(processes_count, mp_context=get_context("spawn"), initializer=_be_quiet) as pool:
        yield from pool.map(run, seeds, chunksize=SEEDS_AT_ONCE)


def _be_quiet() -> None:
    """Disable the log of brokers among faults, and the garbage collector, which `determinism` runs before each seed."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.disable()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devtools.simulate", description=__doc__.split("\n\n")[0])
    parser.add_argument("seeds", type=int)
    parser.add_argument("--first", type=int, default=1, help="the first seed; the others follow it")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="how many at once")
    parser.add_argument("--events", action="store_true", help="print the event log of each seed that fails")
    parser.add_argument("--short", action="store_true", help="short seeds, in which less happens")
    parser.add_argument("--cluster", action="store_true", help="several brokers on one bucket")
    parser.add_argument("--mutation", choices=ALL_MUTATIONS, help="let brokers do what they must not")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    runs, failures, acknowledged, committed = Counter[str](), Counter[str](), 0, 0
    seeds = range(given.first, given.first + given.seeds)
    outcomes = run_seeds(
        seeds, given.processes, is_short=given.short, of_cluster=given.cluster, mutation=given.mutation
    )
    for outcome in outcomes:
        runs[outcome.durability] += 1
        acknowledged += outcome.acknowledged_count
        committed += outcome.committed_count
        if outcome.problems:
            failures[outcome.durability] += 1
            _show(outcome, with_events=given.events)
        if runs.total() % PROGRESS_EVERY_COUNT == 0:
            print(f"{runs.total()} seeds in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for durability in sorted(runs):
        print(f"{durability}: {runs[durability]} seeds, {failures[durability]} failed")
    print(f"{acknowledged} records acknowledged, {committed} transactions committed, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


def _show(outcome: Outcome, *, with_events: bool) -> None:
    print(f"seed {outcome.seed} ({outcome.durability}) failed:")
    lines = "\n".join(outcome.problems).splitlines()
    print(*(lines if with_events else lines[-BRIEF_LINES_COUNT:]), sep="\n")
    if with_events:
        print(*outcome.events, sep="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
