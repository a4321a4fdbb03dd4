from contextlib import suppress
from functools import partial
from random import Random

import pytest
import trio

from kafscale.errors import Conflict, NotFound, SlowDown, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.reach import LATE_SECONDS, PROBES_MAX_COUNT, SILENT_SECONDS, WARNED_SECONDS, Reach
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.faulty_store import FaultyStore, On


@pytest.fixture
def faulty():
    return FaultyStore(MemoryStore())


@pytest.fixture
async def reach(faulty, nursery):
    reach = Reach("the object store s3://events", partial(faulty.head, "probe"))
    nursery.start_soon(reach.run)
    return reach


@pytest.fixture
def retrying(faulty, reach):
    return RetryingStore(faulty, RetryPolicy(), Random(1), StoreMetrics.register(Metrics()), reach)


async def test_a_store_that_hangs_is_silent_and_told_of_before_any_timeout(
    reach, retrying, faulty, nursery, caplog, autojump_clock
):
    gate = faulty.hold(On())
    nursery.start_soon(retrying.put, "key", [b""])
    await trio.sleep(WARNED_SECONDS + 2)
    assert reach.silent_seconds == pytest.approx(WARNED_SECONDS + 2, abs=0.1)
    (message,) = caplog.messages
    assert message.startswith("the object store s3://events has not answered for ")
    assert "look whether it runs" in message
    gate.open()
    await trio.sleep(1.0)
    assert reach.silent_seconds == 0
    assert caplog.messages[1].startswith("the object store s3://events is back after ")


@pytest.mark.parametrize("error", [StoreUnavailable, SlowDown])
async def test_a_store_that_refuses_is_silent_from_the_first_attempt_on(
    reach, retrying, faulty, nursery, error, autojump_clock
):
    faulty.fail(On(), error)
    began = trio.current_time()
    nursery.start_soon(retrying.put, "key", [b""])
    await trio.sleep(20)
    assert reach.silent_seconds == pytest.approx(trio.current_time() - began, abs=0.1)
    faulty.heal()
    await trio.sleep(1.5)
    assert reach.silent_seconds < SILENT_SECONDS
    assert trio.current_time() - reach.answered_at <= 1.5


@pytest.mark.parametrize("error", [NotFound, Conflict])
async def test_any_answer_of_the_store_counts(reach, retrying, faulty, error, autojump_clock):
    faulty.fail(On("put", times=1), error)
    with suppress(error):
        await retrying.put("key", [b""])
    assert reach.answered_at == pytest.approx(trio.current_time(), abs=0.1)
    assert reach.silent_seconds == 0


async def test_one_request_that_takes_long_while_others_are_answered_is_no_silence(
    reach, retrying, faulty, nursery, autojump_clock
):
    faulty.hold(On("put"))
    nursery.start_soon(retrying.put, "key", [b""])
    await trio.sleep(60)
    assert reach.silent_seconds <= SILENT_SECONDS + 1.0
    assert trio.current_time() - reach.answered_at <= SILENT_SECONDS + 1.0
    assert faulty.count("head", "probe") < 60


async def test_probes_that_hang_are_few(reach, retrying, faulty, nursery, autojump_clock):
    faulty.hold(On())
    nursery.start_soon(retrying.put, "key", [b""])
    await trio.sleep(60)
    assert reach._probes_count <= PROBES_MAX_COUNT


async def test_who_waits_to_try_again_does_so_when_the_store_is_back(reach, retrying, faulty, nursery, autojump_clock):
    """After an outage each request waited for up to five seconds more, although others had been answered."""
    faulty.fail(On(), StoreUnavailable)
    done = []

    async def put(key):
        await retrying.put(key, [b""])
        done.append(trio.current_time())

    for number in range(50):
        nursery.start_soon(put, str(number))
    await trio.sleep(30)
    healed_at = trio.current_time()
    faulty.heal()
    await trio.sleep(10)
    assert len(done) == 50
    assert max(done) - healed_at <= 1.0


async def test_a_store_that_says_busy_now_and_then_is_not_asked_sooner_for_the_sake_of_others(
    retrying, faulty, nursery, autojump_clock
):
    faulty.fail(On("put"), SlowDown)
    nursery.start_soon(retrying.put, "key", [b""])
    for _ in range(300):
        await trio.sleep(0.1)
        with pytest.raises(NotFound):
            await retrying.head("other")
    assert faulty.count("put") < 30


async def test_time_in_which_the_process_stood_still_does_not_count(reach, retrying, faulty, nursery, autojump_clock):
    faulty.hold(On())
    nursery.start_soon(retrying.put, "key", [b""])
    await trio.sleep(0.5)
    autojump_clock.jump(100)
    assert reach.silent_seconds <= LATE_SECONDS + 1.0
    await trio.sleep(1.5)  # another look
    assert reach.silent_seconds <= LATE_SECONDS + 2.0
