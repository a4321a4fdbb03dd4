"""Three brokers on MinIO with a bad line between them, and to the bucket: frozen both ways, or one way, under load.

Clients reach the brokers directly. A frozen line carries nothing, and all that it held back once it is thawed, as the
network does. Each test prints what was acknowledged and read, what transactions became of, and the longest gaps.
FAULTS_SEED chooses the seed; FAULTS_CYCLES how often a line is frozen. `make test-cluster` runs them, where `minio` is
on the PATH.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import attrs
import pytest
from confluent_kafka.admin import AdminClient

from kafscale.config import Address
from kafscale.testing.tcp_proxy import Way
from tests.devtools.external.s3_processes import free_port, minio_server
from tests.devtools.processes.cluster_load import ClusterLoad, LoadReport, leaders_of
from tests.devtools.processes.process import BrokerProcess
from tests.devtools.processes.several_processes import bootstrap_of
from tests.faults.appends import Appends
from tests.faults.ordeal import chosen_seed
from tests.faults.proxies import Cut, Line, lines_to

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("minio") is None, reason="minio is not on the PATH"),
]

CYCLES_COUNT = int(os.environ.get("FAULTS_CYCLES", "12"))
BROKER_IDS = (1, 2, 3)
QUIET_SECONDS = 3.0
FROZEN_SECONDS = (1.0, 6.0)  # longer than --broker-session-timeout, or not
AWAY_SECONDS = 60.0
CUT_SECONDS = 25.0
GAP_MAX_SECONDS = 10.0
WAYS: Sequence[tuple[Way, ...]] = ((), (Way.TO_SERVER,), (Way.TO_CLIENT,))


@attrs.frozen(eq=False)
class Site:
    """The brokers, the lines by which others reach each of them, and the lines by which each reaches the bucket."""

    brokers: Sequence[BrokerProcess]
    to_broker: Sequence[Line]
    to_bucket: Sequence[Line]

    @property
    def lines(self) -> Sequence[Line]:
        return [*self.to_broker, *self.to_bucket]

    def revive(self) -> None:
        """Start again who has ended, as whoever watches over it does."""
        for each in self.brokers:
            if each.returncode is not None:
                each.start()


@contextmanager
def running_site(directory: Path, durability: str) -> Iterator[Site]:
    with minio_server() as bucket, ExitStack() as running:
        endpoint = urlsplit(bucket.endpoint)
        assert endpoint.hostname is not None
        assert endpoint.port is not None
        inside = [Address("127.0.0.1", free_port()) for _ in BROKER_IDS]
        buckets = [Address(endpoint.hostname, endpoint.port)] * len(BROKER_IDS)
        lines = running.enter_context(lines_to(*inside, *buckets))
        site = Site([], lines[: len(BROKER_IDS)], lines[len(BROKER_IDS) :])
        brokers = []
        for broker_id, listened, known, store in zip(BROKER_IDS, inside, site.to_broker, site.to_bucket, strict=True):
            options = (
                *("--several-brokers", "--broker-id", str(broker_id), "--durability", durability),
                *("--listen", f"INSIDE={listened}", "--advertised-listener", f"INSIDE={known.address}"),
                *("--inter-broker-listener", "INSIDE", "--listener-security-protocol", "INSIDE=PLAINTEXT"),
                *("--store", "s3://events", "--s3-endpoint", f"http://{store.address}", "--s3-create-bucket", "true"),
            )
            broker = BrokerProcess(
                directory=directory / str(broker_id),
                options=options,
                environ={
                    "AWS_ACCESS_KEY_ID": bucket.credentials.access_key_id,
                    "AWS_SECRET_ACCESS_KEY": bucket.credentials.secret_access_key,
                },
            )
            brokers.append(running.enter_context(broker))
        yield attrs.evolve(site, brokers=brokers)


def freeze_at_random(site: Site, random: Random) -> None:
    """Freeze the line to a broker or from it to the bucket, or all that it has, one way or both."""
    index, ways = random.randrange(len(BROKER_IDS)), random.choice(WAYS)
    frozen: Sequence[Line] = random.choice(
        [
            [site.to_broker[index]],
            [site.to_bucket[index]],
            [site.to_broker[index], site.to_bucket[index]],
            site.to_broker,  # nobody hears anybody
            [*site.to_broker, site.to_bucket[index]],
        ]
    )
    for each in frozen:
        each.freeze(*ways)


def suffer(site: Site, what: str, trouble: Callable[[], None]) -> None:
    """Have trouble under load, and judge what has become of the load."""
    bootstrap = bootstrap_of(site.brokers)
    with ClusterLoad(bootstrap, "orders", 6) as load, Appends(bootstrap, "appends") as appends:
        time.sleep(QUIET_SECONDS)
        trouble()
        time.sleep(QUIET_SECONDS)
        site.revive()
        time.sleep(QUIET_SECONDS)
    report, appended = load.read_back(), appends.read_back()
    print(f"{what}: {report}; {appended}")
    assert report.problems == []
    assert appended.problems == []
    assert appended.committed_count > CYCLES_COUNT  # otherwise nothing was tried


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_lines_that_are_frozen_under_load_lose_repeat_and_reorder_nothing(tmp_path: Path, durability: str) -> None:
    random = Random(chosen_seed())
    with running_site(tmp_path, durability) as site:

        def trouble() -> None:
            for _ in range(CYCLES_COUNT):
                freeze_at_random(site, random)
                time.sleep(random.choice(FROZEN_SECONDS))
                for each in site.lines:
                    each.thaw()
                time.sleep(random.uniform(0, QUIET_SECONDS))
                site.revive()

        suffer(site, f"{durability}, {CYCLES_COUNT} times a frozen line", trouble)


@pytest.mark.parametrize("durability", ["wal", "segment", "s3-wal"])
def test_a_bucket_that_is_away_for_a_minute_loses_repeats_and_reorders_nothing(tmp_path: Path, durability: str) -> None:
    with running_site(tmp_path, durability) as site:

        def trouble() -> None:
            for each in site.to_bucket:
                each.freeze()
            time.sleep(AWAY_SECONDS)
            for each in site.to_bucket:
                each.thaw()

        suffer(site, f"{durability}, the bucket away for {AWAY_SECONDS:g} s", trouble)
        assert all(each.returncode is None for each in site.brokers)


def suffer_cut(site: Site, lines: Sequence[Line], how: Cut, topic: str) -> LoadReport:
    """Cut lines to the bucket while a new topic is loaded, and return what has become of the load."""
    with ClusterLoad(bootstrap_of(site.brokers), topic, 6) as load:
        time.sleep(QUIET_SECONDS)
        with ExitStack() as cuts:
            for each in lines:
                cuts.enter_context(each.cut(how))
            time.sleep(CUT_SECONDS)
        time.sleep(QUIET_SECONDS)
    report = load.read_back()
    print(f"{topic}, {how.value}: {report}")
    assert report.problems == []
    return report


def wait_until_all_lead(admin: AdminClient, topic: str) -> None:
    give_up_at = time.monotonic() + AWAY_SECONDS
    while leaders_of(admin, topic) != set(BROKER_IDS):
        assert time.monotonic() < give_up_at
        time.sleep(0.2)


@pytest.mark.parametrize("how", Cut)
@pytest.mark.parametrize("durability", ["segment", "s3-wal"])
def test_partitions_of_a_broker_that_alone_loses_the_bucket_move(tmp_path: Path, durability: str, how: Cut) -> None:
    """Nothing of it was acknowledged for as long as the cut took, by a member and by the controller."""
    with running_site(tmp_path, durability) as site:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(site.brokers)})
        controller_id = controller_of(admin)
        member_id = next(each for each in BROKER_IDS if each != controller_id)
        for topic, broker_id in (("of-a-member", member_id), ("of-the-controller", controller_id)):
            place = BROKER_IDS.index(broker_id)
            report = suffer_cut(site, [site.to_bucket[place]], how, topic)
            assert report.gap_seconds < GAP_MAX_SECONDS
            log = site.brokers[place].log
            assert "has not answered for" in log
            assert "starting again" in log
            wait_until_all_lead(admin, topic)
        assert all(each.returncode is None for each in site.brokers)
        assert controller_of(admin) not in (-1, controller_id)


@pytest.mark.parametrize("how", Cut)
def test_nothing_moves_while_no_broker_reaches_the_bucket(tmp_path: Path, how: Cut) -> None:
    with running_site(tmp_path, "s3-wal") as site:
        suffer_cut(site, site.to_bucket, how, "of-all")
        for each in site.brokers:
            assert "is declared" not in each.log
            assert "has not answered for" in each.log


def controller_of(admin: AdminClient) -> int:
    """Return the id of the controller, which other brokers know."""
    controller = admin.describe_cluster().result(AWAY_SECONDS).controller
    return -1 if controller is None else controller.id
