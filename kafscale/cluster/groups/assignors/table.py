"""The assignors by the names that clients ask for."""

from __future__ import annotations

from collections.abc import Mapping

from kafscale.cluster.groups.assignors.range_assignor import assign_ranges
from kafscale.cluster.groups.assignors.spec import Assignor
from kafscale.cluster.groups.assignors.uniform import assign_uniformly

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
