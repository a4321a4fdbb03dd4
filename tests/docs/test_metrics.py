"""Metrics that pages name, to alert on or to look at: a broker has each of them, with these labels."""

from __future__ import annotations

import re
from pathlib import Path

from trio.testing import MockClock

import kafscale
from kafscale.broker_security import open_security
from kafscale.config import Durability
from kafscale.metrics import Metrics
from kafscale.store.opening.opening import open_store
from kafscale.testing import pytest_plugin
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings
from tests.docs.test_pages import REPOSITORY, WRITTEN_PAGES

_NAMED = re.compile(r"\b(kafscale_[a-z0-9_]+)(?:\{([a-z_,]+)\})?")
_SUFFIX = re.compile(r"_(?:bucket|count|sum)$")
# Those of a supervisor and of pipelines, which have tests of their own, and what is none.
_OTHERS = ("kafscale_process_", "kafscale_pipeline_", "kafscale_s3_concurrency")


async def labels_of_metrics() -> dict[str, set[str]]:
    """The labels of each metric that a broker has without TLS, a cache on disk and S3, alone and beside others."""
    found = Metrics()
    await (await open_store(memory_settings(), found)).aclose()
    open_security(memory_settings()).register(found)
    families = dict(found.families)
    for settings in (memory_settings(), memory_settings(several_brokers=True, durability=Durability.S3_WAL)):
        async with memory_broker(memory_parts(), settings) as running:
            families |= running.broker.metrics.families
    return {name: set(family.labels) for name, family in families.items()}


async def test_every_metric_named_on_a_page_exists_with_its_labels(autojump_clock: MockClock) -> None:
    labels = await labels_of_metrics()
    source = "".join(path.read_text() for path in Path(kafscale.__file__).parent.rglob("*.py"))
    unknown: list[str] = []
    for page in WRITTEN_PAGES:
        for name, named in _NAMED.findall(page.read_text()):
            if name.startswith(_OTHERS) or hasattr(pytest_plugin, name):
                continue
            known = labels.get(name, labels.get(_SUFFIX.sub("", name)))
            if f'"{name}"' not in source if known is None else named and set(named.split(",")) != known:
                unknown.append(f"{page.relative_to(REPOSITORY)}: {name} {named}")
    assert not unknown
