"""What strangers can cause is logged a few times, and then counted."""

from __future__ import annotations

import logging

import pytest
import trio

from kafscale.server.quiet_log import LINES_MAX_COUNT, PERIOD_SECONDS, QuietLog


@pytest.fixture
def quiet(autojump_clock: trio.testing.MockClock) -> QuietLog:
    return QuietLog(logging.getLogger("kafscale.test"))


async def test_repeated_lines_of_a_kind_are_suppressed_and_counted(
    quiet: QuietLog, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(1000):
        quiet.tell("bad input", "line %d", number)
    quiet.tell("another kind", "is heard")
    assert caplog.messages == [*(f"line {number}" for number in range(LINES_MAX_COUNT)), "is heard"]
    caplog.clear()
    await trio.sleep(PERIOD_SECONDS)
    quiet.sum_up()
    quiet.sum_up()
    assert caplog.messages == [f"bad input: {1000 - LINES_MAX_COUNT} more, not shown"]
    quiet.tell("bad input", "again")
    assert caplog.messages[-1] == "again"


async def test_the_next_line_reports_the_number_of_suppressed_lines(
    quiet: QuietLog, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(LINES_MAX_COUNT + 1):
        quiet.tell("bad input", "one")
    await trio.sleep(PERIOD_SECONDS)
    quiet.tell("bad input", "two")
    assert caplog.messages[-2:] == ["bad input: 1 more, not shown", "two"]
