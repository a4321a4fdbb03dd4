"""trio without what a run on a virtual clock has no use for: the same steps of the same tasks, each for less CPU.

    with quickened(clock):
        trio.run(main, clock=clock)

There is no socket to poll, no thread, no guest and no instrument, so the loop only advances the clock and runs tasks.
`sleep` has no cancel scope that expires, raises and is caught: an entry among trio's deadlines wakes the task itself.
A scope whose end nothing hangs on is left without the checks for those where much does. What happens, and in which
order, is what trio does (`tests/devtools/test_quick_trio.py`). This goes by trio's private parts, for which its
version is pinned.
"""

from __future__ import annotations

import math
import types
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from heapq import heappush
from typing import Any

import attrs
import outcome
import trio
import trio.testing
from trio import _core
from trio._core import _run as _trio_run
from trio._core._traps import CancelShieldedCheckpoint, WaitTaskRescheduled

from tests.devtools.replaced import replaced

Abort = trio.lowlevel.Abort


class _Nothing:
    """An outcome that is used again and again."""

    __slots__ = ()

    def unwrap(self) -> None:
        return None


_NOTHING: Any = _Nothing()


@contextmanager
def quickened(clock: trio.testing.MockClock) -> Iterator[None]:
    """Have the run that begins within the block go this way, on this autojump clock, which stands still otherwise."""
    assert clock.rate == clock.autojump_threshold == 0

    def current_time() -> float:
        return clock._virtual_base

    with ExitStack() as stack:
        for owners, name, value in (
            ([_trio_run], "unrolled_run", _run),
            ([_trio_run.Runner], "reschedule", _reschedule),
            ([_trio_run.CancelScope], "__enter__", _enter_scope),
            ([_trio_run.CancelScope], "_close", _close_scope),
            ([_trio_run.CancelScope], "_might_change_registered_deadline", _change_deadline),
            ([_trio_run.CancelStatus], "__attrs_post_init__", _begin_status),
            ([trio], "fail_after", _FailAfter),
            ([trio], "sleep", _sleep),
            ([trio], "sleep_until", _sleep_until),
            ([trio, _core, _trio_run], "current_time", current_time),
            ([trio.lowlevel, _core, _trio_run], "checkpoint", _checkpoint),
            ([trio.lowlevel, _core, _trio_run], "cancel_shielded_checkpoint", _cancel_shielded_checkpoint),
            ([trio.lowlevel, _core], "wait_task_rescheduled", _wait_task_rescheduled),
        ):
            for owner in owners:
                stack.enter_context(replaced(owner, name, value))
        stack.enter_context(_plain_nurseries())
        yield


@contextmanager
def _plain_nurseries() -> Iterator[None]:
    """Have nurseries without a finalizer, which only has an assertion: the collector looks twice at what has one."""
    finalizer = trio.Nursery.__del__
    del trio.Nursery.__del__
    try:
        yield
    finally:
        trio.Nursery.__del__ = finalizer  # type: ignore[method-assign]


# ---- the loop ----------------------------------------------------------------------------------------------------


@trio.lowlevel.enable_ki_protection
def _run(
    runner: _trio_run.Runner, async_fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
) -> Generator[float, Any, None]:
    """Run tasks as `trio._core._run.unrolled_run` does. Whoever drives it polls only when a signal has come."""
    clock, queued, context = runner.clock, runner.entry_queue, _trio_run.GLOBAL_RUN_CONTEXT
    assert isinstance(clock, trio.testing.MockClock)
    try:
        queued.wakeup.wakeup_on_signals()
        clock.start_clock()
        runner.init_task = runner.spawn_impl(runner.init, (async_fn, args), None, "<init>", system_task=True)
        while runner.tasks:
            if queued.queue or queued.idempotent_queue:
                runner.io_manager.process_events((yield 0))
            _advance(runner, clock)
            batch = list(runner.runq)
            runner.runq.clear()
            if len(batch) > 1:
                batch.sort(key=_counter)
                _trio_run._r.shuffle(batch)
            while batch:
                context.task = task = batch.pop()
                _step(runner, task)
                del context.task, task
    except trio.TrioInternalError:
        raise
    except BaseException as exc:
        raise trio.TrioInternalError("internal error in Trio, or in what stands in for a part of it") from exc
    finally:
        runner.close()
        context.__dict__.clear()


