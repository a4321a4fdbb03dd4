"""The bound on bytes held at once: order, what is larger than all of it, and waits that are cancelled."""

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.byte_budget import ByteBudget


async def test_waiters_are_served_in_order_even_behind_a_large_one(nursery):
    budget = ByteBudget(10)
    await budget.acquire(6)
    served: list[int] = []

    async def want(size: int) -> None:
        await budget.acquire(size)
        served.append(size)

    for size in (8, 2, 3):
        nursery.start_soon(want, size)
        await wait_all_tasks_blocked()
    assert served == []
    assert not budget.acquire_nowait(1)
    assert budget.waiting_count == 3
    budget.release(6)
    await wait_all_tasks_blocked()
    assert sorted(served) == [2, 8]  # granted together; who runs first is up to trio
    assert budget.used_bytes == 10


async def test_a_request_larger_than_the_budget_is_granted_alone(nursery):
    budget = ByteBudget(10)
    await budget.acquire(1)
    assert not budget.acquire_nowait(100)
    budget.release(1)
    assert budget.acquire_nowait(100)
    assert not budget.acquire_nowait(1)


async def test_a_cancelled_wait_unblocks_later_waits_of_the_budget(nursery):
    budget = ByteBudget(10)
    await budget.acquire(6)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await budget.acquire(8)

    nursery.start_soon(give_up)
    await wait_all_tasks_blocked()
    nursery.start_soon(budget.acquire, 4)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert budget.used_bytes == 10
    assert not budget.waiting_count


@given(st.lists(st.tuples(st.integers(1, 15), st.sampled_from(["hold", "cancel", "cancel late"])), max_size=12))
def test_cancelling_any_waiters_at_any_time_leaks_no_bytes_of_the_budget(wishes):
    async def main() -> None:
        budget = ByteBudget(10)
        await budget.acquire(10)

        async def want(size: int, scope: trio.CancelScope) -> None:
            with scope:
                async with budget.held(size):
                    assert budget.used_bytes <= max(10, size)
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            scopes = [trio.CancelScope() for _ in wishes]
            for (size, _), scope in zip(wishes, scopes, strict=True):
                nursery.start_soon(want, size, scope)
            await wait_all_tasks_blocked()
            for (_, action), scope in zip(wishes, scopes, strict=True):
                if action == "cancel":
                    scope.cancel()
            budget.release(10)
            for (_, action), scope in zip(wishes, scopes, strict=True):
                if action == "cancel late":
                    scope.cancel()
        assert budget.used_bytes == 0
        assert not budget.waiting_count

    trio.run(main)
