"""Rows that `kafscale pipeline validate` shows. May not import pyspark: `--offline` needs none."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Check:
    """One checked thing of a mapping, and what was found."""

    mapping: str
    what: str
    found: str
    ok: bool = True
