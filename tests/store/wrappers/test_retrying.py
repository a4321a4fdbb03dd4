import logging
from contextlib import aclosing
from random import Random

import pytest
import trio
import trio.testing

from kafscale.backoff import Backoff
from kafscale.errors import AccessDenied, Conflict, NotFound, PreconditionFailed, SlowDown, StoreError, StoreUnavailable
from kafscale.metrics import Metrics
from kafscale.store.memory import MemoryStore
from kafscale.store.wrappers.limiter import LimitedStore, StoreLimiter
from kafscale.store.wrappers.metered import StoreMetrics
from kafscale.store.wrappers.retrying import RetryingStore, RetryPolicy
from kafscale.testing.faulty_store import FaultyStore, On


@pytest.fixture
def metrics():
    return StoreMetrics.register(Metrics())


@pytest.fixture
def memory():
    return MemoryStore()


@pytest.fixture
def faulty(memory):
    return FaultyStore(memory)


@pytest.fixture
def retrying(faulty, metrics):
    return RetryingStore(faulty, RetryPolicy(), Random(1), metrics)


async def content(store, key):
    return bytes((await store.get(key)).data)


@pytest.mark.parametrize("error", [SlowDown, StoreUnavailable, Conflict])
async def test_transient_errors_are_retried(retrying, faulty, memory, metrics, error, autojump_clock):
    faulty.fail(On(times=3), error)
    await retrying.put("key", [b"data"])
    assert await content(memory, "key") == b"data"
    assert faulty.count("put") == 4
    assert sum(counter.value for counter in metrics.retries.children.values()) == 3


@pytest.mark.parametrize("error", [NotFound, PreconditionFailed, AccessDenied])
async def test_a_definite_answer_is_not_retried(retrying, faulty, error, autojump_clock):
    faulty.fail(On("put_if_absent"), error)
    with pytest.raises(error):
        await retrying.put_if_absent("key", [b"data"])
    assert faulty.count() == 1


async def test_every_operation_is_retried(retrying, faulty, autojump_clock):
    faulty.fail(On("*", "key", times=1), SlowDown)
    etag = await retrying.put_if_absent("key", [b"0123456789"])
    operations = {
        "get": lambda: retrying.get("key"),
        "get_range": lambda: retrying.get_range("key", 1, 1),
        "get_tail": lambda: retrying.get_tail("key", 3),
        "head": lambda: retrying.head("key"),
        "put_if_match": lambda: retrying.put_if_match("key", [b"new"], etag),
        "delete": lambda: retrying.delete(["key"]),
    }
    for name, operation in operations.items():
        faulty.fail(On(name, "key", times=1), SlowDown)
        await operation()
        assert faulty.count(name) == 2, name


async def test_retries_end_at_the_deadline_with_the_last_error(retrying, faulty, autojump_clock):
    started = trio.current_time()
    faulty.fail(On(), SlowDown)
    with pytest.raises(SlowDown):
        await retrying.get("key")
    assert 50 < trio.current_time() - started <= 60
    assert 12 < faulty.count() < 100


def test_delays_double_up_to_the_longest_and_are_spread_over_their_whole_range():
    policy = RetryPolicy(backoff=Backoff(0.1, 2.0))
    random = Random(7)
    for retries_count, longest in ((0, 0.1), (1, 0.2), (4, 1.6), (5, 2.0), (1_000_000, 2.0)):
        delays = [policy.delay_seconds(retries_count, random) for _ in range(300)]
        assert max(delays) <= longest
        assert max(delays) > 0.9 * longest
        assert min(delays) < 0.1 * longest


@pytest.mark.parametrize("error", [StoreUnavailable, Conflict])
async def test_a_put_if_absent_with_a_lost_reply_is_recognised_as_successful(
    retrying, faulty, memory, metrics, error, autojump_clock
):
    faulty.lose_reply(On("put_if_absent", times=1))
    faulty.fail(On("put_if_absent", skip=1, times=2), error)  # and some trouble before it is found out
    etag = await retrying.put_if_absent("key", [b"one", b"", bytearray(b"two")])
    assert etag == (await memory.head("key")).etag
    assert metrics.lost_replies.of("ours").value == 1


