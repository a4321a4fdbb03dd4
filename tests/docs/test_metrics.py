"""Metrics that pages name, to alert on or to look at: a process has each of them, with these labels."""

from __future__ import annotations

import re

from kafscale.testing import pytest_plugin
from tests.docs.metrics_page import registered
from tests.docs.test_pages import REPOSITORY, WRITTEN_PAGES

_NAMED = re.compile(r"\b(kafscale_[a-z0-9_]+)(?:\{([a-z_,]+)\})?")
_SUFFIX = re.compile(r"_(?:bucket|count|sum)$")
_NO_METRICS = ("kafscale_s3_concurrency", "kafscale_pipeline_")  # an option, and a prefix that a page names


def test_every_metric_named_on_a_page_exists_with_its_labels() -> None:
    labels = {name: set(family.labels) for name, family in registered().everywhere.items()}
    unknown: list[str] = []
    for page in WRITTEN_PAGES:
        for name, named in _NAMED.findall(page.read_text()):
            if name in _NO_METRICS or hasattr(pytest_plugin, name):
                continue
            known = labels.get(name, labels.get(_SUFFIX.sub("", name)))
            if known is None or (named and set(named.split(",")) != known):
                unknown.append(f"{page.relative_to(REPOSITORY)}: {name} {named}")
    assert not unknown
