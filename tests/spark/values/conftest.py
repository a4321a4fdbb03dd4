"""One registry and what writes and reads with it, for each test."""

import pytest

from kafscale.testing.registry import running_registry
from kafscale.testing.registry_values import Values


@pytest.fixture
def values():
    with running_registry() as registry:
        made = Values(registry=registry)
        yield made
        made.close()
