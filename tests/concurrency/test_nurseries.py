"""One error out of a nursery: which one, and that a cancellation stays one."""

import pytest
import trio

from kafscale.concurrency.nurseries import beside, ungrouped
from kafscale.errors import Fenced, StorageFailed, StoreUnavailable


async def fail(error: BaseException) -> None:
    """Raises at once, or as its answer to being cancelled because another one has."""
    try:
        await trio.lowlevel.checkpoint()
    finally:
        raise error


async def run(*tasks) -> None:
    with ungrouped():
        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            outer.start_soon(trio.lowlevel.checkpoint)
            for task, *arguments in tasks:
                nursery.start_soon(task, *arguments)


@pytest.mark.parametrize("telling", [Fenced("x"), StorageFailed("x"), ValueError("x")])
@pytest.mark.parametrize("first", [True, False])
async def test_retriable_errors_come_last(telling, first):
    tasks = [(fail, telling), (fail, StoreUnavailable("y"))]
    with pytest.raises(type(telling)) as caught:
        await run(*(tasks if first else reversed(tasks)))
    assert caught.value is telling
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)


async def test_an_error_is_raised_even_if_a_cancellation_comes_at_the_same_moment():
    with trio.CancelScope() as scope:

        async def cancel() -> None:
            scope.cancel()

        with pytest.raises(Fenced):
            await run((trio.sleep_forever,), (fail, Fenced("x")), (cancel,))
    assert not scope.cancelled_caught


async def test_a_cancellation_stays_one():
    with trio.move_on_after(0) as scope:
        await run((trio.sleep_forever,), (trio.sleep_forever,))
    assert scope.cancelled_caught


async def test_a_background_task_ends_with_its_block_and_errors_are_raised_unwrapped(autojump_clock):
    async with beside(trio.sleep_forever):
        await trio.sleep(1)
    with pytest.raises(ValueError, match="of the block"):
        async with beside(trio.sleep_forever):
            raise ValueError("of the block")
    with pytest.raises(ValueError, match="of the task"):
        async with beside(lambda: fail(ValueError("of the task"))):
            await trio.sleep_forever()
