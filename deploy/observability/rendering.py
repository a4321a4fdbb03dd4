"""Files of dashboards and alerts from their values, by Grafana's own SDK and PyYAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableRefresh,
)

from deploy.observability.alerts import ALERTS
from deploy.observability.brokers import GROUPS, OVERVIEW, TOPICS
from deploy.observability.bucket import BUCKET, PIPELINE
from deploy.observability.model import Alert, Dashboard, Panel, Shape

DASHBOARDS: Mapping[str, Dashboard] = {
    "overview.json": OVERVIEW,
    "topic.json": TOPICS,
    "group.json": GROUPS,
    "bucket.json": BUCKET,
    "pipeline.json": PIPELINE,
}
DEPLOY = Path(__file__).parents[1]
DOCS_URL = "docs"  # beside the files of a clone; `--docs` names another place
COMMAND = "python -m deploy.observability"

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_COLUMNS_COUNT = 24
_LINES_HEIGHT = 8
_LINES_SPAN = 8
_NUMBER_HEIGHT = 4


def files(docs_url: str = DOCS_URL) -> dict[Path, str]:
    """Return the text of each generated file."""
    made = {DEPLOY / "grafana" / name: dashboard_text(made_of) for name, made_of in DASHBOARDS.items()}
    made[DEPLOY / "prometheus" / "alerts.yaml"] = alerts_text(ALERTS, docs_url)
    return made


def dashboard_text(dashboard: Dashboard) -> str:
    builder = (
        grafana.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(f"{dashboard.tells} Made by `{COMMAND}`.")
        .tags(["kafscale"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            grafana.DashboardLink("KafScale")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["kafscale"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(grafana.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, query in _variables(dashboard):
        builder.with_variable(_query_variable(name, query))
    for name, price in dashboard.prices.items():
        builder.with_variable(grafana.TextBoxVariable(name).default_value(price))
    for title, panels in dashboard.rows.items():
        builder.with_row(grafana.Row(title))
        numbers_count = sum(panel.shape is Shape.NUMBER for panel in panels)
        for panel in panels:
            builder.with_panel(_numbers(panel, numbers_count) if panel.shape is Shape.NUMBER else _lines(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(builder.build()) + "\n"


def _variables(dashboard: Dashboard) -> Iterable[tuple[str, str]]:
    yield "job", f"label_values({dashboard.found_by}, job)"
    yield "instance", f'label_values({dashboard.found_by}{{job=~"$job"}}, instance)'
    for label, metric in dashboard.variables.items():
        yield label, f'label_values({metric}{{job=~"$job",instance=~"$instance"}}, {label})'


def _query_variable(name: str, query: str) -> grafana.QueryVariable:
    return (
        grafana.QueryVariable(name)
        .datasource(_SOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _lines(panel: Panel) -> timeseries.Panel:
    builder = timeseries.Panel().height(_LINES_HEIGHT).span(_LINES_SPAN)
    _describe(builder, panel)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI)
    return builder.axis_soft_min(0).fill_opacity(10).legend(legend.show_legend(True)).tooltip(tooltip)


def _numbers(panel: Panel, count: int) -> stat.Panel:
    """Return one of `count` panels that fill a line, the first one of its row."""
    builder = stat.Panel().height(_NUMBER_HEIGHT).span(_COLUMNS_COUNT // count)
    _describe(builder, panel)
    return builder.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _describe(builder: timeseries.Panel | stat.Panel, panel: Panel) -> None:
    builder.title(panel.title).datasource(_SOURCE).unit(panel.unit)
    if panel.tells:
        builder.description(panel.tells)
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.text).legend_format(query.legend).ref_id(chr(ord("A") + number))
        builder.with_target(target.datasource(_SOURCE))


# ---- alerts -----------------------------------------------------------------------------------------------------


def alerts_text(groups: Mapping[str, Sequence[Alert]], docs_url: str = DOCS_URL) -> str:
    """Return a file of rules for Prometheus."""
    rules = {
        "groups": [
            {"name": name, "rules": [_rule(alert, docs_url) for alert in alerts]} for name, alerts in groups.items()
        ]
    }
    text: str = yaml.safe_dump(rules, sort_keys=False, width=1000)
    return f"# Made by `{COMMAND}`.\n{text}"


def _rule(alert: Alert, docs_url: str) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.text,
        "for": alert.lasting,
        "labels": {"severity": alert.severity.value},
        "annotations": {"summary": alert.summary, "runbook_url": f"{docs_url.rstrip('/')}/{alert.runbook}"},
    }
