from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.start.claim import (
    LATELY_SECONDS,
    WATCH_SECONDS,
    Claim,
    ClaimCheck,
    Claimed,
    check_claim,
    claim,
    claim_key,
    give_back,
    settle,
    watch_claim,
)
from kafscale.errors import DamagedObject, Fenced, PreconditionFailed, StoreUnavailable
from kafscale.store.base import ObjectStore
from kafscale.store.memory import MemoryStore
from kafscale.testing.faulty_store import FaultyStore, On, StoreCall


def wanted(directory_id: str = "a", *, epoch: int = 0, wal: bool = True) -> Claim:
    return Claim(epoch=epoch, broker_id=0, directory_id=directory_id, acknowledges_locally=wal)


async def claimed(store: ObjectStore, new: Claim | None = None, *, least: int = 0) -> Claimed:
    async def least_epoch() -> int:
        return least

    return await claim(store, "default", new or wanted(), least_epoch=least_epoch)


async def test_each_claim_has_the_next_epoch() -> None:
    store = MemoryStore()
    assert [(await claimed(store)).claim.epoch for _ in range(3)] == [0, 1, 2]


async def test_a_claim_takes_an_epoch_above_all_in_the_metadata_and_the_bucket() -> None:
    store = MemoryStore()
    assert (await claimed(store, wanted(epoch=7))).claim.epoch == 7
    assert (await claimed(store, wanted(epoch=3))).claim.epoch == 8
    await store.delete([claim_key("default")])
    assert (await claimed(store, wanted(epoch=3), least=9)).claim.epoch == 9


async def test_concurrent_claims_get_distinct_epochs(autojump_clock) -> None:
    store = FaultyStore(MemoryStore())
    store.delay(On(), 0.0, jitter_seconds=0.01)
    epochs: list[int] = []

    async def start(name: str) -> None:
        epochs.append((await claimed(store, wanted(name))).claim.epoch)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(start, str(number))
    assert sorted(epochs) == list(range(10))


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        (wanted("a"), wanted("b"), True),
        (wanted("a"), wanted("b", wal=False), True),
        (wanted("a"), wanted("a"), False),
        (wanted("a", wal=False), wanted("b"), False),
    ],
)
async def test_only_another_directory_that_acknowledges_locally_is_waited_for(
    before: Claim, after: Claim, waits: bool
) -> None:
    store = MemoryStore()
    assert not (await claimed(store, before)).must_wait
    found = await claimed(store, after)
    assert found.previous == before
    assert found.must_wait is waits


async def test_a_start_waits_for_brokers_that_a_failed_start_left_unsettled() -> None:
    store = MemoryStore()
    for name, unsettled in (("a", ()), ("b", ("a",)), ("b", ("a",)), ("c", ("a", "b")), ("a", ("b", "c"))):
        found = await claimed(store, wanted(name))
        assert found.claim.unsettled == unsettled
        assert found.must_wait is bool(unsettled)
    await settle(store, "default", found.claim)
    assert not (await claimed(store, wanted("a"))).must_wait
    assert (await claimed(store, wanted("b"))).claim.unsettled == ("a",)


@pytest.mark.parametrize(
    ("before", "waits_for"),
    [(None, ()), (wanted("a"), ("a",)), (wanted("a", wal=False), ())],
)
async def test_a_claim_that_is_given_back_names_the_directory_of_before(
    before: Claim | None, waits_for: tuple[str, ...]
) -> None:
    store = MemoryStore()
    if before is not None:
        await claimed(store, before)
    own = await claimed(store, wanted("unused"))
    await give_back(store, "default", own)
    found = await claimed(store, wanted("c"))
    assert (found.claim.epoch, found.claim.unsettled) == (own.claim.epoch + 1, waits_for)
    with pytest.raises(Fenced):
        await check_claim(store, "default", own.claim)


async def test_a_claim_that_another_broker_has_by_now_is_not_given_back() -> None:
    store = MemoryStore()
    own = await claimed(store, wanted("unused"))
    await claimed(store, wanted("b"))
    await give_back(store, "default", own)
    assert (await claimed(store, wanted("c"))).claim.unsettled == ("unused", "b")


async def test_giving_back_a_claim_restores_fields_of_a_later_version() -> None:
    store = MemoryStore()
    await claimed(store, wanted("a"))
    key = claim_key("default")
    later = bytes((await store.get(key)).data)[:-1] + b',"added":[1]}'
    await store.put(key, [later])
    await give_back(store, "default", await claimed(store, wanted("b")))
    assert bytes((await store.get(key)).data).count(b'"added":[1]') == 1
    await claimed(store, wanted("b"))
    assert b"added" not in bytes((await store.get(key)).data), "it says what this version does not know of itself"


async def test_a_claim_that_an_earlier_version_wrote_can_be_read() -> None:
    store = MemoryStore()
    old = b'{"epoch":4,"broker_id":0,"directory_id":"a","acknowledges_locally":true,"nonce":"n"}'
    await store.put(claim_key("default"), [old])
    found = await claimed(store, wanted("b"))
    assert (found.claim.epoch, found.claim.unsettled) == (5, ("a",))


