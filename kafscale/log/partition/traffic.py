"""Counters of the bytes and records that go into and out of a topic."""

from __future__ import annotations

import attrs

from kafscale.metrics import Counter


@attrs.define(eq=False, repr=False)
class Traffic:
    """Counters of records and bytes written to and read from a topic."""

    bytes_in: Counter = attrs.field(factory=Counter)
    records_in: Counter = attrs.field(factory=Counter)
    bytes_out: Counter = attrs.field(factory=Counter)
    records_out: Counter = attrs.field(factory=Counter)
