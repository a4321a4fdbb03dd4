"""`kafscale verify` and `kafscale storage` on what a broker process wrote, on a directory and on S3."""

import json
from contextlib import contextmanager

import pytest
import trio
from confluent_kafka import Producer

from kafscale.cli.main import run
from kafscale.config import load
from kafscale.store.opening.opening import open_raw_store
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.s3_server import CREDENTIALS, S3Server, s3_server_in_thread
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects, version_2_objects
from tests.devtools.processes.process import BrokerProcess

TOPIC_ID = bytes(range(16))
KEY = SegmentKey(topic="orders", topic_id=TOPIC_ID, partition=0, base_offset=0)
LARGE = 30_000  # batches: more than one piece


def put(arguments, *written):
    async def main():
        flags = dict(zip((name[2:].replace("-", "_") for name in arguments[::2]), arguments[1::2], strict=True))
        store = await open_raw_store(load(flags, {}).settings)
        for each in written:
            await each.put(store)
        await store.aclose()

    trio.run(main)


@pytest.fixture
def asked(capsys):
    """Runs a command and gives its exit code, its JSON, and what it wrote to stderr."""

    def ask(*arguments):
        code = run([*arguments, "--json"])
        written = capsys.readouterr()
        return code, json.loads(written.out) if written.out else None, written.err

    return ask


@contextmanager
def directory(tmp_path):
    yield ["--store", f"file:{tmp_path}/bucket"]


@contextmanager
def s3(monkeypatch):
    server = S3Server()
    server.service.buckets["bucket"] = {}
    with s3_server_in_thread(server):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_access_key)
        yield ["--store", "s3://bucket/prefix", "--s3-endpoint", server.endpoint]


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_damage_in_either_store_is_found_and_repaired(kind, tmp_path, monkeypatch, asked):
    with directory(tmp_path) if kind == "file" else s3(monkeypatch) as store:
        batches = make_batches(0, LARGE, records_per_batch=1, value_bytes=100)
        large = version_2_objects(KEY, batches)
        small = version_1_objects(version_1_key("orders", 1, 0), make_batches(0, 5))
        put(store, large, small)
        code, report, _ = asked("verify", *store)
        assert (code, report["whole"], report["findings"]) == (0, True, [])
        assert (report["segments"], report["records"]) == (2, LARGE + 15)

        put(store, type(large)(KEY, large.kfs[:-1], b"damaged"))
        code, report, error = asked("verify", *store)
        assert (code, report["whole"]) == (1, False)
        assert error.startswith(f"kafscale: {KEY.of_kind('index').key}: ")
        assert {finding["kind"] for finding in report["findings"]} == {"footer", "index"}

        code, report, _ = asked("verify", "--repair", *store)
        assert (code, [finding["repaired"] for finding in report["findings"]]) == (0, [True, True])
        assert asked("verify", *store)[1]["findings"] == []


def test_a_table_names_place_and_remedy(tmp_path, capsys):
    with directory(tmp_path) as store:
        objects = version_2_objects(KEY, make_batches(0, 2))
        put(store, type(objects)(KEY, objects.kfs, b""))
        assert run(["verify", *store]) == 1
        shown = capsys.readouterr().out
        assert f"damage  index  {KEY.of_kind('index').key}" in shown
        assert "is not the footer of the .kfs (--repair rebuilds it)" in shown
        assert "damaged; objects: 2, segments: 1" in shown


def produce(broker, count, topic="orders"):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def test_bucket_and_data_directory_of_a_broker(tmp_path, asked):
    broker = BrokerProcess(directory=tmp_path, options=["--flush-interval", "1h"])
    data = ["--data-dir", str(broker.data_dir)]
    with broker:
        produce(broker, 100)
        _, live, _ = asked("storage", *data)
        assert live["topics"] == []
        assert live["pending_of_other_topics"] > 0
        code, _, error = asked("verify", *data)
        assert code == 1
        assert "in use by process" in error
        assert asked("verify", *data, "--bucket-only")[0] == 0
        assert broker.stop() == 0
        broker.start()
        produce(broker, 50)
        _, live, _ = asked("storage", *data, "--price", "1")
        assert [(row["topic"], row["segments"], row["pending"] > 0) for row in live["topics"]] == [("orders", 1, True)]
        assert live["topics"][0]["deletable"] == 0
        assert live["own_bytes"] > 0
        broker.kill()
    code, report, _ = asked("verify", *data)
    assert (code, report["findings"]) == (0, [])
    assert report["records"] == 100
    assert report["wal_entries"] > 0
    for path in (broker.data_dir / "bucket").rglob("*.kfs"):
        path.unlink()
    code, report, _ = asked("verify", *data)
    assert code == 1
    assert any("orders-0 goes on at offset 100, but 0 is the next" in each["message"] for each in report["findings"])


