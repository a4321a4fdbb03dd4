"""What surrounds the loads of `bench.peers`: the plan, the journal, the targets, the page. Kafka is not started."""

import math
from contextlib import contextmanager
from xml.etree import ElementTree

import attrs
import pytest
from click.testing import CliRunner

from bench.brokers import RunningBroker, Usage
from bench.figures import Figures, Result
from bench.options import RunOptions
from bench.peers import __main__ as command
from bench.peers.before import beside_before, with_before
from bench.peers.disk import DiskLoad, run_disk
from bench.peers.endpoint import Endpoint
from bench.peers.java import PRODUCED
from bench.peers.java_loads import ARTICLE
from bench.peers.journal import Journal
from bench.peers.load import Load, Task
from bench.peers.loads import DISK_ALONE, IDLE, all_loads, end_to_end_name, produce_name
from bench.peers.names import BEFORE, BEFORE_MEMORY, DISK, ENDPOINT, KAFKA_DEFAULT, KAFKA_DURABLE, OWN, OWN_MEMORY
from bench.peers.page import write_page
from bench.peers.plan import estimated_seconds, missing, pairs_of, turns_of
from bench.peers.run import PeersRun
from bench.peers.standing import IdleLoad, run_idle
from bench.peers.startables import own_brokers
from bench.peers.targets import HEADINGS, TARGETS, target_rows
from bench.points import Point
from bench.produce_load import ProduceLoad, run_produce
from bench.runner import Runner
from kafscale.config import Address
from kafscale.wire import codec
from kafscale.wire.frames import parse_response_header
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.hostile.hostile import next_answer, raw_connection, request_bytes

LARGE = "produce 960KiB/5/1"
OPTIONS = RunOptions(seconds=10, warm_up_seconds=2, rounds=2)


def result(
    broker: str, load: str, *, mib: float = 1, p99_ms: float = 1.0, round: int = 0, gets: int = 1, cpu: float = 1
) -> Result:
    figures = Figures(
        requests=100,
        seconds=1.0,
        size_bytes=round_to_bytes(mib),
        p50_ms=1.0,
        p99_ms=p99_ms,
        p999_ms=math.nan,
        client_cpu_seconds=0.1,
    )
    return Result(
        broker=broker, point=load, round=round, figures=figures, cpu_seconds=cpu, rss_mib=1, syncs=1, puts=1, gets=gets
    )


def round_to_bytes(mib: float) -> int:
    return int(mib * (1 << 20))


# ---- loads ----------------------------------------------------------------------------------------------------------


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


async def test_the_endpoint_answers_for_the_topic_id_that_newer_clients_name():
    """Java's producer waited for it for five minutes, and the run failed."""
    topic_id = bytes(range(16))
    data = TopicProduceData(topic_id=topic_id, partition_data=[PartitionProduceData(index=3, records=memoryview(b"x"))])
    with Endpoint().running() as running:
        async with raw_connection(running.address) as stream:
            await stream.send_all(request_bytes(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 13))
            frame = await next_answer(stream)
    assert frame is not None
    _, start = parse_response_header(memoryview(frame), flexible_header=True)
    (topic,) = codec.decode(ProduceResponse, 13, memoryview(frame)[start:]).responses
    assert (topic.topic_id, [partition_response.index for partition_response in topic.partition_responses]) == (
        topic_id,
        [3],
    )


def test_the_disk_is_written_to(tmp_path):
    figures = run_disk(DiskLoad(directory=tmp_path, seconds=0.01))
    assert figures.size_bytes == figures.requests * (4 << 20) > 0


# ---- plan -----------------------------------------------------------------------------------------------------------


def test_brokers_take_turns_and_change_their_order_in_every_other_round():
    loads = [Load(name=name, partitions=1, task=lambda context: None) for name in ("a", "b")]
    turns = turns_of(loads, ["x", "y", ENDPOINT], 2)
    assert [turn.key for turn in turns] == [
        ("a", "x", 0), ("a", "y", 0), ("b", "x", 0), ("b", "y", 0),
        ("a", "y", 1), ("a", "x", 1), ("b", "y", 1), ("b", "x", 1),
    ]  # fmt: skip
    assert [turn.key for turn in missing(turns, {turn.key for turn in turns[:6]})] == [("b", "y", 1), ("b", "x", 1)]


