"""What a DataFrame reads of topics, told by Spark's plan of it once the source has planned: before a byte is read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafscale.spark.source import SplitPartition
from kafscale.spark.splits import Split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def splits_of(frame: DataFrame) -> Sequence[Split]:
    """All that its scans of topics read, in no order. Has the query optimized, and the source plan, if they did not."""
    return list(_splits(frame._jdf.queryExecution().optimizedPlan()))


def _splits(node: Any) -> Iterator[Split]:
    if node.getClass().getSimpleName() == "DataSourceV2ScanRelation":
        for partition in node.scan().toBatch().planInputPartitions():
            if partition.getClass().getSimpleName() == "PythonInputPartition":
                planned = pickle.loads(bytes(partition.pickedPartition()))
                if isinstance(planned, SplitPartition):
                    yield from planned.splits
    for further in (node.children(), node.subqueries()):
        for index in range(further.size()):
            yield from _splits(further.apply(index))
