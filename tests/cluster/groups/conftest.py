from __future__ import annotations

import pytest

from tests.devtools.fakes.groups import GroupHarness


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()
