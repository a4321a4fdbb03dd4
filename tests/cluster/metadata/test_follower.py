"""What is in memory follows the store: whoever commits, in order, and also what its committer has not heard of."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.cluster.metadata.base import Change, Entry, Transaction
from kafscale.cluster.metadata.converter import decode
from kafscale.cluster.metadata.follower import (
    Follower,
)
from kafscale.cluster.metadata.group_commit import CANCELLED_COMMIT_SECONDS, GroupCommit
from kafscale.errors import (
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
    follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.follower = Follower(self.store, ("r/",), self.apply)

    def apply(self, change: Change) -> None:
        for key in change.deletes:
            self.held.pop(key, None)
        self.held.update({key: value for key, value in change.puts.items() if key.startswith("r/")})
        self.revisions.append(change.revision)


async def put(store: MemoryMetadataStore | GroupCommit, key: str, value: bytes = b"") -> int:
    return await store.commit(Transaction(puts={key: value}))


async def test_all_followers_apply_each_commit_in_order_of_revision() -> None:
    store = MemoryMetadataStore()
    one, other = Registry(store), Registry(store)
    await one.follower.commit(Transaction(puts={"r/a": b"1"}))
    assert one.held == other.held == {"r/a": b"1"}
    await other.follower.commit(Transaction(puts={"r/a": b"2", "s/x": b""}))
    await put(store, "s/y")
    await store.commit(Transaction(puts={"r/b": b"3"}, deletes=["r/a"]))
    assert one.held == other.held == {"r/b": b"3"}
    assert one.revisions == other.revisions == [1, 2, 4]


async def test_a_load_and_the_changes_made_meanwhile_are_one_change() -> None:
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
    assert loaded == Change(2, {"r/new": b"", "r/kept": b"1"}, ["r/gone"])
    assert registry.held == {"r/kept": b"1", "r/new": b""}
    assert registry.revisions == [2]
    await put(store, "r/later")
    assert registry.held.keys() == {"r/kept", "r/new", "r/later"}


async def test_a_commit_returns_after_its_change_was_applied() -> None:
    """As from a store that is elsewhere, whose changes come by another way than its answers."""
    store = LateMetadataStore()
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
        store.tell()
    assert returned.is_set()


async def test_a_cancelled_commit_is_applied_when_its_change_arrives(autojump_clock, nursery) -> None:
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


async def test_a_commit_of_unknown_outcome_is_applied_when_its_change_arrives() -> None:
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
async def test_a_refused_commit_changes_nothing_and_delays_no_settling(refusal: type[Exception]) -> None:
    store = MemoryMetadataStore(full=refusal is StorageFull)
    registry = Registry(store)
    expect = {"r/a": 7} if refusal is PreconditionFailed else {}
    with pytest.raises(refusal):
        await registry.follower.commit(Transaction(puts={"r/a": b"1"}, expect=expect))
    store.full = False
    await registry.follower.settle()
    assert registry.held == {}
    assert store.commits == []


@attrs.define(eq=False)
class Numbers:
    """What of a store begins with `r/`, as numbers."""

    store: MemoryMetadataStore
    held: dict[str, int] = attrs.field(factory=dict, init=False)
    follower: Follower = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.follower = Follower(self.store, ("r/",), self.apply)

    def apply(self, change: Change) -> None:
        for key in change.deletes:
            self.held.pop(key, None)
        for key, value in change.puts.items():
            if (number := self.follower.read(key, value, partial(decode, int))) is not None:
                self.held[key] = number


async def test_an_entry_of_a_later_version_keeps_its_old_value_and_cannot_be_overwritten(
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


async def test_an_entry_of_a_later_version_stops_a_start() -> None:
    store = MemoryMetadataStore()
    await put(store, "r/a", b"one")
    with pytest.raises(DamagedObject, match=r"r/a: .* start the version of KafScale that wrote it"):
        await Numbers(store).follower.load()
