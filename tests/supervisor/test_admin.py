"""Pages of metrics made one: Prometheus' own parser reads it, and finds what each broker said."""

from __future__ import annotations

import itertools

import pytest

from kafscale.metrics import Metrics, PageFormat
from kafscale.supervisor.admin import merged

openmetrics_families = pytest.importorskip("prometheus_client.openmetrics.parser").text_string_to_metric_families
text_string_to_metric_families = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families


def page(number: int, form: PageFormat = PageFormat.TEXT) -> str:
    metrics = Metrics()
    requests = metrics.counter("kafscale_requests_total", "Requests.", "api")
    requests.of("Produce").value = number
    requests.of('odd "{name}", \\ of\x85\n').value = 1
    metrics.gauge("kafscale_partitions", "Partitions.", lambda: 7.5)
    metrics.histogram("kafscale_seconds", "Times.", bounds=(0.5, 1.0)).of().observe(0.7, 3)
    if number > 1:
        metrics.counter("kafscale_peers_total", "Peers.", "broker", "text").of("9", 'x,broker="').value = 2
    return metrics.expose(form)


def test_merged_metrics_label_samples_by_broker_and_list_each_family_once() -> None:
    text = merged({1: page(1), 2: page(2)})
    families = {each.name: each for each in text_string_to_metric_families(text)}
    headers = [line for line in text.split("\n") if line.startswith("#")]
    assert len(headers) == len(set(headers)) == 2 * len(families) == 8
    assert {each.type for each in families.values()} == {"counter", "gauge", "histogram"}
    samples = {
        (each.name, *sorted(each.labels.items())): each.value for family in families.values() for each in family.samples
    }
    assert samples["kafscale_requests_total", ("api", "Produce"), ("broker", "1")] == 1
    assert samples["kafscale_requests_total", ("api", "Produce"), ("broker", "2")] == 2
    assert samples["kafscale_requests_total", ("api", 'odd "{name}", \\ of\\x85\n'), ("broker", "2")] == 1
    assert samples["kafscale_partitions", ("broker", "1")] == 7.5
    assert samples["kafscale_seconds_bucket", ("broker", "2"), ("le", "1.0")] == 3
    assert samples["kafscale_seconds_count", ("broker", "1")] == 3


def test_samples_of_a_family_are_together() -> None:
    names = [line.split("{")[0] for line in merged({1: page(1), 2: page(2)}).split("\n") if line and line[0] != "#"]
    kinds = [name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in names]
    assert sum(before != after for before, after in itertools.pairwise(kinds)) == len(set(kinds)) - 1


def test_a_label_of_the_same_name_is_kept_under_another() -> None:
    [sample] = [
        sample
        for family in text_string_to_metric_families(merged({2: page(2)}))
        for sample in family.samples
        if sample.name == "kafscale_peers_total"
    ]
    assert sample.labels == {"broker": "2", "exported_broker": "9", "text": 'x,broker="'}


def test_no_pages_are_an_empty_one() -> None:
    assert merged({}) == ""


def test_the_supervisor_s_own_samples_join_the_families_of_brokers_without_a_label() -> None:
    form = PageFormat.OPENMETRICS
    text = merged({1: page(1, form), 2: page(2, form), None: page(9, form)}) + form.end
    families = {each.name: each for each in openmetrics_families(text)}
    requests = families["kafscale_requests"].samples
    assert {each.labels.get("broker"): each.value for each in requests if each.labels["api"] == "Produce"} == {
        "1": 1,
        "2": 2,
        None: 9,
    }
    assert families["kafscale_seconds"].unit == "seconds"