def test_a_load_runs_on_brokers_unless_declared_otherwise():
    loads = {load.name: load for load in all_loads()}
    assert len(loads) == len(all_loads())
    for name, brokers in ((LARGE, [OWN]), (ARTICLE, [OWN, ENDPOINT]), (DISK_ALONE, [DISK]), (IDLE, [OWN])):
        assert [broker for broker in (OWN, ENDPOINT, DISK) if loads[name].is_for(broker)] == brokers


def test_target_rows_need_their_compared_loads_and_the_disk_baseline():
    pairs = pairs_of(TARGETS, all_loads())
    assert {load for load, _ in pairs} <= {load.name for load in all_loads()}
    assert {(LARGE, OWN), (LARGE, OWN_MEMORY), (DISK_ALONE, DISK), (ARTICLE, KAFKA_DURABLE)} <= pairs
    assert (ARTICLE, KAFKA_DEFAULT) not in pairs
    turns = turns_of(all_loads(), [OWN, OWN_MEMORY, KAFKA_DURABLE, KAFKA_DEFAULT, ENDPOINT, DISK], 1, pairs)
    assert len(turns) == len(pairs)


def test_a_run_is_as_long_as_its_parts():
    load = Load(name="a", partitions=1, task=lambda context: None, times=2, extra_seconds=3)
    assert estimated_seconds(turns_of([load], ["x", "y"], 2), OPTIONS) == 4 * (2 * 10 + 2 + 3)


# ---- run and journal ------------------------------------------------------------------------------------------------


@attrs.define
class FakeBroker:
    """Counts what is done to it."""

    name: str
    starts: int = 0
    stops: int = 0

    @contextmanager
    def running(self):
        self.starts += 1
        broker = self

        class Running(RunningBroker):
            def create_topic(self, partitions):
                assert broker.starts > broker.stops

            def remove_topic(self):
                pass

        yield Running(name=self.name, address=Address("", 0), pid=None, metrics_url=None)
        self.stops += 1


class InlineRunner(Runner):
    """Runs loads here, which takes no time."""

    def send(self, run, load):
        return run(load)


def run_of(brokers, journal, **settings):
    return PeersRun(options=OPTIONS, startables=brokers, journal=journal, runner=InlineRunner(), **settings)


def quick(name, **further):
    return Load(
        name=name, partitions=1, task=lambda context: Task(run=run_idle, load=IdleLoad(seconds=0.001)), **further
    )


def fails(name):
    def task(context):
        raise RuntimeError("no luck")

    return Load(name=name, partitions=1, task=task)


def test_brokers_restart_after_a_failed_load_and_a_later_run_retries_the_load(tmp_path, capsys):
    path = tmp_path / "peers.json"
    brokers = {name: FakeBroker(name) for name in ("x", "y", "unused")}
    run = run_of(brokers, Journal.begin(path))
    turns = turns_of([quick("a"), fails("b"), quick("c")], ["x", "y"], 1)
    run.take(turns)
    assert [(broker.starts, broker.stops) for broker in brokers.values()] == [(2, 2), (2, 2), (0, 0)]
    journal = Journal.read(path)
    assert journal.is_of_this_machine
    assert [(failure.load, failure.broker, failure.error) for failure in journal.findings.failures] == [
        ("b", "x", "RuntimeError: no luck"),
        ("b", "y", "RuntimeError: no luck"),
    ]
    left = missing(turns_of([quick("a"), quick("b"), quick("c")], ["x", "y"], 1), journal.done)
    assert {turn.load.name for turn in left} == {"b"}
    run_of(brokers, journal).take(left)
    assert Journal.read(path).findings.failures == []
    assert len(Journal.read(path).done) == 6
    assert "left: round 1, b, y" in capsys.readouterr().err


@pytest.mark.parametrize(("keeps_brokers", "starts"), [(False, 2), (True, 1)])
def test_brokers_can_be_kept_for_all_rounds(tmp_path, keeps_brokers, starts):
    broker = FakeBroker("x")
    run = run_of({"x": broker}, Journal.begin(tmp_path / "peers.json"), keeps_brokers=keeps_brokers)
    run.take(turns_of([quick("a")], ["x"], 2))
    assert (broker.starts, broker.stops) == (starts, starts)
    assert len(run.journal.done) == 2


