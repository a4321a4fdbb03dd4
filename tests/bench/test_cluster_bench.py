"""What `make bench-cluster` makes of its findings, and its loads, small."""

from __future__ import annotations

import math
import os
import shutil
import socket
from array import array

import pytest
import trio
from trio.testing import MockClock

from bench.cluster import controller, costs, model, simulated
from bench.cluster.beside import bytes_between
from bench.cluster.controller import CONTROLLER, RACES, SIZES, Size
from bench.cluster.findings import Failure, Findings, Row
from bench.cluster.jobs import AT_LEAST, BESIDE, SCALING, Job, Target, turns
from bench.cluster.model import Costs, Reach
from bench.cluster.moving import LONGEST
from bench.cluster.page import FIGURES, write_page
from bench.cluster.scaling import CPU, POINTS, SHAPES, load_of, spread, system_of
from bench.cluster.steady import Acknowledged, SteadyLoad, read_back, run_steady
from bench.options import RunOptions
from bench.points import TOPIC, Point
from bench.produce_load import ProduceLoad, run_produce
from kafscale.config import Address, Durability
from kafscale.testing.background_broker import running_broker

OPTIONS = RunOptions(seconds=1, warm_up_seconds=0, rounds=1)


def row(load: str, system: str, round: int = 0, group: str = SCALING, **figures: float) -> Row:
    at = "2026-01-01 00:00 UTC"
    return Row(group=group, load=load, system=system, round=round, at=at, load_average=0.5, figures=figures)


def test_findings_are_kept_in_a_file_and_a_later_one_of_the_same_replaces_an_earlier_one(tmp_path):
    path = tmp_path / "results" / "cluster.json"
    findings = Findings.begin()
    findings.add(Failure(group=SCALING, load="a", system="x", round=0, error="no"), path)
    findings.add(row("a", "x", **{CPU: 5.0, "p99 ms": math.nan}), path)
    findings.add(row("a", "x", **{CPU: 7.0}), path)
    findings.add(row("a", "x", round=1, **{CPU: 9.0}), path)
    found = Findings.read(path)
    assert found.failures == []
    assert found.of(SCALING) == {("a", "x"): {CPU: 8.0}}
    assert found.done == {(SCALING, "a", "x", 0), (SCALING, "a", "x", 1)}


def test_rounds_alternate_direction_and_skip_finished_jobs():
    jobs = [Job(group=SCALING, load=name, system="x", measure=lambda _: {}) for name in "ab"]
    taken = [(round, job.load) for round, job in turns(jobs, 2, {(SCALING, "a", "x", 0)})]
    assert taken == [(0, "b"), (1, "b"), (1, "a")]


def test_a_target_compares_with_a_peer_or_a_value_or_is_left_out():
    findings = Findings.begin()
    findings.rows += [row("a", "1", **{CPU: 10.0}), row("a", "2", **{CPU: 11.0})]
    beside = Target(group=SCALING, load="a", system="2", figure=CPU, factor=1.15, peer="1")
    assert beside.cells(findings) == ["a", "2", CPU, "11", "10 (1)", "1.10", "<= 1.15x", "yes"]
    alone = Target(group=SCALING, load="a", system="2", figure=CPU, factor=12, wanted=AT_LEAST)
    assert (alone.cells(findings) or [])[-2:] == [">= 12", "NO"]
    assert Target(group=SCALING, load="b", system="2", figure=CPU, factor=1).cells(findings) is None


def test_connections_are_spread_over_leaders_with_distinct_partitions():
    with running_broker() as broker:
        shares = spread(broker.bootstrap, 8, 4)
        assert [share.address for share in shares] == [Address.parse(broker.bootstrap)] * 4
        assert sorted(index for share in shares for index in share.partitions) == list(range(8))
        point = Point(batch_bytes=1024, in_flight=2, partitions=8)
        load = ProduceLoad(address=Address("", 0), point=point, seconds=60, count=40, shares=shares)
        assert run_produce(load).requests == 40
        assert {record.partition for record in broker.records(TOPIC)} == set(range(8))


def test_a_steady_load_tells_when_each_record_was_acknowledged_and_is_read_back():
    with running_broker() as broker:
        broker.create_topic(TOPIC, partitions=3)
        load = SteadyLoad(
            bootstrap=broker.bootstrap, partitions=3, records_per_second=200, record_bytes=50, seconds=0.1
        )
        found = run_steady(load)
        assert not found.failed
        assert set(found.partitions) == {0, 1, 2}
        assert all(sent <= done for sent, done in zip(found.sent_at, found.done_at, strict=True))
        assert read_back(load) == dict.fromkeys(found.numbers, 1)


