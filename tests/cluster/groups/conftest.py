from __future__ import annotations

import pytest

from tests.cluster.groups.classic_groups import GroupHarness


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()