@pytest.mark.parametrize(
    ("steals", "kept", "left"), [([2, 0], 2, 1), ([30, 4], 4, 0), ([30, 20, 10, 0], 10, 1), ([10, 30, 20, 0], 10, 1)]
)
def test_a_disturbed_measurement_is_repeated_and_the_calmest_is_kept(tmp_path, monkeypatch, steals, kept, left):
    class Disturbed(InlineRunner):
        def measure(self, run, load, broker, *, point, round):
            return attrs.evolve(result(broker.name, point), steal_percent=steals.pop(0))

    waits = []
    monkeypatch.setattr("bench.peers.run._wait_for_calm", waits.append)
    journal = Journal.begin(tmp_path / "peers.json")
    measured_max_count = len(steals) - left
    run = run_of({"x": FakeBroker("x")}, journal)
    run.runner, run.steal_max_percent = Disturbed(), 5
    run.take(turns_of([quick("a")], ["x"], 1))
    assert [each.steal_percent for each in journal.findings.results] == [kept]
    assert len(steals) == left
    assert waits == [5] * measured_max_count


def test_gets_during_a_from_memory_load_make_a_failure(tmp_path, capsys):
    """Once the broker was told to flush before each measurement, also where its memory was to be measured."""
    flushed: list[str] = []
    gets: list[int] = []
    step = 0

    class Running(RunningBroker):
        def create_topic(self, partitions):
            pass

        def remove_topic(self):
            pass

        def flush(self):
            flushed.append(self.name)

        def usage(self):
            gets.append(step)
            return Usage(cpu_seconds=None, syncs=None, puts=None, gets=sum(gets))

    @attrs.frozen
    class Broker:
        name: str

        @contextmanager
        def running(self):
            yield Running(name=self.name, address=Address("", 0), pid=None, metrics_url=None)

    journal = Journal.begin(tmp_path / "peers.json")
    run_of({"x": Broker("x")}, journal).take(turns_of([quick("a", is_from_memory=True)], ["x"], 1))
    assert [each.gets for each in journal.findings.results] == [0]
    assert flushed == ["x"]  # afterwards
    step = 7
    run_of({"x": Broker("x")}, journal).take(turns_of([quick("b", is_from_memory=True)], ["x"], 1))
    assert [failure.error for failure in journal.findings.failures] == [
        "RuntimeError: 7 GETs for what should have come from memory"
    ]


def test_the_journal_reads_back_its_entries(tmp_path):
    journal = Journal.begin(tmp_path / "new" / "peers.json")
    journal.begin_part(OPTIONS)
    journal.add(result(OWN, LARGE, mib=2.5))
    text = journal.path.read_text()
    assert "NaN" not in text
    findings = Journal.read(journal.path).findings
    assert math.isnan(findings.results[0].figures.p999_ms)
    assert findings.results[0].mib_per_second == 2.5
    assert findings.parts == journal.findings.parts
    assert [path.name for path in journal.path.parent.iterdir()] == ["peers.json"]


def test_a_page_is_made_from_the_journal_alone_without_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LOCAL_RESULTS", tmp_path)
    refused = CliRunner().invoke(command.main, ["--page"])
    assert refused.exit_code == 1
    assert "peers.json is not there" in refused.output
    journal = Journal.begin(tmp_path / "peers.json")
    for broker in (OWN, KAFKA_DURABLE):
        journal.add(result(broker, LARGE, mib=100))
    made = CliRunner().invoke(command.main, ["--page"])
    assert made.exit_code == 0
    assert "NO" in made.output
    assert LARGE in (tmp_path / "peers.md").read_text()


# ---- targets and page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "disk", "reached"),
    [(400, 200, 10_000, True), (399, 200, 10_000, False), (399, 200, 900, True), (350, 200, 900, False)],
)
def test_the_target_is_twice_kafka_or_40_percent_of_the_disk(ours, theirs, disk, reached):
    results = [result(OWN, LARGE, mib=ours), result(KAFKA_DURABLE, LARGE, mib=theirs)]
    rows = target_rows(TARGETS, [*results, result(DISK, DISK_ALONE, mib=disk)])
    assert [row.is_reached for row in rows] == [reached]
    assert f"or {disk * 0.4:.0f}" in rows[0].cells()[HEADINGS.index("wanted")]


