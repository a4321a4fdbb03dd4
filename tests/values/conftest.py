"""A registry for each test: some stop it."""

import pytest

from kafscale.values import registry
from tests.devtools.external.registry import running_values


@pytest.fixture
def values(monkeypatch):
    monkeypatch.setattr(registry, "LAG_PAUSES_SECONDS", ())
    with running_values() as running:
        yield running
