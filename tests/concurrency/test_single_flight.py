"""One load for many: what it failed with is everybody's, and one that was given up is nobody's."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.single_flight import Flight
from kafscale.errors import StoreUnavailable


async def test_who_waits_goes_on_when_it_has_landed(nursery):
    flight = Flight()
    nursery.start_soon(flight.wait)
    await wait_all_tasks_blocked()
    assert nursery.child_tasks
    flight.land()
    await wait_all_tasks_blocked()
    assert not nursery.child_tasks
    await flight.wait()


async def test_a_failure_is_raised_for_everybody():
    flight = Flight()
    flight.land(StoreUnavailable("away"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            await flight.wait()


async def test_a_load_that_was_given_up_is_no_failure():
    flight = Flight()
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as exc:
            flight.land(exc)
            raise
    await flight.wait()
