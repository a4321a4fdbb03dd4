"""Repeats requests while a broker answers that they may succeed later.

`WORTH_ANOTHER` has only codes after which nothing was done, so a write is not done twice. A missing topic is not waited
for: here it is mostly a misspelt name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import attrs
import trio

from kafscale.backoff import Backoff
from kafscale.errors import KafkaError
from kafscale.wire import error_codes

RETRY_SECONDS = 15.0  # brokers take over what another led within 10 s. Kafka: default.api.timeout.ms, 1 min
BACKOFF = Backoff(0.1, 1.0)  # Kafka: retry.backoff.ms, 100 ms, and retry.backoff.max.ms, 1 s

STALE_LEADER = frozenset(
    {
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.REPLICA_NOT_AVAILABLE,
        error_codes.FENCED_LEADER_EPOCH,
        error_codes.UNKNOWN_LEADER_EPOCH,
    }
)  # codes after which the leader of a partition must be looked up anew

WORTH_ANOTHER = STALE_LEADER | {
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_COORDINATOR,
    error_codes.NOT_CONTROLLER,
    error_codes.NOT_ENOUGH_REPLICAS,
    error_codes.CONCURRENT_TRANSACTIONS,
    error_codes.KAFKA_STORAGE_ERROR,
    error_codes.OFFSET_NOT_AVAILABLE,
    error_codes.UNSTABLE_OFFSET_COMMIT,
    error_codes.THROTTLING_QUOTA_EXCEEDED,
}

P = ParamSpec("P")
T = TypeVar("T")


@attrs.define(eq=False)
class Attempts:
    """Attempts with growing pauses between them, until they have taken `seconds`."""

    seconds: float = RETRY_SECONDS
    _pauses_count: int = attrs.field(default=0, init=False)
    _until: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._until = trio.current_time() + self.seconds

    async def another(self) -> bool:
        """Wait until another attempt is due, and return True; return False at once if the time is over."""
        pause_seconds = BACKOFF.seconds(self._pauses_count)
        if trio.current_time() + pause_seconds > self._until:
            return False
        await trio.sleep(pause_seconds)
        self._pauses_count += 1
        return True


def retried(ask: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Decorate a function of a client to be called again after a KafkaError that is worth another attempt.

    It must look up its coordinator or leader each time, and may do twice what it does.
    """

    @wraps(ask)
    async def ask_again(*args: P.args, **kwargs: P.kwargs) -> T:
        attempts = Attempts()
        while True:
            try:
                return await ask(*args, **kwargs)
            except KafkaError as exc:
                if exc.code not in WORTH_ANOTHER or not await attempts.another():
                    raise

    return ask_again
