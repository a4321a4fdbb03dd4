from __future__ import annotations

import attrs

from kafscale.config import Address
from kafscale.console import sessions
from kafscale.console.cluster import ClusterAccess
from kafscale.console.sessions import Sessions
from kafscale.login.security import PLAINTEXT

CLUSTER = ClusterAccess([Address("127.0.0.1", 9092)], PLAINTEXT)


@attrs.define
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_it_is_idle_for_long() -> None:
    clock = Clock()
    kept = Sessions(clock)
    session, _ = kept.begin(CLUSTER)
    clock.now = sessions.IDLE_SECONDS
    assert kept.find(session.token) is session
    clock.now += sessions.IDLE_SECONDS + 1
    assert kept.find(session.token) is None


def test_a_session_in_use_ends_after_its_life() -> None:
    clock = Clock()
    kept = Sessions(clock)
    session, _ = kept.begin(CLUSTER)
    while clock.now < sessions.LIFE_SECONDS:
        assert kept.find(session.token) is session
        clock.now += sessions.IDLE_SECONDS / 2
    clock.now += 1
    assert kept.find(session.token) is None


def test_the_longest_idle_session_makes_room() -> None:
    kept = Sessions()
    first, _ = kept.begin(CLUSTER)
    second, _ = kept.begin(CLUSTER)
    for _ in range(sessions.SESSIONS_MAX_COUNT - 2):
        kept.begin(CLUSTER)
    kept.find(first.token)
    assert kept.begin(CLUSTER)[1] == [second]
    assert kept.find(first.token) is first


def test_no_token_finds_no_session() -> None:
    assert Sessions().find(None) is None
    assert Sessions().find("") is None
