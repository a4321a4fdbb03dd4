"""An earlier version beside this one: brokers that share a bucket are upgraded one by one, and die, under load.

The earlier version is a commit of this repository, whose code runs as processes of its own. It knows nothing of loads
in heartbeats, nor of what a leader tells the next one. Where there is no history, as in an archive of the sources,
there is nothing to run.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.devtools.processes.cluster_load import ClusterLoad
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.processes.process_cluster import bootstrap_of, broker_processes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

EARLIER = "2beda9c4e65e35b7c6f809a0f5d9e66bcc085166"  # the last that told nothing but who runs
REPOSITORY = Path(__file__).parent.parent.parent
PARTITION_COUNT = 6
QUIET_SECONDS = 3.0  # under load, between two restarts
AWAY_SECONDS = 5.0  # longer than others wait for a broker that is silent
ACKNOWLEDGED_LEAST_COUNT = 500


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the package of the earlier version."""
    directory = tmp_path_factory.mktemp("earlier")
    archive = directory / "archive.tar"
    made = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", "--output", str(archive), EARLIER, "kafscale"], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"the history of this repository has no commit {EARLIER}")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    assert not (directory / "kafscale" / "log" / "load.py").exists()
    found = subprocess.run(
        [sys.executable, "-P", "-c", "import kafscale; print(kafscale.__file__)"],
        env={"PYTHONPATH": str(directory)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(directory)
    return directory


def restart_as(broker: BrokerProcess, package: Path | None) -> None:
    broker.package = package
    broker.restart()


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_an_upgrade_one_by_one_loses_nothing_and_can_be_taken_back(durability: str, earlier: Path) -> None:
    with broker_processes(3, "--durability", durability, package=earlier) as brokers:
        with ClusterLoad(bootstrap_of(brokers), "orders", PARTITION_COUNT) as load:
            for broker in brokers:  # the first is the controller, until it is restarted
                time.sleep(QUIET_SECONDS)
                restart_as(broker, None)
            for package in (earlier, None):
                time.sleep(QUIET_SECONDS)
                restart_as(brokers[0], package)
        report = load.read_back()
    print(f"an upgrade one by one, {durability}: {report}")
    assert report.problems == []
    assert report.acknowledged_count > ACKNOWLEDGED_LEAST_COUNT


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_a_broker_of_each_version_that_is_killed_is_replaced_by_the_others(durability: str, earlier: Path) -> None:
    with broker_processes(3, "--durability", durability, package=earlier) as brokers:
        restart_as(brokers[0], None)
        with ClusterLoad(bootstrap_of(brokers), "orders", PARTITION_COUNT) as load:
            for broker in (brokers[0], brokers[1], brokers[0]):  # of this version, of the earlier one, and once more
                time.sleep(QUIET_SECONDS)
                broker.kill()
                time.sleep(AWAY_SECONDS)  # with a log of its own nobody else leads what it led
                broker.start()
            time.sleep(QUIET_SECONDS)
        report = load.read_back()
    print(f"a broker of each version killed, {durability}: {report}")
    assert report.problems == []
    assert report.acknowledged_count > ACKNOWLEDGED_LEAST_COUNT
