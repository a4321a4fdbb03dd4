"""Time goes on while the machine is suspended."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kafscale.concurrency import clocks
from kafscale.concurrency.clocks import elapsed


async def test_elapsed_is_trios_time_plus_the_time_the_machine_was_suspended(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep_seconds = 1000.0
    monkeypatch.setattr(clocks, "_asleep_seconds", lambda: asleep_seconds)
    monkeypatch.setattr(clocks, "_asleep", clocks._Asleep(asleep_seconds))
    assert elapsed() == trio.current_time()
    await trio.sleep(10.0)
    asleep_seconds += 1e-6
    assert elapsed() == trio.current_time()
    asleep_seconds += 600.0
    before = elapsed()
    assert before == pytest.approx(trio.current_time() + 600.0)
    asleep_seconds -= 1e-6
    await trio.sleep(10.0)
    assert elapsed() == pytest.approx(before + 10.0)


def test_reading_the_clocks_takes_no_time_for_a_suspension() -> None:
    found = [clocks._Asleep().count() for _ in range(1000)]
    assert found == [0.0] * 1000