def _counter(task: trio.lowlevel.Task) -> int:
    return task._counter


def _advance(runner: _trio_run.Runner, clock: trio.testing.MockClock) -> None:
    """Let what is due expire; or, where nobody has anything to do, the next that will be."""
    deadlines = runner.deadlines
    if not runner.runq:
        jump_seconds = deadlines.next_deadline() - clock._virtual_base
        if jump_seconds > 0 and not runner.waiting_for_idle:
            if jump_seconds == math.inf:
                raise RuntimeError("everybody waits for ever")
            clock._virtual_base += jump_seconds
            deadlines.expire(clock._virtual_base)
            return
    heap = deadlines._heap
    if heap and heap[0][0] <= clock._virtual_base and deadlines.expire(clock._virtual_base):
        return
    if not runner.runq and runner.waiting_for_idle:
        cushion, _ = runner.waiting_for_idle.keys()[0]
        while runner.waiting_for_idle and runner.waiting_for_idle.keys()[0][0] == cushion:
            _, task = runner.waiting_for_idle.popitem(0)
            runner.reschedule(task)


def _step(runner: _trio_run.Runner, task: trio.lowlevel.Task) -> None:
    """Let a task run to its next wait, or its end."""
    send, value = task._next_send_fn, task._next_send
    task._next_send_fn = task._next_send = None
    assert send is not None
    try:
        message: Any = task.context.run(send, value)
    except StopIteration as stop:
        runner.task_exited(task, outcome.Value(stop.value))
        return
    except BaseException as exc:
        final = outcome.Error(exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next))
    else:
        task._schedule_points += 1
        if message is CancelShieldedCheckpoint:
            runner.reschedule(task)
        else:
            task._cancel_points += 1
            task._abort_func = message.abort_func if type(message) is WaitTaskRescheduled else message
            if task._cancel_status.effectively_cancelled:
                task._attempt_delivery_of_any_pending_cancel()
        return
    runner.task_exited(task, final)


def _reschedule(
    runner: _trio_run.Runner, task: trio.lowlevel.Task, next_send: outcome.Outcome[object] = _trio_run._NO_SEND
) -> None:
    assert task._next_send_fn is None
    task._next_send_fn = task.coro.send
    task._next_send = _NOTHING if next_send is _trio_run._NO_SEND else next_send
    task._abort_func = None
    task.custom_sleep_data = None
    runner.runq.append(task)


# ---- waits -------------------------------------------------------------------------------------------------------


@types.coroutine
def _wait_task_rescheduled(abort_func: Callable[[Any], trio.lowlevel.Abort]) -> Generator[Any, Any, Any]:
    return (yield abort_func).unwrap()


@types.coroutine
def _cancel_shielded_checkpoint() -> Generator[Any, Any, None]:
    (yield CancelShieldedCheckpoint).unwrap()


@types.coroutine
def _checkpoint() -> Generator[Any, Any, None]:
    """First let others run, then see whether this one is cancelled; a wait of such a task ends at once."""
    (yield CancelShieldedCheckpoint).unwrap()
    task = _trio_run.GLOBAL_RUN_CONTEXT.task
    task._cancel_points += 1
    if task._cancel_status.effectively_cancelled:
        (yield _let_go).unwrap()


def _let_go(_: object) -> trio.lowlevel.Abort:
    return Abort.SUCCEEDED


# ---- time --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Alarm:
    """An entry among the deadlines of trio, which takes it for a cancel scope, and "cancels" it when it is due."""

    task: trio.lowlevel.Task
    runner: _trio_run.Runner
    _registered_deadline: float

    def _cancel(self, reason: object) -> None:
        self.stop()
        self.runner.reschedule(self.task)

    def stop(self) -> None:
        self._registered_deadline = math.inf
        self.runner.deadlines._active -= 1


async def _sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("`seconds` must be non-negative")
    await _sleep_until(trio.current_time() + seconds) if seconds else await trio.lowlevel.checkpoint()


