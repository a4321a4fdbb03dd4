"""The log of who was refused what, and of who changed access control lists and passwords: lines of JSON in
`kafscale.audit`.

Strangers can be refused as often as they like. So a refusal that is the same is written once in a while, and of all of
them so many at most; those that were not are counted in a line of their own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

import attrs
import trio

from kafscale.api.handling.calls import Call
from kafscale.security.acls import Right

PERIOD_SECONDS: Final = 10.0
LINES_MAX_COUNT: Final = 100  # in a period
NAME_MAX_LENGTH: Final = 300  # of what a client has sent, in a line

logger = logging.getLogger("kafscale.audit")


@attrs.define(eq=False, repr=False)
class AuditLog:
    """One per broker."""

    _began: float = attrs.field(default=0.0, init=False)
    _written: set[tuple[str, str, Right, str]] = attrs.field(factory=set, init=False)
    _left_out_count: int = attrs.field(default=0, init=False)

    def denied(self, call: Call, right: Right, name: str, rule: Callable[[], str]) -> None:
        """Somebody was refused a right, by a rule, which is asked for if it is written."""
        now = trio.current_time()
        if now >= self._began + PERIOD_SECONDS:
            self.sum_up()
            self._began = now
        key = str(call.peer.principal), call.peer.host, right, name[:NAME_MAX_LENGTH]
        if key in self._written or len(self._written) >= LINES_MAX_COUNT:
            self._left_out_count += 1
            return
        self._written.add(key)
        _write(
            "denied",
            call,
            operation=right.operation.name,
            resource_type=right.resource_type.name,
            resource_name=key[3],
            rule=rule(),
        )

    def changed(self, event: str, call: Call, **what: str) -> None:
        """Somebody has added or removed an access control list, or a user's password."""
        _write(event, call, **what)

    def sum_up(self) -> None:
        """End the period, with a line if something was left out."""
        if self._left_out_count:
            logger.info("%s", json.dumps({"event": "denied", "left_out_count": self._left_out_count}))
        self._left_out_count = 0
        self._written.clear()


def _write(event: str, call: Call, **what: str) -> None:
    peer = call.peer
    line = {
        "event": event,
        "principal": str(peer.principal),
        "host": peer.host,
        "listener": peer.listener_name,
        "client_id": call.client_id[:NAME_MAX_LENGTH],
        "api_key": call.api_key,
        **what,
    }
    logger.info("%s", json.dumps(line))
