"""Panels, dashboards and alerts as values.

In a panel's expression, `@` stands for the selectors of the dashboard's variables, as in `kafscale_connections{@}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

SELECTORS = 'job=~"$job",instance=~"$instance"'
BROKER = "{{instance}} {{broker}}"  # a legend; `broker` is empty but for several brokers of one supervisor
BY_BROKER = "sum by (instance, broker)"


class Shape(Enum):
    LINES = "timeseries"
    NUMBER = "stat"


@attrs.frozen
class Query:
    """An expression of PromQL and the legend of its series."""

    expression: str
    legend: str = BROKER

    @property
    def text(self) -> str:
        return self.expression.replace("@", SELECTORS)


@attrs.frozen
class Panel:
    """One panel. `unit` is Grafana's name of a unit; `tells` is shown beside the title."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    tells: str = ""
    shape: Shape = Shape.LINES


@attrs.frozen(kw_only=True)
class Dashboard:
    """A dashboard of rows of panels. `variables` are the labels to choose from, by a metric that has them."""

    uid: str
    title: str
    tells: str
    found_by: str = "kafscale_build_info"  # the metric whose labels `job` and `instance` are offered
    variables: Mapping[str, str] = attrs.field(factory=dict)
    prices: Mapping[str, str] = attrs.field(factory=dict)
    rows: Mapping[str, Sequence[Panel]]

    @property
    def panels(self) -> list[Panel]:
        return [panel for panels in self.rows.values() for panel in panels]


class Severity(Enum):
    """`critical`: somebody should act now. `warning`: somebody should look today."""

    CRITICAL = "critical"
    WARNING = "warning"


@attrs.frozen(kw_only=True)
class Alert:
    """An alert that fires while `expression` has been true for `lasting`; `{limit}` in it is `limit`.

    `runbook` is a page of docs/ and a heading there.
    """

    name: str
    expression: str
    limit: float | None = None
    lasting: str
    severity: Severity = Severity.WARNING
    summary: str
    runbook: str

    @property
    def text(self) -> str:
        return self.expression if self.limit is None else self.expression.replace("{limit}", f"{self.limit:g}")


def rate(metric: str, selectors: str = "", *, by: str = "instance, broker") -> str:
    """Return the rate of a counter's sum, with further selectors."""
    chosen = f"@,{selectors}" if selectors else "@"
    return f"sum by ({by}) (rate({metric}{{{chosen}}}[$__rate_interval]))"


def quantile(metric: str, selectors: str = "", *, of: float = 0.99, by: str = "instance, broker") -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({of:g}, {rate(f'{metric}_bucket', selectors, by=f'le, {by}')})"


def lines(title: str, expression: str, unit: str = "short", legend: str = BROKER, tells: str = "") -> Panel:
    return Panel(title, [Query(expression, legend)], unit, tells)


def number(title: str, expression: str, unit: str = "short", tells: str = "") -> Panel:
    return Panel(title, [Query(expression, "")], unit, tells, Shape.NUMBER)
