"""Limits on the connections of one IP address, and on their rate (KIP-612).

Connections above the number are closed at once. Those above the rate are held, for a second at most, until the rate is
low enough, and then closed, so that a client without pauses makes some. The address is that of the socket: all clients
behind one proxy or NAT share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from kafscale.api.handling.quotas import WINDOW_SECONDS, Rate, Remembered
from kafscale.cluster.registries.client_quotas import CONNECTION_CREATION_RATE, ClientQuotas
from kafscale.config import Limits, canonical_ip
from kafscale.metrics import Histogram

HELD_MAX_COUNT: Final = 1_000  # past it they are closed at once: each has a descriptor. Kafka has no limit
HELD_MAX_SECONDS: Final = WINDOW_SECONDS  # Kafka's


@attrs.define(eq=False, kw_only=True, repr=False)
class IpLimits:
    limits: Limits
    quotas: ClientQuotas
    throttled_seconds: Histogram
    _max_counts: Mapping[str, int] = attrs.field(init=False)  # of those with a maximum of their own
    _open: Counter[str] = attrs.field(factory=Counter, init=False)
    _rates: Remembered[str, Rate] = attrs.field(factory=lambda: Remembered(Rate), init=False)

    def __attrs_post_init__(self) -> None:
        self.use(self.limits)

    def use(self, limits: Limits) -> None:
        self.limits = limits
        self._max_counts = {limit.ip: limit.count for limit in limits.max_connections_per_ip_overrides}

    def hold_seconds(self, host: str) -> float:
        """Count a new connection. Returns how long to hold it before it is closed; 0 if it may stay."""
        if not self.quotas.has(CONNECTION_CREATION_RATE):
            return 0.0
        address = _address(host)
        per_second = self.quotas.connection_rate(address)
        if per_second is None:
            return 0.0
        now, rate = trio.current_time(), self._rates.of(address)
        rate.add(1, now)
        excess_seconds = rate.excess_seconds(per_second, now)
        if excess_seconds <= 0:
            return 0.0
        rate.add(-1, now)  # it was not made
        held_seconds = min(excess_seconds, HELD_MAX_SECONDS)
        self.throttled_seconds.observe(held_seconds)
        return held_seconds

    def enter(self, host: str) -> bool:
        """Count a connection until `leave`; False if the host has the most that it may have."""
        address = _address(host)
        max_count = self._max_counts.get(address, self.limits.max_connections_per_ip_count)
        if self._open[address] >= max_count:
            return False
        self._open[address] += 1
        return True

    def leave(self, host: str) -> None:
        address = _address(host)
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def _address(host: str) -> str:
    try:
        return canonical_ip(host)
    except ValueError:  # the peer of a socket that is none of the internet
        return host