async def _sleep_until(deadline: float) -> None:
    """Wait until then. As with a scope that expires, who has been cancelled when it wakes up gets told that at once."""
    assert not math.isnan(deadline)
    runner, task = _trio_run.GLOBAL_RUN_CONTEXT.runner, _trio_run.GLOBAL_RUN_CONTEXT.task
    if deadline == math.inf:
        await trio.sleep_forever()
    elif deadline <= trio.current_time():
        await trio.lowlevel.cancel_shielded_checkpoint()
    else:
        alarm: Any = _Alarm(task, runner, deadline)
        heappush(runner.deadlines._heap, (deadline, id(alarm), alarm))
        runner.deadlines._active += 1

        def abort(_: object) -> trio.lowlevel.Abort:
            alarm.stop()
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
    if task._cancel_status.effectively_cancelled:
        raise trio.Cancelled._create(source="deadline")


class _FailAfter:
    """What trio has a generator for."""

    __slots__ = ("scope",)

    def __init__(self, seconds: float, *, shield: bool = False) -> None:
        self.scope = trio.move_on_after(seconds, shield=shield)

    def __enter__(self) -> trio.CancelScope:
        return self.scope.__enter__()

    def __exit__(self, *raised: Any) -> bool:
        caught = self.scope.__exit__(*raised)
        if self.scope.cancelled_caught:
            raise trio.TooSlowError
        return caught


# ---- cancel scopes -----------------------------------------------------------------------------------------------


_close_as_trio = trio.CancelScope._close


@trio.lowlevel.enable_ki_protection
def _enter_scope(scope: trio.CancelScope) -> trio.CancelScope:
    if scope._has_been_entered:
        raise RuntimeError("Each CancelScope may only be used for a single 'with' block")
    scope._has_been_entered = True
    context = _trio_run.GLOBAL_RUN_CONTEXT
    now = context.runner.clock.current_time()
    if scope._relative_deadline != math.inf:
        scope._deadline, scope._relative_deadline = now + scope._relative_deadline, math.inf
    if scope._deadline <= now:
        scope._cancel(_trio_run.CancelReason(source="deadline"))
    scope._cancel_status = _trio_run.CancelStatus(scope=scope, parent=context.task._cancel_status)
    context.task._activate_cancel_status(scope._cancel_status)
    if scope._deadline != math.inf and not scope._cancel_called:
        scope._registered_deadline = scope._deadline
        context.runner.deadlines.add(scope._deadline, scope)
    return scope


def _close_scope(scope: trio.CancelScope, exc: BaseException | None) -> BaseException | None:
    """Leave the innermost scope of a task, in which nothing is left, and of which nothing is to be caught."""
    status, task = scope._cancel_status, _trio_run.GLOBAL_RUN_CONTEXT.task
    is_simple = status is not None and task._cancel_status is status and not status.abandoned_by_misnesting
    if status is None or not is_simple or status._children or len(status._tasks) > 1 or status._parent is None:
        return _close_as_trio(scope, exc)
    if exc is not None and status.effectively_cancelled:
        return _close_as_trio(scope, exc)
    task._activate_cancel_status(status._parent)
    status._parent._children.remove(status)
    status._parent = scope._cancel_status = None
    if scope._registered_deadline != math.inf:
        scope._registered_deadline = math.inf
        _trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines._active -= 1
    return exc


class _DeadlineChange:
    """What `CancelScope` has a generator for."""

    __slots__ = ("scope",)

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope = self.scope
        before = scope._registered_deadline
        after = math.inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if before != after:
            scope._registered_deadline = after
            deadlines = _trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if before != math.inf:
                deadlines.remove(before, scope)
            if after != math.inf:
                deadlines.add(after, scope)


def _change_deadline(scope: trio.CancelScope) -> _DeadlineChange:
    return _DeadlineChange(scope)


def _begin_status(status: _trio_run.CancelStatus) -> None:
    """Begin as a child: of a parent that is not cancelled there is nothing to learn."""
    parent = status._parent
    if parent is not None:
        parent._children.add(status)
        if parent.effectively_cancelled or status._scope._cancel_called:
            status.recalculate()