async def test_a_put_if_match_with_a_lost_reply_is_recognised_as_successful(retrying, faulty, memory, autojump_clock):
    before = await memory.put("key", [b"before"])
    faulty.lose_reply(On("put_if_match", times=1))
    etag = await retrying.put_if_match("key", [b"after"], before)
    assert etag == (await memory.head("key")).etag != before


@pytest.mark.parametrize("theirs", [b"their", b"other size", b""])
async def test_after_a_lost_reply_the_object_of_another_is_not_taken_for_ours(
    retrying, faulty, memory, metrics, theirs, autojump_clock
):
    """The first attempt never arrived, and somebody else was there before the second."""
    gate = faulty.hold(On("put_if_absent", skip=1, times=1))
    faulty.fail(On("put_if_absent", times=1), StoreUnavailable)

    async with trio.open_nursery() as nursery:

        async def write():
            with pytest.raises(PreconditionFailed):
                await retrying.put_if_absent("key", [b"ou", b"rs!"])

        nursery.start_soon(write)
        await gate.wait_arrived()
        await memory.put("key", [theirs])
        gate.open()
    assert await content(memory, "key") == theirs
    assert metrics.lost_replies.of("not_ours").value == 1


async def test_an_object_deleted_after_a_lost_reply_counts_as_not_written(retrying, faulty, memory, autojump_clock):
    faulty.lose_reply(On("put_if_absent", times=1))

    async def delete(call):
        await memory.delete(call.keys)

    faulty.rule(On("head"), delete)
    with pytest.raises(PreconditionFailed):
        await retrying.put_if_absent("key", [b"ours"])


async def test_an_object_replaced_while_read_back_counts_as_not_written(retrying, faulty, memory, autojump_clock):
    faulty.lose_reply(On("put_if_absent", times=1))

    async def replace(call):
        await memory.put("key", [b"same"])

    faulty.rule(On("get_range"), replace)
    with pytest.raises(PreconditionFailed):
        await retrying.put_if_absent("key", [b"same"])


async def test_a_refusal_without_a_lost_reply_is_believed_even_of_equal_bytes(retrying, faulty, memory, autojump_clock):
    await memory.put("key", [b"same"])
    faulty.fail(On("put_if_absent", times=1), SlowDown)  # says that it has not been done
    with pytest.raises(PreconditionFailed):
        await retrying.put_if_absent("key", [b"same"])
    assert faulty.count("head") == faulty.count("get*") == 0


@pytest.mark.parametrize("error", [SlowDown, Conflict, AccessDenied])
async def test_an_undecided_write_never_raises_an_error_that_means_not_written(
    retrying, faulty, memory, error, autojump_clock
):
    faulty.lose_reply(On("put_if_absent", times=1))
    faulty.fail(On("put_if_absent", skip=1), error)
    with pytest.raises(StoreUnavailable, match="no reply") as caught:
        await retrying.put_if_absent("key", [b"data"])
    assert isinstance(caught.value.__cause__, error)
    assert await content(memory, "key") == b"data"


async def test_trouble_while_reading_back_is_tried_again(retrying, faulty, autojump_clock):
    faulty.lose_reply(On("put_if_absent", times=1))
    faulty.fail(On("head", times=1), SlowDown)
    faulty.fail(On("get_range", times=2), StoreUnavailable)
    await retrying.put_if_absent("key", [b"data"])


async def test_a_write_that_cannot_be_read_back_stays_undecided(retrying, faulty, autojump_clock):
    faulty.lose_reply(On("put_if_absent", times=1))
    faulty.fail(On("head"), SlowDown)
    with pytest.raises(StoreUnavailable):
        await retrying.put_if_absent("key", [b"data"])


