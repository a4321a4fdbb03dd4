"""Sessions of browsers, kept in memory: a random token in a cookie names one.

A session holds its user's client of the cluster, so that the broker's ACLs and logs see that user. Without logins at
the broker, all sessions share one client.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import attrs

from kafscale.console.cluster import ClusterAccess
from kafscale.console.runs import Run

IDLE_SECONDS = 30 * 60.0
LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX_COUNT = 1_000  # the one that has been idle longest makes room
TOKEN_BYTES = 32


@attrs.define(eq=False, kw_only=True, repr=False)
class Session:
    """One browser. `csrf_token` is in each form; `user` is None without logins."""

    token: str
    cluster: ClusterAccess
    user: str | None = None
    csrf_token: str = attrs.field(factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    notice: str = ""  # of the last action, shown by the next page
    runs: dict[str, Run] = attrs.field(factory=dict)  # the last command of each page
    begun_at: float
    used_at: float


@attrs.define(eq=False, repr=False)
class Sessions:
    """All sessions. Expired ones are dropped when another one begins."""

    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, Session] = attrs.field(factory=dict, init=False)

    def find(self, token: str | None) -> Session | None:
        """Return a living session and note its use."""
        session = self._sessions.get(token or "")
        if session is None or self._is_over(session):
            return None
        session.used_at = self.clock()
        return session

    def begin(self, cluster: ClusterAccess, user: str | None = None) -> tuple[Session, list[Session]]:
        """Begin a session. Returns it and the ones that are over, whose clusters the caller closes."""
        over = [session for session in self._sessions.values() if self._is_over(session)]
        for session in over:
            del self._sessions[session.token]
        if len(self._sessions) >= SESSIONS_MAX_COUNT:
            idle = min(self._sessions.values(), key=lambda session: session.used_at)
            over.append(self._sessions.pop(idle.token))
        now = self.clock()
        token = secrets.token_urlsafe(TOKEN_BYTES)
        session = Session(token=token, cluster=cluster, user=user, begun_at=now, used_at=now)
        self._sessions[token] = session
        return session, over

    @property
    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def end(self, session: Session) -> None:
        self._sessions.pop(session.token, None)

    def _is_over(self, session: Session) -> bool:
        now = self.clock()
        return now - session.used_at > IDLE_SECONDS or now - session.begun_at > LIFE_SECONDS
