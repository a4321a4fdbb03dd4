"""Each alert fires for the fault that it is about, and not before. Prometheus evaluates the rules.

Rules keep their expressions. They fire at once, and limits in SHORTENED are lower, where a test can't wait as long.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.observability.alerts import ALERTS
from deploy.observability.rendering import alerts_text
from kafscale.config import Address
from kafscale.spark.pipeline.metrics import PipelineMetrics, serving
from kafscale.store.memory import MemoryStore
from kafscale.testing.background_broker import BackgroundBroker, running, running_broker, settings_of
from kafscale.testing.faulty_store import FaultyStore
from kafscale.testing.secured_broker import secured_broker
from tests.devtools.fakes.s3_server import CREDENTIALS, ErrorReply, Hang, S3Server, s3_server_in_thread
from tests.devtools.processes.process import broker_process
from tests.devtools.processes.several_processes import bootstrap_of, broker_processes, several_broker_processes
from tests.observe.clients import TOPIC, in_background, producing
from tests.observe.prometheus import Prometheus, admin_of, prometheus, wait_until
from tests.observe.test_dashboards import Lag, Outcome

pytestmark = [
    pytest.mark.observe,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not on the PATH"),
]

SHORTENED = {
    "KafscaleBrokerRestarts": 0,
    "KafscaleErrors": 0.01,
    "KafscaleGroupLagGrows": 50,
    "KafscaleStoreSilent": 3,
    "KafscaleStoreSlowDown": 0.01,
    "KafscaleFlushesFail": 0,
    "KafscaleFlushesLate": 3,
}
ALL = {alert.name for alerts in ALERTS.values() for alert in alerts}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    rules = {
        group: [attrs.evolve(alert, lasting="0s", limit=SHORTENED.get(alert.name, alert.limit)) for alert in alerts]
        for group, alerts in ALERTS.items()
    }
    with prometheus(tmp_path_factory.mktemp("prometheus"), alerts_text(rules)) as running_server:
        yield running_server


@attrs.frozen
class Watched:
    """A target whose alerts are watched."""

    server: Prometheus
    job: str
    instance: str

    def wait_fires(self, *names: str) -> None:
        """Wait until these alerts have fired."""
        missing = set(names)

        def all_have_fired() -> bool:
            missing.difference_update(self.server.firing(self.job, self.instance))
            return not missing

        try:
            wait_until(all_have_fired, f"alerts of {self.instance} fire")
        finally:
            print(f"{self.instance}: fired {sorted(set(names) - missing)}, did not fire {sorted(missing)}")


@contextmanager
def watched(
    server: Prometheus, admin: Address, instance: str, job: str = "", *, known: Sequence[str] = ()
) -> Iterator[Watched]:
    """Scrape a target during the block, on which nothing fires yet but `known`."""
    job = job or f"kafscale-{instance}"
    server.scrape(admin, instance, job)
    scraped = f'count_over_time(up{{job="{job}",instance="{instance}"}}[5m]) >= 3'
    wait_until(lambda: server.query(scraped), "rules were evaluated with the target")
    assert server.firing(job, instance) <= set(known)
    yield Watched(server, job, instance)


def produce(broker: BackgroundBroker, *values: bytes, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for value in values:
        producer.produce(TOPIC, value)
    assert producer.flush(60) == 0


def test_slow_and_refused_produces_fire(server: Prometheus) -> None:
    with running_broker() as broker, admin_of(broker) as admin, watched(server, admin, "requests") as target:
        with broker.faults.delay("Produce", 3.0), in_background(producing(broker.bootstrap)):
            target.wait_fires("KafscaleProduceSlow")
        with (
            broker.faults.fail("Produce", "KAFKA_STORAGE_ERROR", times=None),
            in_background(producing(broker.bootstrap)),
        ):
            target.wait_fires("KafscaleErrors")


def test_a_group_that_falls_behind_and_forgotten_producers_fire(server: Prometheus) -> None:
    limits = {"max_producer_ids_per_partition": 3}
    with running_broker(**limits) as broker, admin_of(broker) as admin, watched(server, admin, "groups") as target:
        produce(broker, b"first")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "late"})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
        consumer.close()
        with in_background(producing(broker.bootstrap)):
            target.wait_fires("KafscaleGroupLagGrows")
        for number in range(8):
            produce(broker, b"%d" % number, **{"enable.idempotence": True})
        target.wait_fires("KafscaleProducersForgotten")


def test_a_full_disk_fires(server: Prometheus) -> None:
    with running_broker() as broker, admin_of(broker) as admin, watched(server, admin, "disk") as target:
        produce(broker, b"first")
        broker._disk.free_bytes = -1 << 40  # deleted files make no room either
        stuck = broker.faults.fail_store("put*")  # so that no file is used again
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000})
        for _ in range(60):
            producer.produce(TOPIC, os.urandom(100_000))
        producer.poll(1)
        target.wait_fires("KafscaleDiskFull")
        broker._disk.free_bytes = None
        stuck.end()
        producer.purge()


def test_refused_connections_fire(server: Prometheus) -> None:
    with running_broker(max_connections=3) as broker, admin_of(broker) as admin:
        with watched(server, admin, "connections") as target:
            host, _, port = broker.bootstrap.rpartition(":")

            def connect() -> None:
                with ExitStack() as stack:
                    for _ in range(20):
                        stack.enter_context(socket.create_connection((host, int(port)), 10))
                    time.sleep(1)

            with in_background(connect):
                target.wait_fires("KafscaleConnectionsRefused")


def test_a_certificate_that_expires_and_an_unusable_file_fire(server: Prometheus) -> None:
    with secured_broker() as broker:
        security = broker._life.broker.security
        with admin_of(broker, security.register) as admin:
            known = ["KafscaleCertificateExpires"]  # the authority of tests issues certificates for a day
            with watched(server, admin, "secured", known=known) as target:
                target.wait_fires("KafscaleCertificateExpires")
                security.tls.files.settings.ssl_certificate_file.write_text("not a certificate")
                broker._thread.call(security.watch.reload)
                target.wait_fires("KafscaleFilesUnusable")


def test_a_segment_that_is_gone_fires(server: Prometheus) -> None:
    with running_broker() as broker:
        produce(broker, b"one")
        broker.stop()
        bucket = broker._store.store
        broker._thread.call(bucket.delete, [key for key in bucket._keys if "/segment-" in key])
        broker.start()
        with admin_of(broker) as admin:
            server.scrape(admin, "gone", "kafscale-gone")
            Watched(server, "kafscale-gone", "gone").wait_fires("KafscaleSegmentsDamaged")


def test_a_late_segment_fires(server: Prometheus) -> None:
    settings = settings_of({"durability": "segment"})
    second = BackgroundBroker(settings)
    with running(BackgroundBroker(settings)) as first:
        bucket = first._store.store
        produce(first, b"both know it")
        known = set(bucket._keys)
        produce(first, b"late")
        late = first._thread.call(_take_out, bucket, [key for key in bucket._keys if key not in known])
        second._store, second._metadata = FaultyStore(bucket), first._metadata
    with running(second):
        produce(second, b"newer")
        second._thread.call(_put_back, bucket, late)
        second.restart()
        with admin_of(second) as admin:
            server.scrape(admin, "late", "kafscale-late")
            Watched(server, "kafscale-late", "late").wait_fires("KafscaleSegmentsLate")


async def _take_out(bucket: MemoryStore, keys: Sequence[str]) -> dict[str, bytes]:
    """Return and remove objects, as if they were still on their way."""
    taken = {key: bytes((await bucket.get(key)).data) for key in keys if "/segment-" in key}
    assert taken
    await bucket.delete(list(taken))
    return taken


async def _put_back(bucket: MemoryStore, objects: Mapping[str, bytes]) -> None:
    for key, content in objects.items():
        await bucket.put(key, [content])


def test_batches_of_a_topic_that_the_metadata_lost_fire(server: Prometheus) -> None:
    settings = settings_of({"flush_interval": "1h"})
    after = BackgroundBroker(settings)
    with running(BackgroundBroker(settings)) as before:
        produce(before, b"one")
        after._disk, after._store = before._disk.crash(), FaultyStore(before._store.store)
    with running(after), admin_of(after) as admin:
        server.scrape(admin, "lost", "kafscale-lost")
        Watched(server, "kafscale-lost", "lost").wait_fires("KafscaleBatchesWithoutTopic")


def test_a_store_that_is_slow_refuses_or_is_silent_fires(server: Prometheus) -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
    }
    with s3_server_in_thread() as store:
        at = ("--store", "s3://bucket", "--s3-endpoint", store.endpoint, "--s3-create-bucket", "true")
        options = (*at, "--flush-interval", "500ms", "--s3-concurrency", "1", "--default-partitions", "8")
        with broker_process(*options, environ=environ) as broker, watched(server, broker.admin, "store") as target:
            with in_background(producing(broker.bootstrap)):
                _break_store(store, target)


def _break_store(store: S3Server, target: Watched) -> None:
    store.latency_seconds = 1.0
    target.wait_fires("KafscaleStoreQueue")
    store.latency_seconds = 0.0
    store.intercept = lambda call: ErrorReply(400, "InvalidRequest") if call.operation == "PutObject" else None
    target.wait_fires("KafscaleFlushesFail")
    store.intercept = lambda call: ErrorReply()
    target.wait_fires("KafscaleStoreSlowDown")
    store.intercept = lambda call: Hang()
    target.wait_fires("KafscaleStoreSilent", "KafscaleFlushesLate")


def test_a_dead_broker_and_its_partitions_fire(server: Prometheus) -> None:
    with broker_processes(2, "--broker-session-timeout", "20s") as brokers:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(brokers)})
        for outcome in admin.create_topics([NewTopic(TOPIC, 8)]).values():
            outcome.result(60)
        for broker, instance in zip(brokers, "12", strict=True):
            server.scrape(broker.admin, instance, "kafscale")
        wait_until(lambda: server.query("kafscale_is_controller == 1"), "there is a controller")
        [(labels, _)] = server.query("kafscale_is_controller == 1")
        dead = brokers[int(labels["instance"]) - 1]
        alive = "2" if labels["instance"] == "1" else "1"
        assert not server.firing("kafscale", alive)
        dead.kill()
        Watched(server, "kafscale", labels["instance"]).wait_fires("KafscaleBrokerDown", "KafscaleNoController")
        Watched(server, "kafscale", alive).wait_fires("KafscalePartitionsWithoutLeader", "KafscaleBrokersLost")


def test_a_broker_that_its_supervisor_starts_again_fires(server: Prometheus) -> None:
    with several_broker_processes(2) as brokers, watched(server, brokers.admin, "supervised") as target:
        os.kill(brokers.pid_of(1), signal.SIGKILL)
        target.wait_fires("KafscaleBrokerRestarts")


def test_a_pipeline_in_trouble_fires(server: Prometheus) -> None:
    metrics = PipelineMetrics()
    metrics.batch_done("orders", Outcome(), 10, 5)
    with serving(metrics, Address("127.0.0.1", 0)) as address:
        with watched(server, address, "pipeline", "kafscale-pipeline") as target:
            metrics.lag_measured("orders", Lag(seconds=1000.0))
            metrics.mapping_failed("logs", ValueError())
            metrics.batch_done("orders", Outcome(), 10, 5)
            target.wait_fires("KafscalePipelineLate", "KafscalePipelineStopped", "KafscaleDeadLetters")
    target.wait_fires("KafscalePipelineDown")


def test_every_alert_is_one_that_a_test_waits_for() -> None:
    waited_for = re.findall(r"wait_fires\(([^)]*)\)", Path(__file__).read_text())
    assert {name for names in waited_for for name in re.findall(r'"(Kafscale\w+)"', names)} == ALL
