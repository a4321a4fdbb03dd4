"""Writes `docs/reference/pipeline.md`: `python -m kafscale.spark.pipeline.reference >docs/reference/pipeline.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from kafscale.spark.catalogs import CatalogOptions
from kafscale.spark.pipeline.config import (
    BucketConfig,
    Encoding,
    FanOut,
    JsonColumn,
    Maintenance,
    Pipeline,
    RegistryConfig,
    TableMapping,
)

PARTS: Sequence[tuple[str, type[attrs.AttrsInstance]]] = (
    ("The pipeline", Pipeline),
    ("`source`", BucketConfig),
    ("`catalog`", CatalogOptions),
    ("`registry`", RegistryConfig),
    ("`mappings`, each", TableMapping),
    ("`value` and `key`", Encoding),
    ("`columns`, each", JsonColumn),
    ("`fan_out`", FanOut),
    ("`maintenance`", Maintenance),
)
INTRODUCTION = """# Keys of a pipeline

Made from the code by `python -m kafscale.spark.pipeline.reference`. [How to keep Iceberg tables](../how-to/iceberg.md)
shows them at work. A key that there is not is an error. `${NAME}` in a value is filled from the environment. Sizes take
units (64MiB, 1GB), times need one (10s, 5m, 1h)."""


def reference() -> str:
    return "\n\n".join([INTRODUCTION, *(_part(heading, cls) for heading, cls in PARTS)]) + "\n"


def _part(heading: str, cls: type[attrs.AttrsInstance]) -> str:
    rows = [f"| `{field.name}` | {_default(field)} | {field.metadata['doc']} |" for field in attrs.fields(cls)]
    return "\n".join([f"## {heading}", "", "| key | default | what it is |", "|---|---|---|", *rows])


def _default(field: attrs.Attribute[Any]) -> str:
    default = field.default
    if default is attrs.NOTHING:
        return "required"
    if isinstance(default, attrs.Factory) or default is None or default == ():  # type: ignore[arg-type]
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    print(reference(), end="")