def test_the_longest_wait_is_per_partition_of_records_sent_in_a_period():
    found = Acknowledged(
        partitions=array("i", [0, 1, 0, 1]),
        numbers=array("q", range(4)),
        sent_at=array("d", [1.0, 2.0, 2.5, 9.0]),
        done_at=array("d", [8.0, 2.5, 2.75, 19.0]),
        failed=[],
        cpu_seconds=0.0,
    )
    assert found.longest((2.0, 9.0)) == {0: 0.25, 1: 0.5}
    assert found.p99_ms((2.0, 9.0)) == 500


def test_bytes_between_processes_count_connections_with_both_ends_inside():
    if shutil.which("ss") is None:
        pytest.skip("ss is not on the PATH")
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as ours, server.accept()[0] as theirs:
            before = bytes_between([os.getpid()])
            ours.sendall(bytes(1000))
            while len(theirs.recv(1000, socket.MSG_PEEK)) < 1000:
                pass
            assert bytes_between([os.getpid()]) - before >= 1000
            assert bytes_between([]) == 0


def test_moved_partitions_are_leaderless_for_some_simulated_round_trips():
    figures = trio.run(simulated._move, Durability.WAL, 2, clock=MockClock(autojump_threshold=0))
    assert 2 * controller.LATENCY_SECONDS * 1000 < figures[LONGEST] < 500
    assert figures["all moved after ms"] > figures[LONGEST]


def test_three_zone_costs_follow_from_the_prices():
    by_name = {item.name: item for item in costs.items()}
    replicas = by_name["replicas in other zones"]
    assert replicas.theirs == pytest.approx(100 * 1.048576 * 2 * 30 * 86.4 * 0.02, rel=1e-6)
    assert replicas.ours == 0
    assert costs.rows()[-1][-1].endswith("%")


def test_a_fail_over_measures_controller_cost_and_serves_all_partitions(monkeypatch):
    monkeypatch.setattr(controller, "COMMITS_COUNT", 4)
    monkeypatch.setattr(controller, "MOVES_COUNT", 3)
    size = Size(brokers=4, topics=5, partitions=8)
    figures = controller._cost(size, OPTIONS)
    assert figures["fail-over, KiB"] > 0
    assert figures["checkpoint, KiB"] > 0
    raced = controller._race(size, OPTIONS)
    assert raced["partitions"] == 10
    assert raced["fenced after s"] == pytest.approx(controller.LATENCY_SECONDS)
    assert raced["all served after s"] >= raced["served, p50 s"] > raced["fenced after s"]
    assert raced["lost races"] == 0


def test_the_model_names_the_first_limit():
    costs = Costs(batch_us=200, commits_seconds=0.2, cpu_seconds=1.5)
    assert Reach(cores=4, machines=1, costs=costs).limit == "CPU"
    assert Reach(cores=64, machines=100, costs=costs).limit.startswith("metadata")
    cheap = Costs(batch_us=1, commits_seconds=0.0, cpu_seconds=0.0)
    assert Reach(cores=4, machines=3, costs=cheap).limit == "the line to the bucket"
    assert Reach(cores=16, machines=100, costs=cheap).limit == "the bucket's PUT rate"


def test_the_page_has_targets_figures_and_conclusions(tmp_path):
    findings = Findings.begin()
    findings.rows += [
        row(load_of(point, connections), system_of(count), **{CPU: 104.0 + count - connections, "requests/s": 1234.0})
        for point in POINTS
        for count, connections in SHAPES
    ]
    served = {"partitions": 100.0, "all served after s": 0.2}
    findings.rows.append(row("fail-over", str(RACES[-1]), group=CONTROLLER, **served))
    spent = dict.fromkeys(controller.FAIL_OVER_FIGURES, 300.0)
    findings.rows.append(row("CPU and bytes", str(SIZES[-1]), group=CONTROLLER, **spent))
    findings.rows.append(row("produce", "Apache Kafka", group=BESIDE, **{"MiB/s": 1.0}))
    findings.failures.append(Failure(group=SCALING, load="a|b", system="x", round=0, error="it\nbroke"))
    page = write_page(findings, tmp_path).read_text() + (tmp_path / FIGURES).read_text()
    assert f"| {load_of(POINTS[0])} | 2 processes | 102 | 1,234 |" in page
    assert "| 2 processes | CPU us/request | 102 | 101 (1 process, 4 connections) | 1.01 | <= 1.15x | yes |" in page
    assert "| 2 processes | CPU us/request | 102 | 103 (1 process, 2 connections) | 0.99 | <= 1.15x | yes |" in page
    assert "200 ms for commits at 25 ms an operation, 1200 ms of CPU" in page.replace("\n", " ")
    assert all(f"| {machines} | {cores} |" in page for cores, machines in model.MACHINES)
    assert "| together |" in page
    assert "| it broke |" in page
