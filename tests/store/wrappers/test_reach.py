from contextlib import suppress
from functools import partial
from random import Random

import pytest
import trio

from kafscale.errors import Conflict, NotFound, SlowDown, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.base import ForwardingStore
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


async def test_a_hanging_store_is_logged_as_silent_before_any_timeout(
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


async def test_one_slow_request_among_answered_requests_is_not_silence(
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


async def test_waiting_retries_start_at_once_when_the_store_is_back(reach, retrying, faulty, nursery, autojump_clock):
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


async def test_answers_to_other_requests_do_not_shorten_the_wait_after_slow_down(
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


@pytest.mark.parametrize("has_taken_effect", [False, True])
async def test_a_write_dropped_by_a_silent_store_is_resent_when_the_store_is_back(
    reach, faulty, nursery, has_taken_effect, autojump_clock
):
    """It hung until --store-timeout: 30 s without acknowledgements for an outage of 5 s."""
    sent: list[str] = []

    class Forgetful(ForwardingStore):
        async def put_if_absent(self, key, parts):
            sent.append(key)
            if len(sent) == 1:
                if has_taken_effect:
                    await self.store.put_if_absent(key, parts)
                await trio.sleep_forever()
            return await self.store.put_if_absent(key, parts)

    store = RetryingStore(Forgetful(faulty), RetryPolicy(), Random(1), StoreMetrics.register(Metrics()), reach)
    gate = faulty.hold(On("head"))
    began = trio.current_time()
    with trio.fail_after(10):
        async with trio.open_nursery() as waiting:
            waiting.start_soon(store.put_if_absent, "key", [b"data"])
            await trio.sleep(5)
            gate.open()
    assert len(sent) == 2
    assert trio.current_time() - began < 8
    assert bytes((await faulty.get("key")).data) == b"data"


async def test_a_write_that_takes_long_is_left_alone_while_the_store_answers(
    reach, retrying, faulty, nursery, autojump_clock
):
    gate = faulty.hold(On("put"))
    nursery.start_soon(retrying.put, "key", [b""])
    await trio.sleep(60)
    assert faulty.count("put") == 1
    gate.open()


async def test_a_write_that_is_slow_after_each_of_many_silences_ends(reach, faulty, autojump_clock):
    """The patience with it grows; were it always the same, it would be cut off each time."""
    attempts: list[float] = []

    class Slow(ForwardingStore):
        async def put(self, key, parts):
            attempts.append(trio.current_time())
            await trio.sleep(9)
            return await self.store.put(key, parts)

    store = RetryingStore(
        Slow(faulty), RetryPolicy(deadline_seconds=300), Random(1), StoreMetrics.register(Metrics()), reach
    )
    faulty.delay(On("head"), 1.9)
    await store.put("key", [b"data"])
    assert 1 < len(attempts) < 6
