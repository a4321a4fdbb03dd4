"""Consumers that were sent to another broker, and come back."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kafscale.api.handling.calls import Peer
from kafscale.api.handling.fetch_sessions import BACK_SECONDS, STAY_SECONDS, Referrals
from kafscale.config import SecurityProtocol

PARTITION = bytes(16), 0
OTHER_PARTITION = bytes(16), 1


def a_peer() -> Peer:
    return Peer("192.0.2.1", 1024, "PLAINTEXT", "192.0.2.2", 9092, SecurityProtocol.PLAINTEXT)


async def test_a_consumer_that_returns_quickly_is_not_referred_again_for_a_while(autojump_clock: MockClock) -> None:
    referrals, peer = Referrals(), a_peer()
    assert referrals.may_send(peer, PARTITION)
    await trio.sleep(BACK_SECONDS - 1)
    assert not referrals.may_send(peer, PARTITION)
    assert referrals.may_send(peer, OTHER_PARTITION)
    assert referrals.may_send(a_peer(), PARTITION)
    await trio.sleep(STAY_SECONDS - 1)
    assert not referrals.may_send(peer, PARTITION)
    await trio.sleep(2)
    assert referrals.may_send(peer, PARTITION)


async def test_a_consumer_that_returns_late_is_referred_again(autojump_clock: MockClock) -> None:
    referrals, peer = Referrals(), a_peer()
    for _ in range(3):
        assert referrals.may_send(peer, PARTITION)
        await trio.sleep(BACK_SECONDS + 1)


def test_connections_that_are_gone_are_forgotten(autojump_clock: MockClock) -> None:
    referrals = Referrals()

    async def tell() -> None:
        referrals.may_send(a_peer(), PARTITION)

    trio.run(tell)
    assert not referrals._told
