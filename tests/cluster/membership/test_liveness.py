"""Who is taken for lost, by a clock that a test sets."""

from __future__ import annotations

import attrs

from kafscale.cluster.membership.peers.liveness import Liveness

TIMEOUT_SECONDS, INTERVAL_SECONDS = 3.0, 0.5


@attrs.define(eq=False)
class Watcher:
    """A broker that watches broker 2, whose incarnation is 20."""

    now: float = 100.0
    liveness: Liveness = attrs.field(
        default=attrs.Factory(lambda self: Liveness(TIMEOUT_SECONDS, lambda: self.now), takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        self.liveness.is_watching = True
        self.liveness.follow({2: 20})

    def run_for(self, seconds: float, *, hears: bool = False) -> None:
        for _ in range(round(seconds / INTERVAL_SECONDS)):
            self.now += INTERVAL_SECONDS
            self.liveness.follow({2: 20})
            if hears:
                self.liveness.answered(2, 20, self.now)

    def is_lost(self) -> bool:
        return 2 in self.liveness.lost()


def test_a_broker_is_lost_after_a_session_timeout_of_silence() -> None:
    watcher = Watcher()
    watcher.run_for(60.0, hears=True)
    assert not watcher.is_lost()
    watcher.run_for(2.5)
    assert not watcher.is_lost()
    assert watcher.liveness.silent() == {2}
    watcher.run_for(0.5)
    assert watcher.is_lost()
    watcher.liveness.heard(2, 20)
    assert not watcher.is_lost()


def test_a_broker_that_refuses_connections_is_lost_when_silent_too() -> None:
    watcher = Watcher()
    watcher.run_for(5.0, hears=True)
    for _ in range(10):  # it is being stopped
        watcher.liveness.failed(2, 20, "no", is_refusing=True)
        watcher.run_for(0.5)
        assert not watcher.is_lost()
        watcher.liveness.heard(2, 20)
    watcher.liveness.failed(2, 20, "no", is_refusing=True)
    watcher.run_for(1.0)
    assert watcher.is_lost()


def test_a_broker_never_heard_of_gets_longer_before_being_lost() -> None:
    watcher = Watcher()
    watcher.liveness.failed(2, 20, "no", is_refusing=True)
    watcher.run_for(1.5)
    assert not watcher.is_lost()
    watcher.run_for(0.5)
    assert watcher.is_lost()


def test_the_reason_of_a_loss_includes_the_last_connection_error() -> None:
    watcher = Watcher()
    watcher.liveness.failed(2, 20, "its certificate has expired")
    watcher.run_for(3.0)
    assert watcher.liveness.lost()[2] == "nothing was heard of it for 3.0 s (its certificate has expired)"
    watcher.run_for(1.0, hears=True)
    watcher.run_for(3.0)
    assert watcher.liveness.lost()[2] == "nothing was heard of it for 3.0 s"


def test_time_in_which_the_watcher_did_not_run_does_not_count() -> None:
    watcher = Watcher()
    watcher.run_for(5.0, hears=True)
    watcher.now += 3600.0  # it was suspended
    assert not watcher.is_lost()  # before it has looked
    watcher.liveness.follow({2: 20})
    assert not watcher.is_lost()
    watcher.run_for(1.5)
    assert not watcher.is_lost()
    watcher.run_for(1.5)
    assert watcher.is_lost()


def test_heartbeats_of_an_earlier_incarnation_do_not_count() -> None:
    watcher = Watcher()
    watcher.run_for(2.5)
    watcher.liveness.heard(2, 19)
    watcher.run_for(0.5)
    assert watcher.is_lost()
    watcher.liveness.follow({2: 21})
    assert not watcher.is_lost()


def test_a_broker_that_never_heard_the_controller_waits_longer_to_replace_one() -> None:
    watcher = Watcher()
    watcher.run_for(3.0)
    assert watcher.is_lost()
    assert not watcher.liveness.is_replaceable(2)
    watcher.run_for(6.0)
    assert watcher.liveness.is_replaceable(2)
    other = Watcher()
    other.run_for(1.0, hears=True)
    other.run_for(3.0)
    assert other.liveness.is_replaceable(2)


def test_without_watching_every_broker_counts_as_heard() -> None:
    liveness = Liveness(TIMEOUT_SECONDS, lambda: 0.0)
    assert liveness.is_heard(2)
    assert not liveness.lost()


def test_a_broker_that_watches_no_other_does_not_hear_half() -> None:
    watcher = Watcher()
    watcher.run_for(5.0, hears=True)
    assert watcher.liveness.hears_half()
    watcher.liveness.follow({})
    assert not watcher.liveness.hears_half()
    assert not Liveness(TIMEOUT_SECONDS, lambda: watcher.now).hears_half()


def test_a_resumed_process_hears_half_only_by_answers_to_later_requests() -> None:
    """Others may have declared it dead meanwhile; what they had sent before says nothing of that."""
    watcher = Watcher()
    watcher.run_for(5.0, hears=True)
    asked_at = watcher.now
    watcher.now += 600.0
    assert not watcher.liveness.hears_half()
    watcher.liveness.follow({2: 20})
    assert not watcher.is_lost()
    assert not watcher.liveness.hears_half()
    watcher.liveness.heard(2, 20)  # what was in the socket
    watcher.liveness.answered(2, 20, asked_at)
    assert not watcher.liveness.hears_half()
    watcher.liveness.answered(2, 20, watcher.now)
    assert watcher.liveness.hears_half()
