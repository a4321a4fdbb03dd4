from random import Random

import pytest
import trio
import trio.testing

from kafscale.errors import NotFound, PreconditionFailed, SlowDown, StoreError, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.hedging import LEAST_COUNT, LEAST_DELAY_SECONDS, RECENT_COUNT, HedgingStore, RecentSeconds
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter, WorkClass
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.faulty_store import FaultyStore, On


class Rig:
    """The wrappers as the broker has them, over a store that takes 20 ms, after some uploads."""

    def __init__(self, concurrency=4, memory=None, random=None):
        self.metrics = StoreMetrics.register(Metrics())
        self.memory = memory or MemoryStore()
        self.faulty = FaultyStore(self.memory, random or Random(0))
        self.limiter = StoreLimiter(concurrency, self.metrics)
        self.hedging = HedgingStore(self.faulty, self.limiter, self.metrics, percent=99)
        self.store = LimitedStore(self.hedging, self.limiter)
        self.retrying = RetryingStore(self.store, RetryPolicy(), Random(1), self.metrics)

    async def warm_up(self):
        for number in range(LEAST_COUNT):
            await self.hedging.put_if_absent(f"before/{number}", [b"data"])
        self.faulty.calls.clear()
        return self

    def hedges(self):
        return {labels[0]: counter.value for labels, counter in self.metrics.hedges.children.items()}


async def content(store, key):
    return bytes((await store.get(key)).data)


