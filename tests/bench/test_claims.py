"""Rows are found by their modules, and what they find is reported; two of them at a size that fits into a test."""

import json
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench.claims import k2, k6
from bench.claims.__main__ import main
from bench.claims.claim import Finding, Variant, known_rows, load
from bench.claims.k6 import Prefetch
from bench.claims.plot import Plot, Point
from bench.claims.report import save, show, show_summary


def test_every_module_of_a_row_is_found_and_names_itself():
    assert {"k1", "k2", "k3", "k6"} <= set(known_rows())
    for row in known_rows():
        claim = load(row)
        assert claim.row == row
        assert claim.source
        assert claim.source_figure


def test_a_finding_goes_to_the_terminal_and_to_files(tmp_path, capsys):
    line = [Point(1, 0.5), Point(10, 2), Point(100, 4)]
    finding = Finding(
        ours="12 < 34",
        is_shown=False,
        variants=[Variant(name="off", figures={"ms": 34.5}), Variant(name="on", figures={"ms": 12, "skipped": 1234})],
        plot=Plot(title="a < b", x_label="x", y_label="y", series={"on": line, "~off": line[::-1]}),
    )
    claim = load("k2")
    show(claim, finding)
    show_summary([(claim, finding)])
    shown = capsys.readouterr().out
    for text in ("34.50", "1,234", "12 < 34", "NO", claim.source):
        assert text in shown
    path = save(claim, finding, tmp_path)
    content = json.loads(path.read_text())
    assert content["claim"]["row"] == "k2"
    assert content["finding"]["variants"][1]["figures"] == {"ms": 12, "skipped": 1234}
    root = ElementTree.parse(path.with_suffix(".svg")).getroot()
    assert len(root.findall("{*}polyline")) == 2


def test_a_row_that_there_is_not_is_refused():
    result = CliRunner().invoke(main, ["z99"])
    assert result.exit_code == 2
    assert "k1" in result.output


@pytest.mark.parametrize(("concurrency", "gbit_per_second"), [(1, 10), (6, 10), (12, 50)])
def test_throughput_follows_the_formula(concurrency, gbit_per_second, monkeypatch):
    monkeypatch.setattr(k2, "OBJECTS_COUNT", 240)
    expected = k2.formula(concurrency, gbit_per_second)
    assert k2.throughput(concurrency, gbit_per_second) == pytest.approx(expected, rel=0.03)


def test_prefetch_that_waits_in_line_costs_what_prefetch_if_free_does_not(monkeypatch):
    monkeypatch.setattr(k6, "RUN_SECONDS", 0.5)
    off, if_free, in_line = (k6.measure("all tokens held", prefetch) for prefetch in Prefetch)
    assert if_free["fetch p99 ms"] <= 1.02 * off["fetch p99 ms"] < in_line["fetch p99 ms"]
    assert if_free["skipped"] > 0 == in_line["skipped"]
