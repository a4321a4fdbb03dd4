"""Pages of metrics in both formats, read by the parsers of Prometheus' own Python library, and the choice of one."""

from __future__ import annotations

import math

import pytest

from kafscale.metrics import Metrics, PageFormat
from kafscale.metrics.formats import unit_of

text_families = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families
openmetrics_families = pytest.importorskip("prometheus_client.openmetrics.parser").text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text"
PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def metrics_of_all_kinds() -> Metrics:
    metrics = Metrics()
    requests = metrics.counter("kafscale_requests_total", "Requests.", "api")
    requests.of("Produce").value = 3
    requests.of('a "quoted"\\ \n name').value = 1.5
    metrics.count("kafscale_sent_bytes_total", "Bytes sent.", lambda: 7)
    metrics.gauge("kafscale_partitions", "Partitions.", lambda: 4)
    metrics.gauge("kafscale_age_seconds", "An age.", lambda: math.inf)
    metrics.gauge("kafscale_full", "1 while full.", lambda: True)
    metrics.histogram("kafscale_flush_seconds", "Times.", "kind", bounds=(0.5, 1, 10)).of("x").observe(0.7, 3)
    metrics.callback("kafscale_lag", "Lag.", "group", samples=lambda: [None, (("g",), 2)], is_in_pieces=True)
    return metrics


def test_both_formats_have_the_same_samples_and_kinds_for_prometheus_parsers() -> None:
    metrics = metrics_of_all_kinds()
    text = list(text_families(metrics.expose()))
    opened = list(openmetrics_families(metrics.expose(PageFormat.OPENMETRICS)))

    def samples(families: list) -> dict:
        return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}

    assert samples(text) == samples(opened)
    assert {(family.name, family.type) for family in text} == {(family.name, family.type) for family in opened}
    assert samples(opened)["kafscale_flush_seconds_bucket", ("kind", "x"), ("le", "1.0")] == 3
    assert samples(opened)["kafscale_requests_total", ("api", "Produce")] == 3
    units = {family.name: family.unit for family in opened}
    assert units["kafscale_sent_bytes"] == "bytes"
    assert units["kafscale_flush_seconds"] == "seconds"
    assert units["kafscale_partitions"] == ""


def test_a_page_of_openmetrics_ends_with_its_own_line() -> None:
    assert metrics_of_all_kinds().expose(PageFormat.OPENMETRICS).endswith("\n# EOF\n")
    assert "# EOF" not in metrics_of_all_kinds().expose()


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, PageFormat.TEXT),
        ("", PageFormat.TEXT),
        ("*/*", PageFormat.TEXT),
        ("text/plain", PageFormat.TEXT),
        (OPENMETRICS, PageFormat.OPENMETRICS),
        (PROMETHEUS_2_42, PageFormat.OPENMETRICS),
        (PROMETHEUS_3, PageFormat.OPENMETRICS),
        (f"{OPENMETRICS};q=0.3, text/plain;q=0.8", PageFormat.TEXT),
        (f"{OPENMETRICS.upper()} ; Q=0.9 , text/plain ;q=0.8", PageFormat.OPENMETRICS),
        (f"{OPENMETRICS};version=2.0.0", PageFormat.TEXT),
        (f"{OPENMETRICS};q=0", PageFormat.TEXT),
        (f"{OPENMETRICS};q=nan", PageFormat.TEXT),
        (f"{OPENMETRICS};q=much", PageFormat.TEXT),
        (f"{OPENMETRICS};q=7, text/plain;q=0.5", PageFormat.TEXT),
        ("application/json", PageFormat.TEXT),
        ("text/html," * 100 + OPENMETRICS, PageFormat.TEXT),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str | None, form: PageFormat) -> None:
    assert PageFormat.accepted(accept) is form


@pytest.mark.parametrize(
    ("name", "kind"),
    [("kafscale_lost_races", "counter"), ("kafscale_files_total", "gauge"), ("broker_files", "gauge")],
)
def test_names_outside_the_conventions_are_refused(name: str, kind: str) -> None:
    with pytest.raises(AssertionError):
        Metrics().callback(name, "Help.", samples=list, kind=kind)


def test_a_gauge_and_a_counter_of_one_base_name_are_refused() -> None:
    """OpenMetrics names the family of `x_total` `x`: Prometheus would refuse the page."""
    metrics = Metrics()
    metrics.gauge("kafscale_handshakes", "Under way.", lambda: 1)
    with pytest.raises(AssertionError):
        metrics.count("kafscale_handshakes_total", "Done.", lambda: 1)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("kafscale_sent_bytes_total", "bytes"),
        ("kafscale_load_bytes_per_second", "bytes_per_second"),
        ("kafscale_dirty_ratio", "ratio"),
        ("kafscale_expiry_timestamp_seconds", "seconds"),
        ("kafscale_requests_total", ""),
    ],
)
def test_a_name_ends_with_its_unit(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_histograms_of_too_many_labels_share_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafscale.metrics.families.LABEL_SETS_MAX_COUNT", 3)
    family = Metrics().histogram("kafscale_wait_seconds", "Waits.", "client")
    for number in range(10):
        family.of(f"client-{number}").observe(1)
    assert len(family.children) == 4
    assert sum(family.of("other").counts) == 7
