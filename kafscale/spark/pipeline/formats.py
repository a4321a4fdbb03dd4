"""The formats of tables: the rest of the pipeline asks for `format_of`, and knows what `TableFormat` says alone.

A module for each format has all that is peculiar to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kafscale.spark.catalogs import DELTA, ICEBERG, CatalogOptions
from kafscale.spark.pipeline.config import Pipeline
from kafscale.spark.pipeline.delta import DeltaTables
from kafscale.spark.pipeline.iceberg import IcebergTables
from kafscale.spark.pipeline.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FORMATS: Mapping[str, Callable[[SparkSession, CatalogOptions], TableFormat]] = {
    ICEBERG: IcebergTables,
    DELTA: DeltaTables,
}


def format_of(spark: SparkSession, pipeline: Pipeline) -> TableFormat:
    """Return what the tables of a pipeline are kept in, as a session sees it."""
    return FORMATS[pipeline.catalog.format](spark, pipeline.catalog)
