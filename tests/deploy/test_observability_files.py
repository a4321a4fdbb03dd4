"""Dashboards and alerts: the files are as their source makes them, and name metrics, labels and runbooks that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("grafana_foundation_sdk")

from deploy.observability.alerts import ALERTS
from deploy.observability.model import Query
from deploy.observability.rendering import COMMAND, DASHBOARDS, DEPLOY, files
from tests.docs.metrics_page import registered
from tests.docs.test_pages import DOCS, _anchors

EXPRESSIONS = {
    **{
        f"{name}: {panel.title} {number}": query.text
        for name, dashboard in DASHBOARDS.items()
        for panel in dashboard.panels
        for number, query in enumerate(panel.queries)
    },
    **{alert.name: alert.text for alerts in ALERTS.values() for alert in alerts},
}
ADDED_LABELS = {"job", "instance", "broker", "le"}  # by Prometheus, by a supervisor, and of histograms
OF_PROMETHEUS = {"up", "ALERTS"}

_METRIC = re.compile(r"\b((?:kafscale|process)_[a-z0-9_]+|up|ALERTS)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"')
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_a_file_is_made_from_its_source(path: Path) -> None:
    assert path.read_text() == files()[path], f"run: {COMMAND}"


def test_no_file_is_left_from_an_earlier_source() -> None:
    assert set(DEPLOY.glob("grafana/*.json")) <= files().keys()


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    families = registered().everywhere
    labels = set(ADDED_LABELS)
    found = _METRIC.findall(re.sub(r"\bby \([^)]*\)", "", expression))
    assert found
    for name, matchers in found:
        if name in OF_PROMETHEUS:
            labels |= {"alertname", "alertstate"}
            continue
        family = families.get(name) or families[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert set(_MATCHER.findall(matchers)) <= set(family.labels) | ADDED_LABELS, name
        labels |= set(family.labels)
    for grouping in _GROUPING.findall(expression):
        assert {label.strip() for label in grouping.split(",")} <= labels, expression


def test_most_metrics_of_brokers_and_all_of_pipelines_are_shown_or_alerted_on() -> None:
    named = {re.sub(r"_bucket$", "", name) for text in EXPRESSIONS.values() for name, _ in _METRIC.findall(text)}
    assert registered().pipeline.keys() <= named
    assert registered().supervisor.keys() <= named
    assert {"kafscale_group_lag", "kafscale_topic_appended_records_total"} <= named
    assert len(registered().broker.keys() & named) >= 60


@pytest.mark.parametrize(
    "alert", [alert for alerts in ALERTS.values() for alert in alerts], ids=lambda alert: alert.name
)
def test_the_runbook_of_an_alert_is_a_heading_of_a_page(alert) -> None:
    page, _, anchor = alert.runbook.partition("#")
    assert anchor in _anchors(DOCS / page)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_unique_panels_that_do_not_overlap(name: str) -> None:
    panels = json.loads((DEPLOY / "grafana" / name).read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    titles = [panel["title"] for panel in panels if panel["type"] != "row"]
    assert len(titles) == len(set(titles))


def test_selectors_of_a_panel_stand_for_its_variables() -> None:
    assert Query("up{@}").text == 'up{job=~"$job",instance=~"$instance"}'
