"""Rows are found by their modules, each runs at a size that fits into a test, and the page is made of what is saved."""

import importlib
from collections import Counter
from xml.etree import ElementTree

import attrs
import pytest
import trio
from click.testing import CliRunner

from bench.claims import k2, k6, l2
from bench.claims.__main__ import main
from bench.claims.claim import Finding, Variant, known_rows, load
from bench.claims.files import Done, save, saved
from bench.claims.k6 import Prefetch
from bench.claims.page import FIGURES, render, render_figures, write_page
from bench.claims.plot import Plot, Point
from bench.claims.report import show, show_summary
from bench.claims.suite import Suite, run_suite
from bench.memory import AFTER, BEFORE, STALLED, Outcome, Sample, Setup, finding_of, measure
from bench.places import PAGES, RESULTS
from kafscale.log.wal.direct_io import PAGE_BYTES

PASSED = Suite(
    variants=[Variant(name="it holds", figures={"cases": 1})], cases_count=1, failed_count=0, counted=Counter()
)
OUTCOME = Outcome(
    samples=[
        Sample(at_seconds=at, phase=phase, rss_mib=100.0 + at, bytes_in=1e6 * at, bytes_out=2e6 * at)
        for at, phase in enumerate((BEFORE, BEFORE, STALLED, STALLED, AFTER, AFTER))
    ],
    records_count=10,
)
HUGE = attrs.evolve(OUTCOME.samples[0], rss_mib=10_000.0)
SUITE = {"run_suite": lambda *targets, environ=None: PASSED}  # what the row runs is run as tests anyway
HERE = {"run_apart": lambda function, *args: function(*args)}  # a process takes a second to start

VARIANTS = {"variants": lambda: PASSED.variants}  # of a run of minutes, with Java

# How to make a row small. What it then finds says nothing, so that nothing of it is held to.
SMALL = {
    "a1": {"ROUNDS_COUNT": 1, "DEPTHS": (2, 4)},
    "a2": SUITE,
    "a3": {"mb_per_second": lambda load, broker: 1.0, **VARIANTS},
    "a4": {"p99_ms": lambda load, broker: 1.0, **VARIANTS},
    "a5": SUITE,
    "k1": {"PARTITIONS_COUNT": 4, **HERE},
    "k2": {"OBJECTS_COUNT": 16},
    "k3": {"BURSTS_COUNT": 1, "BURST_COUNT": 4, "REQUESTS_COUNT": 4},
    "k4": {"ROUNDS_COUNT": 1, "UPLOAD_SECONDS": 0.05},
    "k5": SUITE,
    "k6": {"RUN_SECONDS": 0.05},
    "k7": SUITE,
    "k9": SUITE,
    "k10": SUITE,
    "k8": {"ROUNDS_COUNT": 1, "PRODUCES_COUNT": 1},
    "l1": {"APPENDS_COUNT": 20, "PARTITION_COUNTS": (1, 2)},
    "l2": {"ROUNDS_COUNT": 1, "RUN_SECONDS": 0.02, "PRODUCERS_COUNT": 2},
    "l3": {"APPENDS_COUNT": 10},
    "l6": {"BATCHES_COUNT": 2},
    "l5": {"measure": lambda setup: OUTCOME},
    "l4": {"ROUNDS_COUNT": 1, "WARM_UP_SECONDS": 0.05, "RUN_SECONDS": 0.1, **HERE},
}


async def test_the_slower_disk_of_l2_is_slower_however_the_log_is_written(tmp_path):
    disk = l2.SlowerDisk(tmp_path, added_seconds=0.05)
    await disk.create("a", PAGE_BYTES, b"")
    began = trio.current_time()
    await disk.write_and_sync("a", [bytes(PAGE_BYTES)], 0)
    assert trio.current_time() - began >= 0.05
    disk.close()


def test_each_claim_module_has_its_row_source_figure_and_description():
    assert set(known_rows()) == SMALL.keys()
    for row in known_rows():
        claim = load(row)
        assert claim.row == row
        assert claim.source
        assert claim.source_figure
        assert claim.about


@pytest.mark.parametrize("row", known_rows())
def test_each_row_runs_and_its_finding_can_be_saved(row, monkeypatch, tmp_path):
    module = importlib.import_module(f"bench.claims.{row}")
    for name, value in SMALL[row].items():
        monkeypatch.setattr(module, name, value)
    finding = load(row).run()
    assert finding.ours
    assert finding.variants
    done = Done.of(load(row), finding, seconds=1.0)
    save(done, tmp_path)
    assert saved(tmp_path)[0].finding.variants[0].name == finding.variants[0].name


@pytest.fixture
def done():
    line = [Point(1, 0.5), Point(10, 2), Point(100, 4)]
    finding = Finding(
        ours="12 < 34",
        is_shown=False,
        variants=[Variant(name="off", figures={"ms": 34.5}), Variant(name="on", figures={"ms": 12, "skipped": 1234})],
        plot=Plot(title="a < b", x_label="x", y_label="y", series={"on": line, "~off": line[::-1]}),
    )
    return Done.of(load("k2"), finding, seconds=3.2)


