"""The components that handlers work with; built and owned by `kafscale.broker`."""

from __future__ import annotations

import attrs
import trio

from kafscale.metrics import Metrics


@attrs.define(eq=False, kw_only=True)
class Services:
    """One per broker. `draining` is set when the broker begins to stop: whoever waits for a client answers at once."""

    metrics: Metrics
    draining: trio.Event
