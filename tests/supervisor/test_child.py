"""One broker of a supervisor: when it is started again, and when that is the end of it. On a clock that jumps."""

from __future__ import annotations

import errno
import io
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kafscale.config import Address, load
from kafscale.supervisor.child import Child, Reached
from kafscale.supervisor.plans import BrokerPlan, plan_brokers

READY = "kafscale is ready: kafka 127.0.0.1:4711 admin 127.0.0.1:4712"


@attrs.define(eq=False)
class Life:
    """A process that says something, and ends after some time or by a signal."""

    code: int = -signal.SIGKILL
    seconds: float = 1.0
    says: str = READY
    logs: str = ""
    ignores: Sequence[signal.Signals] = ()
    pid: int = 1
    output: trio.testing.MemoryReceiveStream = attrs.field(factory=trio.testing.MemoryReceiveStream, init=False)
    errors: trio.testing.MemoryReceiveStream = attrs.field(factory=trio.testing.MemoryReceiveStream, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.output.put_data(f"{self.says}\n".encode())
        self.errors.put_data(self.logs.encode())
        self.errors.put_eof()

    async def wait(self) -> int:
        with trio.move_on_after(self.seconds):
            await self._ended.wait()
        self.output.put_eof()
        return self.code

    def send_signal(self, number: signal.Signals) -> None:
        if number not in self.ignores:
            self.code = 0 if number == signal.SIGTERM else -number
            self._ended.set()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Lives:
    """What is launched one behind the other, and when; the last one again and again."""

    lives: Sequence[Callable[[], Life]]
    began: list[float] = attrs.field(factory=list, init=False)
    plans: list[BrokerPlan] = attrs.field(factory=list, init=False)

    def launch(self, plan: BrokerPlan) -> Life:
        self.plans.append(plan)
        self.began.append(round(trio.current_time(), 3))
        return self.lives[min(len(self.began), len(self.lives)) - 1]()


def made(*lives: Callable[[], Life], listen: str = "127.0.0.1:0") -> tuple[Lives, Child]:
    launched = Lives(lives)
    plan = plan_brokers(load({"listeners": (listen,), "broker_id": "3"}, {}), 2)[0]
    return launched, Child(plan, launched.launch)


async def test_a_child_that_keeps_dying_early_has_to_wait(autojump_clock: MockClock) -> None:
    lives, child = made(Life)
    began = trio.current_time()
    with trio.move_on_after(60):
        await child.run()
    gaps = [round(later - former - 1, 3) for former, later in pairwise(lives.began)]
    assert gaps[:10] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert len(gaps) <= child.restarts_count <= len(gaps) + 1
    assert lives.began[0] == began


async def test_a_child_that_lived_long_restarts_at_once(autojump_clock: MockClock) -> None:
    lives, child = made(Life, Life, Life, lambda: Life(seconds=100), lambda: Life(seconds=1000))
    with trio.move_on_after(500):
        await child.run()
    assert lives.began[4] - lives.began[3] == 100


@pytest.mark.parametrize("code", [1, 2])
async def test_a_child_that_never_started_is_not_restarted(autojump_clock: MockClock, code: int) -> None:
    lives, child = made(lambda: Life(code=code, says="", logs="kafscale: no\n"))
    assert await child.run() == code
    assert len(lives.began) == 1


@pytest.mark.parametrize("code", [1, 2])
async def test_a_child_that_was_ready_is_restarted_after_any_exit(autojump_clock: MockClock, code: int) -> None:
    lives, child = made(Life, lambda: Life(code=code, says=""), lambda: Life(seconds=1000))
    with trio.move_on_after(100):
        await child.run()
    assert len(lives.began) == 3


async def test_a_broker_that_dies_before_it_is_ready_is_restarted(autojump_clock: MockClock) -> None:
    lives, child = made(lambda: Life(says=""), lambda: Life(seconds=1000))
    with trio.move_on_after(100):
        await child.run()
    assert len(lives.began) == 2


async def test_a_broker_that_is_down_has_no_address_and_restarts_on_its_port(autojump_clock: MockClock) -> None:
    lives, child = made(Life)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.run)
        await trio.sleep(0.5)
        assert child.reached == Reached(listeners=[Address("127.0.0.1", 4711)], admin=Address("127.0.0.1", 4712))
        await trio.sleep(1.55)  # two lives, and in the pause behind them
        assert child.reached is None
        nursery.cancel_scope.cancel()
    assert [str(each.settings.listeners[0].address) for each in lives.plans] == ["127.0.0.1:0", "127.0.0.1:4711"]


async def test_a_stop_ends_a_life_and_a_pause(autojump_clock: MockClock) -> None:
    for seconds in (0.5, 2.05):
        _, child = made(Life)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.run)
            await trio.sleep(seconds)
            child.stop()
            began = trio.current_time()
        assert trio.current_time() == began
        assert not child.is_running


async def test_a_process_that_can_not_be_made_is_tried_again(autojump_clock: MockClock) -> None:
    def none_left() -> Life:
        raise BlockingIOError("no more processes")

    lives, child = made(Life, none_left, none_left, lambda: Life(seconds=1000))
    with trio.move_on_after(100):
        await child.run()
    assert len(lives.began) == 4
    _, child = made(none_left)
    assert await child.run() == 1


async def test_log_lines_of_a_broker_are_forwarded_with_its_id(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    _, child = made(lambda: Life(code=2, says="what", logs='2026 INFO: x\n{"level": "info"}\nlast'))
    await child.run()
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "broker 3: 2026 INFO: x",
        "broker 3: last",
        "broker 3: what",
        '{"broker": 3, "level": "info"}',
    ]


async def test_a_log_that_takes_no_more_ends_no_broker(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the supervisor's log was full: it ended, and all of its brokers with it."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    _, child = made(lambda: Life(code=2, says="what", logs="2026 INFO: x\n"))
    assert await child.run() == 2


def test_a_ready_line_is_read_with_all_listeners() -> None:
    text = "kafscale is ready: kafka 127.0.0.1:1 admin [::1]:2 127.0.0.1:3 0.0.0.0:4"
    found = Reached.parse(text)
    assert found is not None
    assert [str(each) for each in found.listeners] == ["127.0.0.1:1", "127.0.0.1:3", "0.0.0.0:4"]
    assert str(found.admin) == "[::1]:2"
    assert Reached.parse("kafscale is ready") is None
