"""Why a broker has ended: the bucket decides, whatever errors came first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.start.claim import LeadCheck, cause_of_end
from kafscale.errors import DeclaredDead, Fenced, StorageFailed, StoreUnavailable

DEAD = DeclaredDead("broker 1 was declared dead by the others")
SUPERSEDED = Fenced("broker 1 was started elsewhere")
FENCE = Fenced("the stream has a fence")
BROKEN = StorageFailed("no disk")
BUG = ZeroDivisionError("a bug")


@attrs.define(eq=False, kw_only=True)
class ScriptedCheck(LeadCheck):
    """Finds in turn what a test says, and then goes on with the last of that."""

    findings: Iterator[Exception | None]
    may_start_anew: bool = True
    looks_count: int = 0

    async def look_once(self) -> None:
        await trio.lowlevel.checkpoint()
        self.looks_count += 1
        found = next(self.findings)
        if found is not None:
            raise found


def check_that_finds(*findings: Exception | None) -> ScriptedCheck:
    return ScriptedCheck(findings=iter(findings))


def lone_check_that_finds(*findings: Exception | None) -> ScriptedCheck:
    return ScriptedCheck(findings=iter(findings), may_start_anew=False)


def group(*errors: Exception) -> ExceptionGroup:
    return ExceptionGroup("nursery", [ExceptionGroup("nursery", errors)])


def never() -> bool:
    return False


@pytest.mark.parametrize("error", [group(BROKEN), group(BROKEN, FENCE), group(FENCE), BROKEN, group(BROKEN, BUG)])
async def test_a_broker_declared_dead_restarts_after_any_error(error: Exception) -> None:
    assert await cause_of_end(check_that_finds(DEAD), error, never) is DEAD


async def test_a_bug_in_a_restarting_broker_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await cause_of_end(check_that_finds(DEAD), group(FENCE, BUG), never)
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.parametrize("check", [check_that_finds, lone_check_that_finds])
async def test_a_replaced_broker_reports_supersession_rather_than_later_errors(
    check: Callable[[Exception | None], ScriptedCheck],
) -> None:
    assert await cause_of_end(check(SUPERSEDED), group(BROKEN, FENCE), never) is SUPERSEDED
    assert await cause_of_end(check(None), group(BROKEN, FENCE), never) is FENCE


async def test_a_fenced_lone_broker_asks_once() -> None:
    check = lone_check_that_finds(StoreUnavailable("no connection"))
    assert await cause_of_end(check, group(FENCE), never) is FENCE
    assert check.looks_count == 1


@pytest.mark.parametrize("finding", [None, SUPERSEDED])
async def test_a_bug_of_a_broker_that_ends_keeps_its_traceback(finding: Exception | None) -> None:
    error = group(FENCE, BUG)
    assert await cause_of_end(check_that_finds(finding), error, never) is error


async def test_a_broker_with_a_failed_disk_checks_its_claim_once() -> None:
    for finding in (None, StoreUnavailable("no connection"), StorageFailed("no disk either")):
        error = group(BROKEN)
        check = check_that_finds(finding)
        assert await cause_of_end(check, error, never) is error
        assert check.looks_count == 1


async def test_a_fenced_broker_asks_until_the_bucket_answers(autojump_clock: MockClock) -> None:
    check = check_that_finds(*[StoreUnavailable("no connection")] * 100, DEAD)
    assert await cause_of_end(check, group(FENCE), never) is DEAD


async def test_a_fenced_broker_stops_checking_its_claim_when_stopped(autojump_clock: MockClock) -> None:
    stopping = trio.Event()
    check = check_that_finds(*[StoreUnavailable("no connection")] * 100)

    async def stop() -> None:
        await trio.sleep(3.0)
        stopping.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        assert await cause_of_end(check, group(FENCE), stopping.is_set) is FENCE
    assert trio.current_time() < 10.0


async def test_a_bucket_that_does_not_answer_keeps_no_broker_from_ending(autojump_clock: MockClock) -> None:
    class SilentCheck(LeadCheck):
        may_start_anew = True

        async def look_once(self) -> None:
            await trio.sleep_forever()

    error = group(BROKEN)
    with trio.fail_after(5.0):
        assert await cause_of_end(SilentCheck(), error, never) is error