async def test_a_slow_upload_gets_a_second_attempt_and_the_faster_one_counts(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.hold(On("put_if_absent", times=1))
    started = trio.current_time()
    etag = await rig.store.put_if_absent("key", [b"data"])
    assert trio.current_time() - started == pytest.approx(LEAST_DELAY_SECONDS)
    assert etag == (await rig.memory.head("key")).etag
    assert rig.hedges() == {"started": 1, "won": 1}
    assert rig.limiter.statistics().in_use_count == 0


async def test_the_first_attempt_can_still_win_after_a_hedge_started(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.hold(On("put_if_absent", skip=1))
    rig.faulty.delay(On("put_if_absent", times=1), LEAST_DELAY_SECONDS + 0.01)
    await rig.store.put_if_absent("key", [b"data"])
    assert rig.hedges() == {"started": 1}
    assert await content(rig.memory, "key") == b"data"


async def test_a_request_below_the_delay_is_not_hedged(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent"), LEAST_DELAY_SECONDS - 0.01)
    await rig.store.put_if_absent("key", [b"data"])
    assert rig.faulty.count("put_if_absent") == 1
    assert rig.hedges() == {}


async def test_the_hedging_delay_follows_recent_requests_of_similar_size(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent", "large*"), 1.0)
    for number in range(LEAST_COUNT):
        await rig.store.put_if_absent(f"large/{number}", [bytes(100_000)])
    assert rig.hedges() == {}  # as nothing was known of such sizes
    rig.faulty.heal()
    rig.faulty.delay(On("put_if_absent", times=1), 3.0)
    started = trio.current_time()
    await rig.store.put_if_absent("large/last", [bytes(120_000)])
    assert trio.current_time() - started == pytest.approx(1.0)
    assert rig.hedges() == {"started": 1, "won": 1}


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_second_attempt_needs_a_free_token(concurrency, autojump_clock):
    rig = await Rig(concurrency).warm_up()
    rig.faulty.delay(On("put_if_absent", times=1), 5.0)
    if concurrency == 2:
        await rig.limiter.acquire(WorkClass.FETCH)
    started = trio.current_time()
    await rig.store.put_if_absent("key", [b"data"])
    assert trio.current_time() - started == pytest.approx(5.0)
    assert rig.hedges() == {"no_place": 1}


@pytest.mark.parametrize("write", ["put", "put_if_match"])
async def test_other_writes_are_never_attempted_twice(write, autojump_clock):
    rig = await Rig().warm_up()
    etag = await rig.memory.put("key", [b"before"])
    rig.faulty.delay(On("put*"), 5.0)
    arguments = ["key", [b"data"]] + ([etag] if write == "put_if_match" else [])
    await getattr(rig.store, write)(*arguments)
    assert rig.faulty.count("put*") == 1


async def test_a_second_attempt_refused_because_the_first_succeeded_raises_nothing(autojump_clock):
    """The first has taken effect, and its reply hangs: the second is refused."""
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent", times=1), 30.0, after_effect=True)
    started = trio.current_time()
    etag = await rig.store.put_if_absent("key", [b"da", b"ta"])
    assert trio.current_time() - started < 1
    assert etag == (await rig.memory.head("key")).etag
    assert rig.faulty.count("put_if_absent") == 2
    assert rig.limiter.statistics().in_use_count == 0


async def test_a_first_attempt_refused_because_the_second_succeeded_raises_nothing(autojump_clock):
    """The second takes effect first, and its reply hangs."""
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent", times=1), LEAST_DELAY_SECONDS + 0.02)
    rig.faulty.delay(On("put_if_absent", times=1), 30.0, after_effect=True)
    etag = await rig.store.put_if_absent("key", [b"data"])
    assert etag == (await rig.memory.head("key")).etag


@pytest.mark.parametrize("theirs", [b"them", b"of another size"])
async def test_the_object_of_another_is_not_taken_for_ours(theirs, autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.hold(On("put_if_absent", times=1))
    async with trio.open_nursery() as nursery:

        async def write():
            with pytest.raises(PreconditionFailed):
                await rig.store.put_if_absent("key", [b"ours"])

        nursery.start_soon(write)
        await trio.sleep(LEAST_DELAY_SECONDS / 2)
        await rig.memory.put("key", [theirs])
    assert await content(rig.memory, "key") == theirs


async def test_a_refusal_without_a_second_attempt_is_not_looked_into(autojump_clock):
    rig = await Rig().warm_up()
    await rig.memory.put("key", [b"data"])
    with pytest.raises(PreconditionFailed):
        await rig.store.put_if_absent("key", [b"data"])
    assert rig.faulty.count("head") == 0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (SlowDown, StoreUnavailable, StoreUnavailable),
        (StoreUnavailable, SlowDown, StoreUnavailable),
        (SlowDown, SlowDown, SlowDown),
        (SlowDown, None, None),
        (StoreUnavailable, None, None),
    ],
)
async def test_one_success_is_enough_and_doubt_outweighs_a_no(first, second, expected, autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent", times=1), LEAST_DELAY_SECONDS + 0.02)
    rig.faulty.delay(On("put_if_absent", times=1), 0.04)  # so the first ends first
    rig.faulty.fail(On("put_if_absent", times=1), first)
    if second:
        rig.faulty.fail(On("put_if_absent", times=1), second)
    if expected is None:
        await rig.store.put_if_absent("key", [b"data"])
        assert await content(rig.memory, "key") == b"data"
    else:
        with pytest.raises(expected):
            await rig.store.put_if_absent("key", [b"data"])
    assert rig.faulty.count("put_if_absent") == 2
    assert rig.limiter.statistics().in_use_count == 0


async def test_a_second_attempt_that_fails_spoils_nothing(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent", times=1), LEAST_DELAY_SECONDS + 0.02)
    rig.faulty.fail(On("put_if_absent", times=1), StoreUnavailable)
    await rig.store.put_if_absent("key", [b"data"])
    assert rig.hedges() == {"started": 1}


async def test_an_error_before_the_delay_is_raised_at_once(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.fail(On("put_if_absent"), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await rig.store.put_if_absent("key", [b"data"])
    assert rig.faulty.count("put_if_absent") == 1
    rig.faulty.heal()
    with pytest.raises(ValueError, match="key"):
        await rig.store.put_if_absent("..", [b"data"])


async def test_a_write_that_reading_back_leaves_undecided_is_settled_by_a_retry(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.delay(On("put_if_absent", times=1), 30.0, after_effect=True)
    rig.faulty.fail(On("head", times=1), SlowDown)
    etag = await rig.retrying.put_if_absent("key", [b"data"])
    assert etag == (await rig.memory.head("key")).etag
    assert rig.faulty.count("put_if_absent") == 3
    assert rig.metrics.lost_replies.of("ours").value == 1


async def test_a_cancel_ends_both_attempts(autojump_clock):
    rig = await Rig().warm_up()
    rig.faulty.hold(On("put_if_absent"))
    with trio.move_on_after(10):
        await rig.store.put_if_absent("key", [b"data"])
    assert rig.faulty.count("put_if_absent") == 2
    assert rig.limiter.statistics().in_use_count == 0


@pytest.mark.parametrize("seed", range(40))
async def test_at_most_one_of_several_hedging_writers_over_a_bad_store_wins(seed, autojump_clock):
    memory, random = MemoryStore(), Random(seed)
    winners, undecided, hedges = [], [], 0

    async def write(number):
        nonlocal hedges
        rig = await Rig(memory=MemoryStore(), random=random).warm_up()
        rig.faulty.store = memory
        rig.faulty.unreliable(0.5, delay_seconds=0.2)
        ours = b"w %02d" % number
        try:
            await rig.retrying.put_if_absent("key", [ours])
            winners.append(ours)
        except StoreUnavailable:
            undecided.append(ours)
        except StoreError:
            pass
        hedges += rig.hedges().get("started", 0)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(write, number)
    assert hedges > 0
    assert len(winners) <= 1
    try:
        stored = await content(memory, "key")
    except NotFound:
        assert not winners
    else:
        assert winners in ([stored], [])
        assert stored in winners + undecided


def test_the_percentile_is_that_of_the_recent_ones():
    recent = RecentSeconds()
    for _ in range(LEAST_COUNT - 1):
        recent.add(1.0)
    assert recent.percentile(99) == float("inf")
    recent.add(7.0)
    assert (recent.percentile(50), recent.percentile(99)) == (1.0, 7.0)
    for number in range(RECENT_COUNT):
        recent.add(float(number))
    assert recent.percentile(99) == float(RECENT_COUNT * 99 // 100)
    assert (recent.percentile(0), recent.percentile(50)) == (0.0, float(RECENT_COUNT // 2))
