"""What is in memory follows the store: whoever commits, in order, and also what its committer has not heard of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata import changes as changes_module
from kafscale.cluster.metadata.base import Change, Entry, Transaction
from kafscale.cluster.metadata.changes import ChangeLog, ChangeReader
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.follower import (
    LIST_PAUSE_LEAST_SECONDS,
    LIST_PAUSE_MOST_SECONDS,
    LOAD_ATTEMPTS_MAX_COUNT,
    Follower,
)
from kafscale.cluster.metadata.group_commit import CANCELLED_COMMIT_SECONDS, GroupCommit
from kafscale.errors import (
    ChangesForgotten,
    DamagedObject,
    KafkaError,
    PreconditionFailed,
    StorageFull,
    StoreUnavailable,
)
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import INVALID_REQUEST
from tests.cluster.late_metadata import LateMetadataStore


@attrs.define(eq=False)
class Registry:
    """What of a store begins with `r/`, in memory, and the revisions at which it changed."""

    store: MemoryMetadataStore | GroupCommit
    held: dict[str, bytes] = attrs.field(factory=dict, init=False)
    revisions: list[int] = attrs.field(factory=list, init=False)
    on_applied: Callable[[Change], None] = lambda change: None
    follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.follower = Follower(self.store, ("r/",), self.apply, self.held.keys)

    def apply(self, change: Change) -> None:
        for key in change.deletes:
            self.held.pop(key, None)
        self.held.update({key: value for key, value in change.puts.items() if key.startswith("r/")})
        self.revisions.append(change.revision)
        self.on_applied(change)


async def put(store: MemoryMetadataStore | GroupCommit, key: str, value: bytes = b"") -> int:
    return await store.commit(Transaction(puts={key: value}))


async def test_what_one_commits_all_see_in_order_of_revision() -> None:
    store = MemoryMetadataStore()
    one, other = Registry(store), Registry(store)
    await one.follower.commit(Transaction(puts={"r/a": b"1"}))
    assert one.held == other.held == {"r/a": b"1"}
    await other.follower.commit(Transaction(puts={"r/a": b"2", "s/x": b""}))
    await put(store, "s/y")
    await store.commit(Transaction(puts={"r/b": b"3"}, deletes=["r/a"]))
    assert one.held == other.held == {"r/b": b"3"}
    assert one.revisions == other.revisions == [1, 2, 4]


async def test_what_is_loaded_is_with_what_came_meanwhile_one_change() -> None:
    """A key that was listed and then deleted, before the list was applied, stayed for ever."""

    @attrs.define(eq=False)
    class Slow(MemoryMetadataStore):
        async def list(self, prefix: str) -> list[Entry]:
            found = list(await super().list(prefix))
            await self.commit(Transaction(puts={"r/new": b""}, deletes=["r/gone"]))
            return found

    store = Slow()
    await store.commit(Transaction(puts={"r/gone": b"", "r/kept": b"1", "s/other": b""}))
    registry = Registry(store)
    loaded = await registry.follower.load()
    assert loaded == Change(2, {"r/new": b"", "r/kept": b"1"})
    assert registry.held == {"r/kept": b"1", "r/new": b""}
    assert registry.revisions == [2]
    await put(store, "r/later")
    assert registry.held.keys() == {"r/kept", "r/new", "r/later"}


async def test_a_load_during_which_changes_were_forgotten_lists_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "REMEMBERED_MAX_BYTES", 1000)

    @attrs.define(eq=False)
    class Busy(MemoryMetadataStore):
        listed_count: int = 0

        async def list(self, prefix: str) -> list[Entry]:
            found = list(await super().list(prefix))
            self.listed_count += 1
            if self.listed_count == 1:
                for number in range(5):
                    await self.commit(Transaction(puts={f"r/{number}": bytes(900)}, deletes=["r/gone"]))
            return found

    store = Busy()
    await put(store, "r/gone")
    registry = Registry(store)
    await registry.follower.load()
    assert registry.held.keys() == {f"r/{number}" for number in range(5)}
    assert store.listed_count == 2


async def test_a_store_that_forgets_its_changes_all_the_time_fails_a_load_in_the_end(autojump_clock) -> None:
    """It was listed for ever, and as fast as the store could."""
    store = LateMetadataStore(forgets_while_listing=True)
    registry = Registry(store)
    with pytest.raises(ChangesForgotten):
        await registry.follower.load()
    assert len(store.listed_at) == LOAD_ATTEMPTS_MAX_COUNT
    assert all(later - earlier >= LIST_PAUSE_LEAST_SECONDS / 2 for earlier, later in pairwise(store.listed_at))


async def test_a_load_that_has_to_list_again_is_not_joined_by_another_listing(
    autojump_clock, nursery: trio.Nursery
) -> None:
    """That one would have taken what had been there before for known."""
    store = LateMetadataStore(forgets_while_listing=True)
    await put(store, "r/before")
    store.tell()
    registry = Registry(store)
    nursery.start_soon(registry.follower.run)
    nursery.start_soon(registry.follower.load)
    await trio.sleep(LIST_PAUSE_LEAST_SECONDS / 4)
    assert len(store.listed_at) == 1
    store.forgets_while_listing = False
    await trio.sleep(1)
    assert registry.held.keys() == {"r/before", "r/meanwhile-1"}
    assert len(store.listed_at) == 2


async def test_who_has_fallen_behind_at_run_time_lists_again(autojump_clock, nursery: trio.Nursery) -> None:
    """It ended the broker: whoever committed next got an error that nobody caught."""
    store = LateMetadataStore()
    registry = Registry(store)
    await registry.follower.load()
    store.listed_at.clear()
    nursery.start_soon(registry.follower.run)
    await store.commit(Transaction(puts={"r/kept": b"", "r/changed": b"1", "r/gone": b"", "s/other": b""}))
    store.tell()
    await store.commit(Transaction(puts={"r/new": b"", "r/changed": b"2"}, deletes=["r/gone"]))
    await put(store, "r/brief")
    await store.commit(Transaction(deletes=["r/brief"]))
    changes: list[Change] = []
    registry.on_applied = changes.append
    store.forget()
    await wait_all_tasks_blocked()
    assert changes == [Change(4, {"r/changed": b"2", "r/new": b""}, ["r/gone"])], "only what is different"
    assert registry.held == {"r/kept": b"", "r/changed": b"2", "r/new": b""}
    await put(store, "r/later")
    store.tell()
    assert "r/later" in registry.held
    assert len(store.listed_at) == 1


async def test_who_waits_for_its_commit_while_changes_are_forgotten_goes_on_after_the_listing(
    autojump_clock, nursery: trio.Nursery
) -> None:
    store = LateMetadataStore()
    registry = Registry(store)
    nursery.start_soon(registry.follower.run)
    async with trio.open_nursery() as waiting:
        waiting.start_soon(registry.follower.commit, Transaction(puts={"r/a": b"1"}))
        await wait_all_tasks_blocked()
        assert registry.held == {}
        store.forget()
    assert registry.held == {"r/a": b"1"}


async def test_nothing_is_applied_behind_a_gap_while_a_listing_fails(autojump_clock, nursery: trio.Nursery) -> None:
    """A change that came after a listing had failed would have been taken for the next one."""
    store = LateMetadataStore()
    registry = Registry(store)
    nursery.start_soon(registry.follower.run)
    await put(store, "r/a")
    store.failure = StoreUnavailable("away")
    store.forget()
    await wait_all_tasks_blocked()
    store.failure = None
    await put(store, "r/b")
    store.tell()
    assert (registry.held, registry.revisions, registry.follower.revision) == ({}, [], 0)
    await trio.sleep(LIST_PAUSE_LEAST_SECONDS)
    assert registry.held.keys() == {"r/a", "r/b"}
    assert registry.revisions == [2]


async def test_listings_of_a_store_that_is_away_or_forgets_all_the_time_become_seldom(
    autojump_clock, nursery: trio.Nursery
) -> None:
    store = LateMetadataStore(forgets_while_listing=True)
    registry = Registry(store)
    nursery.start_soon(registry.follower.run)
    await put(store, "r/first")
    store.forget()
    await trio.sleep(600)
    pauses = [later - earlier for earlier, later in pairwise(store.listed_at)]
    assert all(LIST_PAUSE_LEAST_SECONDS / 2 <= pause <= LIST_PAUSE_MOST_SECONDS for pause in pauses)
    assert min(pauses[10:]) >= LIST_PAUSE_MOST_SECONDS / 2
    assert len(pauses) < 150
    store.forgets_while_listing = False
    await trio.sleep(3 * LIST_PAUSE_MOST_SECONDS)
    assert registry.held.keys() == {entry.key for entry in await store.list("r/")}
    for number in range(3):
        await put(store, f"r/again-{number}")
        store.forget()
        await trio.sleep(1)
        assert f"r/again-{number}" in registry.held, "after a while of quiet pauses are short again"


async def test_a_commit_returns_when_it_is_applied_though_the_change_comes_late() -> None:
    """As from a store that is elsewhere, whose changes come by another way than its answers."""
    late = ChangeLog()

    @attrs.define(eq=False)
    class Remote(MemoryMetadataStore):
        def changes(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
            return late.read(after, notify)

    store = Remote()
    registry = Registry(store)
    async with trio.open_nursery() as nursery:
        returned = trio.Event()

        async def commit() -> None:
            await registry.follower.commit(Transaction(puts={"r/a": b"1"}))
            assert registry.held == {"r/a": b"1"}
            returned.set()

        nursery.start_soon(commit)
        await wait_all_tasks_blocked()
        assert store.commits
        assert registry.held == {}
        assert not returned.is_set()
        late.publish([Change(1, {"r/a": b"1"})])
    assert returned.is_set()


async def test_a_commit_whose_caller_was_cancelled_is_applied_when_it_comes(autojump_clock, nursery) -> None:
    """And whoever decides on what is in memory waits for it first."""
    local = MemoryMetadataStore(gate=trio.Event())
    store = GroupCommit(local)
    await nursery.start(store.run)
    registry = Registry(store)
    with trio.move_on_after(1) as scope:
        await registry.follower.commit(Transaction(puts={"r/a": b"1"}))
    assert scope.cancelled_caught
    assert trio.current_time() == 1 + CANCELLED_COMMIT_SECONDS
    assert registry.held == {}
    async with trio.open_nursery() as waiting:
        settled = trio.Event()

        async def decide() -> None:
            await registry.follower.settle()
            assert registry.held == {"r/a": b"1"}
            settled.set()

        waiting.start_soon(decide)
        await wait_all_tasks_blocked()
        assert not settled.is_set()
        assert local.gate is not None
        local.gate.set()
    assert settled.is_set()


async def test_a_commit_whose_outcome_was_unknown_is_applied_when_it_comes() -> None:
    @attrs.define(eq=False)
    class Unreachable(MemoryMetadataStore):
        loses_replies: bool = False

        async def commit(self, transaction: Transaction) -> int:
            revision = await super().commit(transaction)
            if self.loses_replies:
                raise StoreUnavailable("no reply")
            return revision

    store = Unreachable()
    registry = Registry(store)
    store.loses_replies = True
    with pytest.raises(StoreUnavailable):
        await registry.follower.commit(Transaction(puts={"r/a": b"1"}))
    store.loses_replies = False
    await registry.follower.settle()
    assert registry.held == {"r/a": b"1"}


@pytest.mark.parametrize("refusal", [StorageFull, PreconditionFailed])
async def test_a_commit_that_was_refused_changes_nothing_and_nobody_waits_for_it(refusal: type[Exception]) -> None:
    store = MemoryMetadataStore(full=refusal is StorageFull)
    registry = Registry(store)
    expect = {"r/a": 7} if refusal is PreconditionFailed else {}
    with pytest.raises(refusal):
        await registry.follower.commit(Transaction(puts={"r/a": b"1"}, expect=expect))
    store.full = False
    await registry.follower.settle()
    assert registry.held == {}
    assert store.commits == []


async def test_a_change_is_applied_as_a_whole_before_one_that_comes_of_it() -> None:
    log = ChangeLog()

    @attrs.define(eq=False)
    class Echoing(MemoryMetadataStore):
        def changes(self, after: int, notify: Callable[[], None] | None = None) -> ChangeReader:
            return log.read(after, notify)

    order: list[tuple[str, int]] = []

    def apply(change: Change) -> None:
        order.append(("begin", change.revision))
        if change.revision == 1:
            log.publish([Change(2, {"r/b": b""})])
        order.append(("end", change.revision))

    registry = Registry(Echoing())
    registry.on_applied = apply
    log.publish([Change(1, {"r/a": b""})])
    assert order == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]


async def test_submitted_changes_are_followed_before_their_submitters_are_called_back(nursery: trio.Nursery) -> None:
    store = GroupCommit(MemoryMetadataStore())
    registry = Registry(store)
    seen: list[dict[str, bytes]] = []
    store.submit({"r/a": b"1"}, lambda durable: seen.append(dict(registry.held)))
    await nursery.start(store.run)
    await wait_all_tasks_blocked()
    assert seen == [{"r/a": b"1"}]


@attrs.define(eq=False)
class Numbers:
    """What of a store begins with `r/`, as numbers."""

    store: MemoryMetadataStore
    held: dict[str, int] = attrs.field(factory=dict, init=False)
    follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.follower = Follower(self.store, ("r/",), self.apply, self.held.keys)

    def apply(self, change: Change) -> None:
        for key in change.deletes:
            self.held.pop(key, None)
        for key, value in change.puts.items():
            if (number := self.follower.read(key, value, partial(decode, int))) is not None:
                self.held[key] = number


async def test_what_only_a_later_version_can_read_stays_as_it_was_and_is_not_overwritten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ended the broker, in the middle of telling the others of the change."""
    store = MemoryMetadataStore()
    await put(store, "r/a", b"1")
    numbers, behind = Numbers(store), Registry(store)
    await numbers.follower.load()
    await store.commit(Transaction(puts={"r/a": b"two", "r/b": b"2", "r/c": b"three"}))
    assert numbers.held == {"r/a": 1, "r/b": 2}
    assert behind.held["r/a"] == b"two"
    assert numbers.follower.unreadable.keys() == {"r/a", "r/c"}
    assert caplog.text.count("was written by a later version of KafScale") == 2
    for refused in (Transaction(puts={"r/a": b"3"}), Transaction(deletes=["r/c"])):
        with pytest.raises(KafkaError, match="written by a later version") as raised:
            await numbers.follower.commit(refused)
        assert raised.value.code == INVALID_REQUEST
    await numbers.follower.commit(Transaction(puts={"r/b": b"4"}))
    await store.commit(Transaction(puts={"r/a": b"5"}, deletes=["r/c"]))
    assert not numbers.follower.unreadable
    await numbers.follower.commit(Transaction(puts={"r/a": b"6"}))
    assert numbers.held == {"r/a": 6, "r/b": 4}


async def test_what_only_a_later_version_can_read_stops_a_start() -> None:
    store = MemoryMetadataStore()
    await put(store, "r/a", b"one")
    with pytest.raises(DamagedObject, match=r"r/a: .* start the version of KafScale that wrote it"):
        await Numbers(store).follower.load()


async def test_what_could_not_be_read_and_was_deleted_while_nobody_heard_of_it_is_forgotten(
    autojump_clock, nursery: trio.Nursery
) -> None:
    store = LateMetadataStore()
    numbers = Numbers(store)
    await numbers.follower.load()
    await put(store, "r/a", b"one")
    await put(store, "r/b", b"two")
    store.tell()
    nursery.start_soon(numbers.follower.run)
    assert numbers.follower.unreadable.keys() == {"r/a", "r/b"}
    await store.commit(Transaction(deletes=["r/a"]))
    store.forget()
    await trio.sleep(LIST_PAUSE_MOST_SECONDS)
    assert numbers.follower.unreadable.keys() == {"r/b"}
