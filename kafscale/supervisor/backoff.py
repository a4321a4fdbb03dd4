"""How long to wait before what has died is started again. May not import anything of KafScale."""

from __future__ import annotations

import attrs

GROWN_UP_SECONDS = 10.0  # who lived for so long did not die of its start, which takes one or two
FIRST_PAUSE_SECONDS = 0.1  # Kafka: reconnect.backoff.ms, 50 ms; a start takes more than either
PAUSE_MAX_SECONDS = 10.0


@attrs.define(eq=False, repr=False)
class Backoff:
    """No pause after the first death, nor after one of old age; doubled ones after further deaths of the young."""

    _next_seconds: float = attrs.field(default=0.0, init=False)

    def pause_seconds(self, lived_seconds: float) -> float:
        """Return the pause after a life of so long."""
        pause = 0.0 if lived_seconds >= GROWN_UP_SECONDS else self._next_seconds
        self._next_seconds = min(max(pause * 2, FIRST_PAUSE_SECONDS), PAUSE_MAX_SECONDS)
        return pause