def test_a_finding_goes_to_the_terminal_to_files_and_to_the_page(done, tmp_path, capsys):
    show(done)
    show_summary([done])
    path = save(done, tmp_path)
    assert render(saved(tmp_path)) == render([done])
    page = write_page(tmp_path).read_text() + (tmp_path / FIGURES).read_text()
    shown = capsys.readouterr().out
    for text in ("34.50", "1,234", "12 < 34", done.claim.source):
        assert text in page
        assert text in shown
    assert "| **no** |" in page
    assert "│ NO " in shown
    assert f"]({path.with_suffix('.svg').name})" in page
    root = ElementTree.parse(path.with_suffix(".svg")).getroot()
    assert len(root.findall("{*}polyline")) == 2


def test_the_page_is_made_of_the_committed_results():
    assert (PAGES / "README.md").read_text() == render(saved())
    assert (RESULTS / FIGURES).read_text() == render_figures(saved())


def test_a_suite_result_has_case_counts_and_recorded_properties_per_test(tmp_path, capsys):
    file = tmp_path / "test_made_up.py"
    file.write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_that_counts(number, record_property):\n"
        "    record_property('schedules', 10 * number)\n"
        "def test_that_fails():\n"
        "    assert False\n"
    )
    suite = run_suite(str(file))
    assert [(variant.name, dict(variant.figures)) for variant in suite.variants] == [
        ("that counts", {"cases": 2, "failed": 0, "schedules": 30}),
        ("that fails", {"cases": 1, "failed": 1}),
    ]
    finding = suite.finding("all is well")
    assert not finding.is_shown
    assert finding.ours == "1 of 3 cases FAILED; all is well"
    assert "test_that_fails" in capsys.readouterr().err


def test_broker_memory_is_sampled_over_a_stall_and_client_anomalies_are_checked():
    setup = Setup(seconds=1.5, stall_from=0.2, stall_to=0.5, producers_count=3, tail_count=2, backlog_count=1)
    outcome = measure(setup)
    assert outcome.anomalies == []
    assert outcome.records_count > 0
    assert outcome.most_rss_mib > 10
    assert [variant.name for variant in outcome.variants()] == [BEFORE, STALLED, AFTER]


def test_excess_memory_lost_records_or_silent_clients_refute_the_claim():
    setup = Setup.of(200, seconds=600)
    assert setup.connections_count == 200
    found = finding_of(setup, OUTCOME)
    assert found.is_shown
    assert found.plot is not None
    assert len(ElementTree.fromstring(found.plot.svg()).findall("{*}polyline")) == 2
    for changes in (
        {"anomalies": ["lost write in memory-0"]},
        {"silent_count": 1},
        {"samples": [HUGE, *OUTCOME.samples]},
    ):
        assert not finding_of(setup, attrs.evolve(OUTCOME, **changes)).is_shown


def test_a_row_that_there_is_not_is_refused():
    result = CliRunner().invoke(main, ["z99"])
    assert result.exit_code == 2
    assert "k1" in result.output


def test_a_row_that_fails_does_not_keep_the_others_from_being_run(monkeypatch, tmp_path):
    monkeypatch.setattr(k2, "OBJECTS_COUNT", 0)
    monkeypatch.setattr(k6, "RUN_SECONDS", 0.05)
    result = CliRunner().invoke(main, ["k2", "k6", "--directory", str(tmp_path)])
    assert result.exit_code == 1
    assert [each.claim.row for each in saved(tmp_path)] == ["k6"]


@pytest.mark.parametrize(("concurrency", "gbit_per_second"), [(1, 10), (6, 10), (12, 50)])
def test_throughput_follows_the_formula(concurrency, gbit_per_second, monkeypatch):
    monkeypatch.setattr(k2, "OBJECTS_COUNT", 240)
    expected = k2.formula(concurrency, gbit_per_second)
    assert k2.throughput(concurrency, gbit_per_second) == pytest.approx(expected, rel=0.03)


def test_waiting_prefetch_raises_fetch_latency_and_prefetch_if_free_does_not(monkeypatch):
    monkeypatch.setattr(k6, "RUN_SECONDS", 0.5)
    off, if_free, in_line = (k6.measure("all tokens held", prefetch) for prefetch in Prefetch)
    assert if_free["fetch p99 ms"] <= 1.02 * off["fetch p99 ms"] < in_line["fetch p99 ms"]
    assert if_free["skipped"] > 0 == in_line["skipped"]


def test_a_row_is_skipped_when_its_tools_are_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["a3", "--directory", str(tmp_path)])
    assert result.exit_code == 0
    assert "A3 is left out: java and mvn not on the PATH" in result.output
    assert saved(tmp_path) == []
