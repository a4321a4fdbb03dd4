"""What an operator decides about a broker while that comes back."""

from __future__ import annotations

import attrs
import pytest
from trio.testing import MockClock

from kafscale.cluster.membership.placement.administration import BrokerAdministration
from kafscale.cluster.membership.records import BrokerRecord, BrokerState, record_key
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from tests.cluster.membership.test_placement_writer import writers_of

AWAY = BrokerRecord(incarnation=7, state=BrokerState.AWAY, endpoints={}, directory_id="two", acknowledges_locally=True)


async def put(state: ClusterState, record: BrokerRecord) -> None:
    await state.follower.commit(Transaction(puts={record_key(2): encode(record)}, essential=True))


@pytest.mark.parametrize("incarnation", [7, 8], ids=["heard of again", "started again"])
async def test_a_broker_that_has_come_back_is_not_given_up(autojump_clock: MockClock, incarnation: int) -> None:
    """Whoever asked for it knew what another broker tells: that it is away."""
    async with writers_of(2, 1) as (here, elsewhere):
        await put(here.state, AWAY)
        await put(elsewhere.state, attrs.evolve(AWAY, incarnation=incarnation, state=BrokerState.LIVE))
        assert here.state.brokers[2] == AWAY
        with pytest.raises(KafkaError) as refused:
            await BrokerAdministration(here.state).give_up(2)
        assert refused.value.code == error_codes.INVALID_REQUEST
        assert here.state.brokers[2].state is BrokerState.LIVE


async def test_a_broker_is_forgotten_that_has_stopped_a_moment_ago(autojump_clock: MockClock) -> None:
    """Its process has ended, which whoever asks has seen; the one that is asked has not heard of it."""
    async with writers_of(2, 1) as (here, elsewhere):
        await put(here.state, attrs.evolve(AWAY, state=BrokerState.LIVE))
        store = here.state.store
        assert isinstance(store, SharedMetadataStore)
        await put(elsewhere.state, attrs.evolve(AWAY, state=BrokerState.STOPPED))
        assert here.state.brokers[2].state is BrokerState.LIVE
        await BrokerAdministration(here.state, store.refresh).unregister(2)
        assert 2 not in here.state.brokers


async def test_a_broker_that_is_away_is_given_up_once(autojump_clock: MockClock) -> None:
    async with writers_of(1, 1) as (here,):
        await put(here.state, AWAY)
        for _ in range(2):
            await BrokerAdministration(here.state).give_up(2)
        assert here.state.brokers[2].state is BrokerState.FENCED
        assert here.state.brokers[2].is_given_up
        with pytest.raises(KafkaError) as refused:
            await BrokerAdministration(here.state).give_up(3)
        assert refused.value.code == error_codes.BROKER_ID_NOT_REGISTERED
