"""Findings of a verification: one line of its report for each."""

from __future__ import annotations

import enum

import attrs


class Kind(enum.StrEnum):
    """The subject of a finding."""

    BATCHES = "batches"
    FOOTER = "footer"
    HEADER = "header"
    INDEX = "index"
    ORPHAN_INDEX = "orphan-index"
    GAP = "gap"
    OVERLAP = "overlap"
    SUPERSEDED = "superseded"
    LATE = "late"
    UNKNOWN_OBJECT = "unknown-object"
    UNKNOWN_TOPIC = "unknown-topic"
    CHANGED = "changed"
    WAL = "wal"
    WAL_OBJECT = "wal-object"
    CHECKPOINT = "checkpoint"
    CLAIM = "claim"
    METADATA = "metadata"


@attrs.define(kw_only=True)
class Finding:
    """A finding about an object, a partition or a WAL file.

    What is not `damage` is worth knowing and no fault. `position` is in bytes from the start of the object or file.
    """

    name: str
    kind: Kind
    message: str
    position: int | None = None
    damage: bool = True
    can_repair: bool = False
    repaired: bool = False
