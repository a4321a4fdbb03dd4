"""What surrounds the loads of `bench.peers`: the tools' output, the endpoint, the targets. Kafka is not started."""

import json
from xml.etree import ElementTree

import pytest

from bench.figures import Figures, Result
from bench.peers.endpoint import Endpoint
from bench.peers.java import PRODUCED
from bench.peers.loads import KAFKA_DURABLE, all_loads
from bench.peers.page import write_page
from bench.peers.targets import OWN, TARGETS, show_targets
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce


def result(broker: str, load: str, *, mib: float, p99_ms: float = 1.0) -> Result:
    figures = Figures(
        requests=100,
        seconds=1.0,
        size_bytes=round(mib * (1 << 20)),
        p50_ms=1.0,
        p99_ms=p99_ms,
        p999_ms=1.0,
        client_cpu_seconds=0.1,
    )
    return Result(
        broker=broker, point=load, round=0, figures=figures, cpu_seconds=1, rss_mib=1, syncs=1, puts=1, gets=1
    )


def test_the_last_line_of_producer_performance_is_understood():
    line = (
        "5000000 records sent, 97600.123 records/sec (93.08 MB/sec), 22.41 ms avg latency, 300.00 ms max latency, "
        "12 ms 50th, 40 ms 95th, 60 ms 99th, 75 ms 99.9th.\n"
    )
    assert PRODUCED.findall("1 records sent, 2 records/sec\n" + line) == [
        ("5000000", "97600.123", "12", "40", "60", "75")
    ]


def test_the_endpoint_answers_every_produce():
    with Endpoint().running() as running:
        point = Point(batch_bytes=1024, in_flight=5, partitions=4)
        figures = run_produce(ProduceLoad(address=running.address, point=point, seconds=30, count=50))
    assert figures.requests == 50


def test_every_target_is_of_a_load_that_there_is():
    assert {target.load for target in TARGETS} <= {load.name for load in all_loads()}


@pytest.mark.parametrize(
    ("ours", "theirs", "disk", "reached"),
    [(400, 200, 10_000, True), (399, 200, 10_000, False), (399, 200, 900, True), (350, 200, 900, False)],
)
def test_twice_kafka_or_what_the_disk_can_take_is_wanted(ours, theirs, disk, reached, capsys):
    load = "produce 960KiB/5/1"
    rows = show_targets([result(OWN, load, mib=ours), result(KAFKA_DURABLE, load, mib=theirs)], disk)
    assert [row["reached"] for row in rows] == ["yes" if reached else "NO"]
    assert "MiB/s" in capsys.readouterr().out


def test_less_is_better_for_latency():
    load = "java article 80%"
    for ours, reached in ((10.0, "yes"), (10.1, "NO")):
        results = [result(OWN, load, mib=1, p99_ms=ours), result(KAFKA_DURABLE, load, mib=1, p99_ms=50)]
        assert [row["reached"] for row in show_targets(results, 1)] == [reached]


def test_a_run_becomes_a_page_with_a_plot(tmp_path, capsys):
    load = "produce 960KiB/5/1"
    results = [
        result(broker, load, mib=mib + round) for broker, mib in ((OWN, 400), (KAFKA_DURABLE, 210)) for round in (0, 8)
    ]
    targets = show_targets(results, 10_000)
    options = {"rounds": 2, "seconds": 1.0, "disk_mib_per_second": 500}
    page = write_page(results, targets, options, tmp_path).read_text()
    assert f"| {load} | MiB/s | 404.0 ({OWN}) | {KAFKA_DURABLE} | 214.0 | 1.89 |" in page
    assert "**" not in page
    assert json.loads((tmp_path / "peers.json").read_text())["options"]["targets"] == targets
    root = ElementTree.parse(tmp_path / "peers.svg").getroot()
    assert "1.9x" in [text.text for text in root.findall("{*}text")]
