"""The loop in a thread: who may call into it, and what becomes of callers when it ends."""

from __future__ import annotations

import asyncio
import threading

import pytest
import trio

from kafscale.errors import BrokerUnavailable
from kafscale.testing.trio_thread import TrioThread


async def thread_name(prefix: str) -> str:
    await trio.lowlevel.checkpoint()
    return prefix + threading.current_thread().name


@pytest.fixture
def thread() -> TrioThread:
    thread = TrioThread("loop")
    thread.start()
    return thread


def test_runs_a_function_called_from_a_plain_thread(thread: TrioThread) -> None:
    assert thread.call(thread_name, "in ") == "in loop"
    thread.stop()


def test_runs_a_function_called_from_asyncio(thread: TrioThread) -> None:
    async def program() -> str:
        return thread.call(thread_name, "in ")

    assert asyncio.run(program()) == "in loop"
    thread.stop()


async def test_runs_a_function_called_from_another_trio_loop(thread: TrioThread) -> None:
    assert thread.call(thread_name, "in ") == "in loop"
    thread.stop()


def test_raises_the_functions_error_and_keeps_running(thread: TrioThread) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        thread.call(fail)
    assert thread.call(thread_name, "in ") == "in loop"
    thread.stop()


def test_refuses_calls_after_the_end(thread: TrioThread) -> None:
    thread.stop()
    with pytest.raises(BrokerUnavailable, match="'loop' has ended"):
        thread.call(thread_name, "in ")


def test_a_background_task_that_fails_ends_calls_under_way_and_is_raised_by_stop(thread: TrioThread) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("the disk is lost")

    async def start_and_wait() -> None:
        thread.nursery.start_soon(fail)
        await trio.sleep_forever()

    with pytest.raises(BrokerUnavailable, match="'loop' has ended"):
        thread.call(start_and_wait)
    with pytest.raises(ExceptionGroup) as raised:
        thread.stop()
    assert raised.group_contains(OSError, match="the disk is lost")