@pytest.mark.parametrize(
    ("load", "ours", "theirs", "reached"),
    [
        ("java article 80%", {"p99_ms": 10.0}, {"p99_ms": 50.0}, True),
        ("java article 80%", {"p99_ms": 10.1}, {"p99_ms": 50.0}, False),
        ("fetch backlog/16KiB/1", {"gets": 104}, {}, True),
        ("fetch backlog/16KiB/1", {"gets": 90}, {}, False),
        (IDLE, {"cpu": 0.005}, {}, True),
        (IDLE, {"cpu": 0.006}, {}, False),
    ],
)
def test_targets_can_be_upper_bounds_or_absolute_figures(load, ours, theirs, reached):
    results = [result(OWN, load, **ours)]
    if theirs:
        results.append(result(KAFKA_DURABLE, load, **theirs))
    (row,) = target_rows(TARGETS, results)
    assert row.is_reached is reached
    assert row.cells()[-1] == ("yes" if reached else "NO")
    assert row.goodness == pytest.approx(row.ratio if "fetch" in load else (1 if theirs else 0.5) / row.ratio)


def test_a_run_becomes_a_page_with_plots(tmp_path):
    journal = Journal.begin(tmp_path / "peers.json")
    journal.begin_part(OPTIONS)
    journal.findings.results = [
        result(broker, LARGE, mib=mib + 8 * round, round=round)
        for broker, mib in ((OWN, 400), (KAFKA_DURABLE, 210))
        for round in (0, 1)
    ]
    for share in (0.1, 0.5, 0.9):
        journal.findings.results.append(result(OWN, end_to_end_name(share), p99_ms=100 * share))
    for size in ("1KiB", "16KiB", "960KiB"):
        journal.findings.results.append(result(OWN, produce_name(Point.parse(f"{size}/64/16"))))
    (failed,) = turns_of([fails("b")], ["x"], 1)
    journal.fail(failed, "a | b\nc")
    page = write_page(journal.findings, tmp_path).read_text()
    assert f"| {LARGE} | MiB/s | {OWN} | 404 | {KAFKA_DURABLE} | 214 | 1.89 |" in page
    assert "| b | x | 1 | a / b c |" in page
    assert "10 s a measurement" in page
    for name in ("peers.svg", "peers-produce.svg", "peers-end-to-end.svg"):
        assert f"({name})" in page
        ElementTree.parse(tmp_path / name)
    root = ElementTree.parse(tmp_path / "peers.svg").getroot()
    assert "1.89x" in [text.text for text in root.findall("{*}text")]


# ---- beside the code before -----------------------------------------------------------------------------------------


def test_each_load_that_ours_is_put_under_is_one_for_the_code_before():
    pairs = pairs_of(TARGETS, all_loads())
    both = with_before(pairs)
    assert {(load, BEFORE) for load, broker in pairs if broker == OWN} <= set(both)
    turns = turns_of(all_loads(), [OWN, OWN_MEMORY, BEFORE, BEFORE_MEMORY], 1, both)
    loads = [{turn.load.name for turn in turns if turn.broker == name} for name in (OWN, BEFORE)]
    assert loads[0] == loads[1]
    assert IDLE in loads[0]


def test_the_previous_code_runs_in_the_environment_of_that_checkout(tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\npwd > told\necho "kafscale is ready: kafka 127.0.0.1:1 admin 127.0.0.1:2"\nexec sleep 60\n'
    )
    python.chmod(0o700)
    before = {own_broker.name: own_broker for own_broker in own_brokers(OPTIONS, before=tmp_path)}[BEFORE]
    with before.running() as running:
        assert running.address == Address("127.0.0.1", 1)
    assert (tmp_path / "told").read_text().strip() == str(tmp_path)


def test_figures_are_shown_beside_the_figures_of_the_previous_code():
    old = [result(BEFORE, LARGE, mib=mib, round=n) for n, mib in enumerate((90, 100, 130))]
    new = [result(OWN, LARGE, mib=mib, round=n) for n, mib in enumerate((120, 110, 80))]
    alone = [result(OWN, IDLE)]
    rows = [row for row in beside_before([*old, *new, *alone]) if row[2] == "MiB/s"]
    assert rows == [[LARGE, OWN, "MiB/s", "100", "90–130", "110", "80–120", "1.100"]]