@pytest.mark.parametrize("at", [None, 0, 6, 7, 50, 99])
async def test_large_objects_are_read_back_piece_by_piece(retrying, faulty, memory, monkeypatch, at, autojump_clock):
    """Parts, ranges and compared pieces end at different places; a difference at any place is found."""
    monkeypatch.setattr("kafscale.store.wrappers.retrying.READ_BACK_BYTES", 7)
    monkeypatch.setattr("kafscale.store.wrappers.retrying.COMPARED_BYTES", 4)
    ours = bytes(range(100))
    theirs = bytearray(ours)
    if at is not None:
        theirs[at] ^= 1
    await memory.put("key", [theirs])
    faulty.fail(On("put_if_absent", times=1), StoreUnavailable)
    write = retrying.put_if_absent("key", [ours[:1], ours[1:1], ours[1:40], memoryview(ours)[40:]])
    if at is None:
        await write
        assert faulty.count("get_range") == 15
    else:
        with pytest.raises(PreconditionFailed):
            await write


@pytest.mark.parametrize("seed", range(40))
async def test_at_most_one_of_several_writers_over_a_bad_store_wins(seed, autojump_clock):
    memory, random = MemoryStore(), Random(seed)
    winners, undecided = [], []

    async def write(number):
        faulty = FaultyStore(memory, random)
        faulty.unreliable(0.6)
        store = RetryingStore(faulty, RetryPolicy(deadline_seconds=3), random, StoreMetrics.register(Metrics()))
        try:
            await store.put_if_absent("key", [b"writer %d" % number])
            winners.append(b"writer %d" % number)
        except StoreUnavailable:
            undecided.append(b"writer %d" % number)
        except StoreError:
            pass

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(write, number)
    assert len(winners) <= 1
    try:
        stored = await content(memory, "key")
    except NotFound:
        assert not winners
    else:
        assert winners in ([stored], [])
        assert stored in winners + undecided


async def test_a_retried_listing_continues_after_the_last_page(retrying, faulty, memory, autojump_clock):
    keys = [f"{number:05d}" for number in range(2500)]
    for key in keys:
        await memory.put(key, [])
    for skip in (0, 1, 2, 3):
        faulty.fail(On("list", skip=skip, times=1), StoreUnavailable)
        faulty.lose_reply(On("list", skip=skip, times=1))
        async with aclosing(retrying.list("0", start_after="00001")) as pages:
            assert [info.key async for page in pages for info in page] == keys[2:]
        faulty.heal()


async def test_backoff_holds_no_token(faulty, metrics, autojump_clock):
    store = RetryingStore(LimitedStore(faulty, StoreLimiter(1, metrics)), RetryPolicy(), Random(0), metrics)
    faulty.fail(On("put", "broken"), SlowDown)
    async with trio.open_nursery() as nursery:

        async def fail():
            with pytest.raises(SlowDown):
                await store.put("broken", [b""])

        nursery.start_soon(fail)
        await trio.sleep(30)
        assert faulty.count("put", "broken") > 5
        with trio.fail_after(0.5):
            await store.put("sound", [b""])


async def test_a_cancelled_backoff_ends_at_once(retrying, faulty, autojump_clock):
    faulty.fail(On(), SlowDown)
    with trio.move_on_after(10) as scope:
        await retrying.get("key")
    assert scope.cancelled_caught
    assert trio.current_time() - scope.deadline < 0.01


async def test_a_lasting_outage_is_logged_at_its_start_and_its_end(retrying, faulty, caplog, autojump_clock):
    caplog.set_level(logging.INFO, "kafscale.store.wrappers.reach")
    await retrying.put("key", [b""])
    faulty.fail(On(times=2), SlowDown)
    await retrying.head("key")
    assert caplog.messages == []  # now and then is no outage

    faulty.fail(On(), StoreUnavailable)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(retrying.get, "key")
        await trio.sleep(20)
        [message] = caplog.messages
        assert message.startswith("the object store has not answered for ")
        assert "injected into get of key" in message
        faulty.heal()
    [_, message] = caplog.messages
    assert message.startswith("the object store is back after 2")

    with pytest.raises(NotFound):
        await retrying.head("missing")  # an answer
    assert len(caplog.messages) == 2
