"""Uniform: members get equally many partitions, to within one, and keep what they had where that allows it."""

from __future__ import annotations

from collections.abc import Mapping

from kafscale.cluster.groups.assignors.heterogeneous import assign_heterogeneous
from kafscale.cluster.groups.assignors.homogeneous import assign_homogeneous
from kafscale.cluster.groups.assignors.partitions import Partitions
from kafscale.cluster.groups.assignors.spec import GroupSpec


def assign_uniformly(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Return what each member is to have."""
    return assign_homogeneous(spec) if spec.is_homogeneous else assign_heterogeneous(spec)
