"""Who is declared dead, by what was known when it was decided."""

from __future__ import annotations

import attrs
import pytest
from trio.testing import MockClock

from kafscale.cluster.membership.placement.controller import FailOver
from kafscale.cluster.membership.records import (
    CONTROLLER_KEY,
    BrokerRecord,
    BrokerState,
    ControllerRecord,
    Placement,
    record_key,
    rows_of,
)
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from tests.cluster.membership.test_placement_writer import topic_id, writers_of

CONTROLLER = ControllerRecord(broker_id=1, incarnation=5, term=6)
ONE = BrokerRecord(incarnation=5, state=BrokerState.LIVE, endpoints={}, directory_id="one", acknowledges_locally=False)
TWO = attrs.evolve(ONE, incarnation=7, directory_id="two")


async def put(state: ClusterState, broker_id: int, record: BrokerRecord) -> None:
    await state.follower.commit(Transaction(puts={record_key(broker_id): encode(record)}, essential=True))


@pytest.mark.parametrize("is_started_again", [False, True])
async def test_a_restarted_broker_is_not_declared_dead_for_its_former_incarnation(
    autojump_clock: MockClock, is_started_again: bool
) -> None:
    async with writers_of(2, 1) as (here, elsewhere):
        led = rows_of(topic_id(0), [Placement(2, 7, 7, 0)], [0])
        await here.state.follower.commit(Transaction(puts={CONTROLLER_KEY: encode(CONTROLLER), **led}, essential=True))
        await put(here.state, 1, ONE)
        await put(here.state, 2, TWO)
        if is_started_again:
            await put(elsewhere.state, 2, attrs.evolve(TWO, incarnation=8))
        assert here.state.brokers[2] == TWO
        await FailOver(here.state, 3.0).run_once(CONTROLLER, {2: "its address refuses connections"}, [])
        leader = here.state.placements[topic_id(0)][0].leader
        assert here.state.brokers[2].state is (BrokerState.LIVE if is_started_again else BrokerState.FENCED)
        assert leader == (2 if is_started_again else 1)


@pytest.mark.parametrize("state", list(BrokerState))
async def test_a_move_to_a_broker_that_does_not_serve_is_cancelled(
    autojump_clock: MockClock, state: BrokerState
) -> None:
    """What is counts as a move, of which there are so many at once: a drain of another broker would wait for it."""
    async with writers_of(1, 1) as (here,):
        moving = rows_of(topic_id(0), [Placement(1, 5, 5, 0, target=2)], [0])
        await here.state.follower.commit(
            Transaction(puts={CONTROLLER_KEY: encode(CONTROLLER), **moving}, essential=True)
        )
        await put(here.state, 1, ONE)
        await put(here.state, 2, attrs.evolve(TWO, state=state))
        await FailOver(here.state, 3.0).run_once(CONTROLLER, {}, [])
        assert here.state.placements[topic_id(0)][0].target == (2 if state is BrokerState.LIVE else None)