def test_the_bucket_of_a_broker_that_keeps_its_log_there(tmp_path, asked):
    broker = BrokerProcess(directory=tmp_path, options=["--durability", "s3-wal", "--flush-interval", "1h"])
    bucket = broker.data_dir / "bucket"
    store = ["--store", f"file:{bucket}"]
    with broker:
        produce(broker, 100)
        assert asked("verify", *store)[0] == 0
        assert broker.stop() == 0
        broker.start()
        produce(broker, 50)
        broker.kill()
    code, report, _ = asked("verify", *store)
    assert (code, report["findings"], report["records"]) == (0, [], 100)
    assert report["wal_objects"] > 0
    assert report["wal_entries"] > 0
    assert asked("verify", *store, "--data-dir", str(broker.data_dir))[0] == 0
    claim = bucket / "_kafscale" / "default" / "epoch"
    claim.write_bytes(b"{")
    code, report, _ = asked("verify", *store)
    assert (code, [finding["kind"] for finding in report["findings"]]) == (1, ["claim"])
    code, report, _ = asked("verify", "--repair", *store)
    assert (code, report["findings"][0]["repaired"]) == (0, True)
    largest = max(bucket.rglob("*.wal"), key=lambda path: path.stat().st_size)
    code, shown, _ = asked("inspect", str(largest))
    assert (code, shown["kind"], shown["whole"]) == (0, "WAL object", True)
    largest.write_bytes(largest.read_bytes()[:-1])
    code, report, _ = asked("verify", *store)
    assert code == 1
    assert any(each["kind"] == "wal-object" for each in report["findings"])


def test_storage_counts_by_topic_and_prices(tmp_path, asked, capsys):
    with directory(tmp_path) as store:
        first = version_2_objects(KEY, make_batches(0, 2))
        second = version_1_objects(version_1_key("old", 3, 0), make_batches(0, 2))
        put(store, first, second)
        _, shown, _ = asked("storage", *store, "--price", str(1 << 30))
        sizes = [len(each.kfs) + len(each.index) for each in (second, first)]
        assert [(row["topic"], row["partitions"], row["segments"], row["bytes"]) for row in shown["topics"]] == [
            ("old", 1, 1, sizes[0]),
            ("orders", 1, 1, sizes[1]),
        ]
        assert [row["deletable"] for row in shown["topics"]] == [None, None]  # there is no metadata to ask
        assert [row["cost_per_month"] for row in shown["topics"]] == sizes
        assert shown["cost_per_month"] == sum(sizes)
        assert shown["topics"][0]["oldest"] == shown["topics"][0]["newest"] > "2020"
        assert run(["storage", *store]) == 0
        assert "total: 0.00 USD per month, at 0.023 USD for a GB-month" in capsys.readouterr().out


def test_a_price_has_a_currency(tmp_path, asked, capsys):
    """Costs were shown without one."""
    with directory(tmp_path) as store:
        put(store, version_2_objects(KEY, make_batches(0, 2)))
        assert asked("storage", *store)[1]["currency"] == "USD"
        _, shown, _ = asked("storage", *store, "--price", "0.5 eur")
        assert (shown["price"], shown["currency"]) == (0.5, "EUR")
        for wrong in ("-1", "cheap", "1 euro"):
            code, _, error = asked("storage", *store, "--price", wrong)
            assert (code, "is not a price; allowed: a number, such as 0.023, or '0.021 EUR'" in error) == (2, True)


def test_a_data_directory_that_is_none_is_one_line(tmp_path, asked):
    with directory(tmp_path) as store:
        put(store)
        code, _, error = asked("verify", *store, "--data-dir", str(tmp_path / "none"))
        assert code == 1
        assert "is not a broker's data directory" in error
        assert not (tmp_path / "none").exists()
