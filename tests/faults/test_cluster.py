"""Several brokers as processes, under load: SIGKILL, SIGSTOP, and a restart of one after the other.

Each test prints what was acknowledged, read, lost and repeated, the longest time in which nothing of a partition was
acknowledged, and the longest that a record waited for that. FAULTS_SEED chooses the seed; FAULTS_CYCLES how many faults
there are. `make test-cluster` runs them.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from confluent_kafka.admin import AdminClient

from tests.devtools.external.clients import wait_until
from tests.devtools.external.s3_processes import S3Process, minio_server
from tests.devtools.processes.cluster_load import QUIET, ClusterLoad, leaders_of
from tests.devtools.processes.process import is_there
from tests.devtools.processes.several_processes import (
    SeveralBrokerProcesses,
    bootstrap_of,
    broker_processes,
    several_broker_processes,
)
from tests.faults.appends import Appends
from tests.faults.ordeal import chosen_seed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

CYCLES_COUNT = int(os.environ.get("FAULTS_CYCLES", "12"))
BROKER_IDS = (1, 2, 3)
_NUMBERED = ("--broker-id", str(BROKER_IDS[0]))
PARTITION_COUNT = 6
QUIET_SECONDS = 2.0  # under load, between two faults
SUSPENDED_SECONDS = 5.0  # longer than --broker-session-timeout
BACK_SECONDS = 1.0
RESTART_SECONDS = 60.0
LATE_SECONDS = 5.0  # which a produce may take on a busy machine while its partition moves


@pytest.fixture(params=["a directory", "MinIO"])
def store(request: pytest.FixtureRequest) -> Iterator[S3Process | None]:
    """The bucket that the brokers share; None for a directory."""
    if request.param == "a directory":
        yield None
        return
    if shutil.which("minio") is None:
        pytest.skip("minio is not on the PATH")
    with minio_server() as server:
        yield server


def _runs(running: SeveralBrokerProcesses, broker_id: int) -> bool:
    return is_there(running.pid_of(broker_id))


def conclude(load: ClusterLoad, what: str) -> None:
    report = load.read_back()
    print(f"{what}: {report}")
    assert report.problems == []
    assert report.acknowledged_count > 100 * CYCLES_COUNT  # otherwise nothing was tried


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_brokers_that_are_killed_and_suspended_under_load_lose_and_repeat_nothing(
    durability: str, store: S3Process | None
) -> None:
    random = Random(chosen_seed())
    with broker_processes(len(BROKER_IDS), "--durability", durability, store=store) as brokers:
        with ClusterLoad(bootstrap_of(brokers), "orders", PARTITION_COUNT) as load:
            for _ in range(CYCLES_COUNT):
                time.sleep(random.uniform(0, QUIET_SECONDS))
                broker = random.choice(brokers)
                if random.random() < 0.5:
                    broker.kill()
                    time.sleep(random.choice([0.0, SUSPENDED_SECONDS]))
                    broker.start()
                else:
                    broker.suspend()
                    time.sleep(random.choice([0.5, SUSPENDED_SECONDS]))
                    broker.resume()
                    time.sleep(BACK_SECONDS)
                    if broker.returncode is not None:
                        broker.start()
        conclude(load, f"three brokers, {durability}, {CYCLES_COUNT} times SIGKILL or SIGSTOP")


@pytest.mark.parametrize("durability", ["wal", "segment"])
def test_processes_of_one_machine_that_are_killed_and_suspended_lose_and_repeat_nothing(durability: str) -> None:
    random = Random(chosen_seed())
    with several_broker_processes(len(BROKER_IDS), *_NUMBERED, "--durability", durability) as running:
        with ClusterLoad(running.bootstrap, "orders", PARTITION_COUNT) as load:
            for _ in range(CYCLES_COUNT):
                time.sleep(random.uniform(0, QUIET_SECONDS))
                broker_id = random.choice(BROKER_IDS)
                wait_until(partial(_runs, running, broker_id), "it is back", seconds=RESTART_SECONDS)
                pid = running.pid_of(broker_id)
                if random.random() < 0.5:
                    os.kill(pid, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(random.choice([0.5, SUSPENDED_SECONDS]))
                    os.kill(pid, signal.SIGCONT)
                time.sleep(BACK_SECONDS)
        conclude(load, f"--processes 3, {durability}, {CYCLES_COUNT} times SIGKILL or SIGSTOP")


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_a_restart_of_one_after_the_other_fails_no_produce(durability: str, store: S3Process | None) -> None:
    with broker_processes(len(BROKER_IDS), "--durability", durability, store=store) as brokers:
        with ClusterLoad(bootstrap_of(brokers), "orders", PARTITION_COUNT) as load:
            for _ in range(max(1, CYCLES_COUNT // len(BROKER_IDS))):
                for broker in brokers:
                    time.sleep(QUIET_SECONDS)
                    broker.restart()
        conclude(load, f"restarts one by one, {durability}")


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_a_broker_that_is_stopped_for_a_while_is_not_waited_for(durability: str) -> None:
    """As for an upgrade, one after the other; by clients that have their usual patience."""
    with broker_processes(len(BROKER_IDS), "--durability", durability) as brokers:
        bootstrap = bootstrap_of(brokers)
        admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        with ClusterLoad(bootstrap, "orders", PARTITION_COUNT, patience={}) as load:
            time.sleep(BACK_SECONDS)
            for broker in brokers:
                broker.stop()
                time.sleep(LATE_SECONDS + 1)
                broker.start()
                wait_until(lambda: leaders_of(admin, "orders") == {*BROKER_IDS}, "the broker leads again")
        report = load.read_back()
    print(f"stops one by one, {durability}: {report}")
    assert report.problems == []
    assert report.slowest_seconds < LATE_SECONDS


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_transactions_are_whole_while_brokers_of_one_machine_are_killed(durability: str) -> None:
    random = Random(chosen_seed())
    with several_broker_processes(len(BROKER_IDS), *_NUMBERED, "--durability", durability) as running:
        with Appends(running.bootstrap, "appends") as appends:
            for _ in range(CYCLES_COUNT):
                time.sleep(random.uniform(0, QUIET_SECONDS))
                for each in BROKER_IDS:  # the longest gap is that of one fault
                    wait_until(partial(_runs, running, each), "it is back", seconds=RESTART_SECONDS)
                time.sleep(BACK_SECONDS)
                os.kill(running.pid_of(random.choice(BROKER_IDS)), signal.SIGKILL)
        report = appends.read_back()
    print(f"--processes 3, {durability}, {CYCLES_COUNT} times SIGKILL: {report}")
    assert report.problems == []
    assert report.committed_count > 10 * CYCLES_COUNT  # otherwise nothing was tried