@pytest.mark.parametrize("lost", [False, True])
async def test_a_claim_is_settled_also_where_the_reply_is_lost(lost: bool) -> None:
    store = FaultyStore(MemoryStore())
    await claimed(store, wanted("a"))
    own = (await claimed(store, wanted("b"))).claim
    if lost:
        store.lose_reply(On("put_if_match", times=1), PreconditionFailed)
    await settle(store, "default", own)
    assert not (await claimed(store, wanted("b"))).must_wait
    assert store.count("put_if_match") == 3


async def test_a_broker_overtaken_before_settling_its_claim_is_fenced() -> None:
    store = FaultyStore(MemoryStore())
    await claimed(store, wanted("a"))
    own = (await claimed(store, wanted("b"))).claim

    async def overtake(call: StoreCall) -> None:
        await claimed(store.store, wanted("c"))

    store.rule(On("put_if_match", times=1), overtake)
    with pytest.raises(Fenced, match="epoch 2"):
        await settle(store, "default", own)
    assert (await claimed(store, wanted("d"))).claim.unsettled == ("a", "b", "c")


async def test_the_watch_ends_within_its_interval_after_another_claim(autojump_clock) -> None:
    store = MemoryStore()
    own = (await claimed(store)).claim
    ended_at = 0.0

    async def watch() -> None:
        nonlocal ended_at
        with pytest.raises(Fenced, match="broker 0 has taken over with epoch 1"):
            await watch_claim(ClaimCheck(store=store, namespace="default", own=own))
        ended_at = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.sleep(100.5)
        await claimed(store, wanted("b"))
        began = trio.current_time()
    assert ended_at - began <= WATCH_SECONDS


async def test_the_watch_outlasts_an_outage_and_a_lost_object(autojump_clock) -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    store.fail(On(times=10))
    with trio.move_on_after(100) as scope:
        await watch_claim(ClaimCheck(store=store, namespace="default", own=own))
    await store.delete([claim_key("default")])
    with trio.move_on_after(100):
        await watch_claim(ClaimCheck(store=store, namespace="default", own=own))
    assert scope.cancelled_caught


async def test_a_damaged_claim_is_an_error_that_names_the_key() -> None:
    store = MemoryStore()
    await store.put(claim_key("default"), [b"{"])
    with pytest.raises(DamagedObject, match=claim_key("default")):
        await claimed(store)


async def test_a_look_at_the_claim_tells_whether_another_broker_has_taken_over() -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    await check_claim(store, "default", own)
    store.fail(On("get", times=1))
    with pytest.raises(StoreUnavailable):
        await check_claim(store, "default", own)
    await claimed(store)
    with pytest.raises(Fenced, match="this one, of epoch 0, has been superseded"):
        await check_claim(store, "default", own)


async def confirmed(store: FaultyStore, own: Claim, count: int = 1) -> None:
    check = ClaimCheck(store=store, namespace="default", own=own)
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(check.confirm)


async def test_a_claim_check_is_shared_only_with_callers_that_came_before_its_start(
    autojump_clock: MockClock,
) -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    check = ClaimCheck(store=store, namespace="default", own=own)
    store.delay(On("get"), 1.0)
    before = store.count("get")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check.confirm)
        await trio.sleep(0.5)
        for _ in range(10):
            nursery.start_soon(check.confirm)
    assert store.count("get") - before == 2
    assert trio.current_time() == 2.0


async def test_a_superseded_broker_is_fenced_by_its_claim_check(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    await confirmed(store, own, 3)
    await claimed(store)
    check = ClaimCheck(store=store, namespace="default", own=own)
    for _ in range(2):
        with pytest.raises(Fenced, match="broker 0 has taken over with epoch 1"):
            await check.confirm()


async def test_a_look_that_is_cancelled_or_fails_confirms_nothing(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    check = ClaimCheck(store=store, namespace="default", own=own)
    gate = store.hold(On("get", times=1))
    confirmed_at: list[float] = []

    async def confirm() -> None:
        await check.confirm()
        confirmed_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await check.confirm()
        assert gate.arrived_count == 1
        nursery.start_soon(confirm)
    assert confirmed_at == [1.0]
    store.fail(On("get", times=1), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await check.confirm()
    await check.confirm()


async def test_a_deleted_claim_does_not_fence_its_broker(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    await store.delete([claim_key("default")])
    await confirmed(store, own)


async def test_a_look_is_taken_again_only_when_the_last_one_is_old(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    own = (await claimed(store)).claim
    check = ClaimCheck(store=store, namespace="default", own=own)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_claim, check)
        await trio.sleep(10 * WATCH_SECONDS + 1)
        looks_count = store.count("get")
        for _ in range(5):
            await trio.sleep(WATCH_SECONDS)
            await check.confirm_lately()
        assert store.count("get") == looks_count + 5  # the watch's own
        nursery.cancel_scope.cancel()
    await trio.sleep(LATELY_SECONDS + 0.1)  # as if the process had been suspended
    await check.confirm_lately()
    await check.confirm_lately()
    assert store.count("get") == looks_count + 6
    await claimed(store)
    await trio.sleep(LATELY_SECONDS + 0.1)
    with pytest.raises(Fenced):
        await check.confirm_lately()
