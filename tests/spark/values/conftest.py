"""A registry for each test: some stop it."""

import pytest

from tests.devtools.registry_values import running_values


@pytest.fixture
def values():
    with running_values() as running:
        yield running
