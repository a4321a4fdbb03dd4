"""What every metadata store does: one suite over all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from kafscale.cluster.metadata import base
from kafscale.cluster.metadata.base import Change, MetadataStore, PlannedFrom, Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit, JournaledMetadataStore
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.cluster.metadata.sqlite import SqliteMetadataStore
from kafscale.errors import PlanOutdated, PreconditionFailed
from kafscale.formats.metadata_head import Head, encode_head, head_key
from kafscale.formats.wal_objects import WalPosition
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.store.memory import MemoryStore
from kafscale.testing.metadata import MemoryMetadataStore


@asynccontextmanager
async def open_memory(_directory: Path) -> AsyncIterator[MetadataStore]:
    yield MemoryMetadataStore()


@asynccontextmanager
async def open_journaled(_directory: Path) -> AsyncIterator[MetadataStore]:
    journal = S3Wal(store=MemoryStore(), namespace="default", epoch=0)
    store = JournaledMetadataStore(MemoryMetadataStore(), journal, WalPosition(0, 0))
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_shared(_directory: Path) -> AsyncIterator[MetadataStore]:
    bucket, key = MemoryStore(), head_key("default")
    etag = await bucket.put_if_absent(key, encode_head(Head(0)))
    store = SharedMetadataStore(MemoryMetadataStore(), bucket, key, WalPosition(0, 0), Head(0), etag)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_grouped(directory: Path) -> AsyncIterator[MetadataStore]:
    async with SqliteMetadataStore.open(directory / "metadata.db") as local, trio.open_nursery() as nursery:
        store = GroupCommit(local)
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


# Name -> how a fresh, empty store of that kind is opened in a directory.
STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[MetadataStore]]] = {
    "memory": open_memory,
    "journaled": open_journaled,
    "shared": open_shared,
    "grouped": open_grouped,
    "sqlite": lambda directory: SqliteMetadataStore.open(directory / "metadata.db"),
}


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


async def test_a_new_store_is_empty(store: MetadataStore) -> None:
    assert await store.get("topics/a") is None
    assert list(await store.list("")) == []


async def test_a_put_is_read_back_with_the_revision_of_its_transaction(store: MetadataStore) -> None:
    first = await store.commit(Transaction(puts={"topics/a": b"1", "topics/b": b"2"}))
    second = await store.commit(Transaction(puts={"topics/a": b"3"}))

    assert second > first > 0
    entry = await store.get("topics/a")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("topics/a", b"3", second)
    other = await store.get("topics/b")
    assert other is not None
    assert other.revision == first


async def test_list_gives_a_prefix_in_order_of_key(store: MetadataStore) -> None:
    await store.commit(Transaction(puts=dict.fromkeys(("t/b", "t/a", "t/a/1", "t", "ta", "s/a", "t/😀"), b"")))

    assert [entry.key for entry in await store.list("t/")] == ["t/a", "t/a/1", "t/b", "t/\U0001f600"]


async def test_a_prefix_is_taken_literally(store: MetadataStore) -> None:
    await store.commit(Transaction(puts={"a_b": b"", "axb": b"", "a%b": b"", "A_b": b""}))

    assert [entry.key for entry in await store.list("a_")] == ["a_b"]
    assert [entry.key for entry in await store.list("a%")] == ["a%b"]


async def test_values_are_any_bytes(store: MetadataStore) -> None:
    value = bytes(range(256))
    await store.commit(Transaction(puts={"k": value, "empty": b""}))

    entry, empty = await store.get("k"), await store.get("empty")
    assert entry is not None
    assert entry.value == value
    assert empty is not None
    assert empty.value == b""


async def test_deletes_and_puts_of_a_transaction_take_effect_together(store: MetadataStore) -> None:
    await store.commit(Transaction(puts={"g/1/a": b"", "g/1/b": b"", "g/2/a": b"", "x": b""}))

    await store.commit(Transaction(puts={"y": b""}, deletes=["x", "never there"], delete_prefixes=["g/1/"]))

    assert [entry.key for entry in await store.list("")] == ["g/2/a", "y"]


async def test_a_transaction_with_a_failed_expectation_changes_nothing(store: MetadataStore) -> None:
    revision = await store.commit(Transaction(puts={"a": b"1"}))

    for expect in ({"a": 0}, {"a": revision + 1}, {"missing": revision}, {"a": revision, "missing": 1}):
        with pytest.raises(PreconditionFailed):
            await store.commit(Transaction(puts={"a": b"2", "b": b"2"}, deletes=["a"], expect=expect))

    assert [(entry.key, entry.value, entry.revision) for entry in await store.list("")] == [("a", b"1", revision)]


async def test_a_transaction_with_a_met_expectation_takes_effect(store: MetadataStore) -> None:
    first = await store.commit(Transaction(puts={"a": b"1"}, expect={"a": 0}))
    second = await store.commit(Transaction(puts={"a": b"2"}, expect={"a": first, "missing": 0}))

    entry = await store.get("a")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", second)


async def test_a_key_that_was_deleted_does_not_exist(store: MetadataStore) -> None:
    await store.commit(Transaction(puts={"a": b"1"}))
    await store.commit(Transaction(deletes=["a"]))

    assert await store.get("a") is None
    await store.commit(Transaction(puts={"a": b"2"}, expect={"a": 0}))


async def test_of_many_that_compete_for_a_key_one_wins(store: MetadataStore) -> None:
    winners: list[int] = []

    async def compete(number: int) -> None:
        try:
            await store.commit(Transaction(puts={"leader": b"%d" % number}, expect={"leader": 0}))
        except PreconditionFailed:
            return
        winners.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(compete, number)

    assert len(winners) == 1
    entry = await store.get("leader")
    assert entry is not None
    assert entry.value == b"%d" % winners[0]


async def test_transactions_take_effect_in_the_order_of_the_calls(store: MetadataStore) -> None:
    revisions: dict[int, int] = {}

    async def put(number: int) -> None:
        revisions[number] = await store.commit(Transaction(puts={"k": b"%d" % number, f"seen/{number}": b""}))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(put, number)

    assert len(set(revisions.values())) == 20
    last = max(revisions, key=lambda number: revisions[number])
    entry = await store.get("k")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"%d" % last, revisions[last])


async def test_a_transaction_without_changes_gets_no_new_revision(store: MetadataStore) -> None:
    revision = await store.commit(Transaction(puts={"a": b"1"}))

    assert await store.commit(Transaction(deletes=["x"], delete_prefixes=["y/"])) == revision
    assert await store.commit(Transaction()) == revision


async def test_deletes_come_before_the_puts_of_the_same_transaction(store: MetadataStore) -> None:
    await store.commit(Transaction(puts={"p/1": b"old", "p/2": b"old"}))
    await store.commit(Transaction(puts={"p/2": b"new"}, delete_prefixes=["p/"], deletes=["p/2"]))

    assert [(entry.key, entry.value) for entry in await store.list("p/")] == [("p/2", b"new")]


async def test_a_prefix_covers_every_following_character(store: MetadataStore) -> None:
    await store.commit(Transaction(puts=dict.fromkeys(("p\U0010ffff", "p\U0010ffff\U0010ffff", "q"), b"")))

    assert len(await store.list("p")) == 2
    assert len(await store.list("p\U0010ffff")) == 2
    await store.commit(Transaction(delete_prefixes=["p"]))
    assert [entry.key for entry in await store.list("")] == ["q"]


# ---- plans -----------------------------------------------------------------------------------------------------------


async def plan_is_carried_out(store: MetadataStore, plan: PlannedFrom) -> bool:
    before = store.revision
    try:
        await store.commit(Transaction(puts={"by/plan": b""}, planned_from=plan))
    except PlanOutdated as exc:
        refused_at = exc.revision
    else:
        return True
    assert refused_at == store.revision == before
    return False


async def test_the_second_of_two_plans_from_the_same_state_is_refused(store: MetadataStore) -> None:
    planned_from = PlannedFrom(revision=store.revision, prefixes=["topics/"])
    await store.commit(Transaction(puts={"topics/a_b": b""}, planned_from=planned_from))
    with pytest.raises(PlanOutdated) as caught:  # though no key is the same
        await store.commit(Transaction(puts={"topics/a.b": b""}, planned_from=planned_from))
    assert caught.value.revision == store.revision
    assert [entry.key for entry in await store.list("")] == ["topics/a_b"]


@pytest.mark.parametrize("change", ["put", "put again", "delete", "delete by prefix"])
async def test_a_change_outdates_only_plans_that_depend_on_the_changed_keys(store: MetadataStore, change: str) -> None:
    planned_at = await store.commit(Transaction(puts={"a/1": b"", "a/10": b"", "a/2/x": b"", "ab/1": b""}))
    changed = {
        "put": Transaction(puts={"a/2/y": b""}),
        "put again": Transaction(puts={"a/2/x": b""}),
        "delete": Transaction(deletes=["a/2/x"]),
        "delete by prefix": Transaction(delete_prefixes=["a/2/"]),
    }[change]
    await store.commit(changed)
    assert not await plan_is_carried_out(store, PlannedFrom(revision=planned_at, prefixes=["z/", "a/"]))
    assert not await plan_is_carried_out(store, PlannedFrom(revision=planned_at, prefixes=["a/2/"]))
    (changed_key,) = changed.puts or ["a/2/x"]
    assert not await plan_is_carried_out(store, PlannedFrom(revision=planned_at, keys=["z", changed_key]))
    assert await plan_is_carried_out(store, PlannedFrom(revision=planned_at, keys=["a/1"], prefixes=["ab/", "a/10/"]))
    assert await plan_is_carried_out(store, PlannedFrom(revision=store.revision, prefixes=["a/"]))


async def test_a_plan_survives_many_unrelated_changes(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups commit offsets all the time: what has changed is forgotten, and that nothing else has is known."""
    monkeypatch.setattr(base, "REMEMBERED_MAX_BYTES", 1000)
    planned_at = await store.commit(Transaction(puts={"topics/a": b""}))
    for number in range(5):
        await store.commit(Transaction(puts={f"groups/{number}": bytes(900)}))
    assert await plan_is_carried_out(store, PlannedFrom(revision=planned_at, prefixes=["topics/"]))


async def test_a_plan_older_than_the_remembered_changes_is_refused_if_its_keys_changed(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "REMEMBERED_MAX_BYTES", 1000)
    planned_at = await store.commit(Transaction(puts={"topics/a": b""}))
    await store.commit(Transaction(puts={"topics/b": bytes(900)}))
    await store.commit(Transaction(puts={"groups/c": bytes(900)}))
    assert not await plan_is_carried_out(store, PlannedFrom(revision=planned_at, keys=["topics/a"]))


async def test_a_plan_from_a_revision_that_there_is_not_is_refused(store: MetadataStore) -> None:
    """As after metadata was lost: what has that revision next is not what was planned from."""
    revision = await store.commit(Transaction(puts={"a": b""}))
    assert not await plan_is_carried_out(store, PlannedFrom(revision=revision + 1, prefixes=["a/"]))


async def test_each_concurrent_plan_is_checked_after_the_commits_before(
    store: MetadataStore,
) -> None:
    """Each adds to a number that it has read; of those that have read the same one is carried out."""
    revision = await store.commit(Transaction(puts={"n/a": b"0", "n/b": b"0"}))
    carried_out: list[str] = []

    async def add(key: str) -> None:
        try:
            await store.commit(
                Transaction(puts={key: b"1"}, planned_from=PlannedFrom(revision=revision, keys=[key])),
            )
        except PlanOutdated:
            return
        carried_out.append(key)

    async with trio.open_nursery() as nursery:
        for key in ("n/a", "n/b", "n/a", "n/b", "n/a"):
            nursery.start_soon(add, key)
    assert sorted(carried_out) == ["n/a", "n/b"]


# ---- changes ---------------------------------------------------------------------------------------------------------


def changes_of(store: MetadataStore) -> list[Change]:
    """Collect the changes from now on."""
    seen: list[Change] = []
    store.follow(seen.append)
    return seen


async def test_followers_receive_the_keys_put_and_deleted(store: MetadataStore) -> None:
    changes = changes_of(store)
    first = await store.commit(Transaction(puts={"a": b"1", "p/1": b"", "p/2": b"", "q": b""}))
    second = await store.commit(Transaction(puts={"a": b"2", "p/2": b"new"}, deletes=["q"], delete_prefixes=["p/"]))
    third = await store.commit(Transaction(puts={"t/b": b"3"}))
    await store.commit(Transaction(deletes=["a"]))

    assert store.revision == third + 1
    assert changes == [
        Change(first, {"a": b"1", "p/1": b"", "p/2": b"", "q": b""}),
        Change(second, {"a": b"2", "p/2": b"new"}, ["q", "p/1"]),
        Change(third, {"t/b": b"3"}),
        Change(third + 1, {}, ["a"]),
    ]


async def test_refused_and_empty_transactions_publish_no_change(store: MetadataStore) -> None:
    revision = await store.commit(Transaction(puts={"a": b"1"}))
    changes = changes_of(store)
    await store.commit(Transaction(deletes=["x"], delete_prefixes=["y/"]))
    with pytest.raises(PreconditionFailed):
        await store.commit(Transaction(puts={"a": b"2"}, expect={"a": 0}))
    assert changes == []
    assert store.revision == revision


async def test_changes_come_in_order_without_a_gap_and_before_their_commits_return(store: MetadataStore) -> None:
    seen = changes_of(store)

    async def put(number: int) -> None:
        revision = await store.commit(Transaction(puts={"k": b"%d" % number}))
        assert seen[revision - 1].puts == {"k": b"%d" % number}

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(put, number)

    assert [change.revision for change in seen] == list(range(1, 21))
    entry = await store.get("k")
    assert entry is not None
    assert seen[-1].puts == {"k": entry.value}


async def test_a_published_change_can_be_read_at_once(store: MetadataStore) -> None:
    """Whoever hears of a change and then lists or takes a snapshot finds it."""
    seen = trio.Event()
    store.follow(lambda change: seen.set())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.commit, Transaction(puts={"a": b"1"}))
        with trio.fail_after(5):
            await seen.wait()
        entry = await store.get("a")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"1", store.revision)


async def test_a_snapshot_has_nothing_that_is_not_published(store: MetadataStore) -> None:
    async def count() -> None:
        for number in range(200):
            await store.commit(Transaction(puts={"n": b"%d" % number}))

    found: list[bytes] = []
    published: dict[str, bytes] = {}
    store.follow(lambda change: published.update(change.puts))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(50):
            async with getattr(store, "local", store).snapshot() as snapshot:
                before = int(published.get("n", b"-1"))
                await snapshot.read(["n"], lambda pairs, missing: found.extend(value for _, value in pairs))
            assert not found or int(found.pop()) <= before


async def test_a_list_is_not_newer_than_the_published_changes(store: MetadataStore) -> None:
    """Or who lists and then follows would see something go back."""

    async def count() -> None:
        for number in range(200):
            await store.commit(Transaction(puts={"n": b"%d" % number}))

    published: dict[str, bytes] = {}
    store.follow(lambda change: published.update(change.puts))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(100):
            for entry in await store.list("n"):
                assert int(entry.value) <= int(published["n"])


async def test_plans_from_before_the_remembered_changes_are_outdated(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something below the same root has changed since. Memory is bounded."""
    monkeypatch.setattr(base, "REMEMBERED_MAX_BYTES", 10_000)
    for number in range(20):
        await store.commit(Transaction(puts={f"k/{number}": bytes(1000)}))
    with pytest.raises(PlanOutdated):
        await store.commit(Transaction(planned_from=PlannedFrom(revision=5, keys=["k/other"])))
    await store.commit(Transaction(planned_from=PlannedFrom(revision=15, keys=["k/other"])))
    await store.commit(Transaction(planned_from=PlannedFrom(revision=5, keys=["l/other"])))


async def test_a_follower_receives_a_change_of_any_size(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REMEMBERED_MAX_BYTES", 1000)
    seen = changes_of(store)
    await store.commit(Transaction(puts={"large": bytes(20_000)}))
    assert [change.revision for change in seen] == [1]


async def test_a_removed_follower_receives_no_changes(store: MetadataStore) -> None:
    told: list[Change] = []
    store.follow(told.append)
    await store.commit(Transaction(puts={"a": b""}))
    store.unfollow(told.append)
    await store.commit(Transaction(puts={"b": b""}))
    assert [change.revision for change in told] == [1]


async def test_several_transactions_applied_at_once_have_revisions_and_outcomes_of_their_own(tmp_path: Path) -> None:
    async with SqliteMetadataStore.open(tmp_path / "metadata.db") as sqlite:
        for local in (MemoryMetadataStore(), sqlite):
            changes = changes_of(local)
            outcomes = await local.apply(
                [
                    Transaction(puts={"a": b"1"}),
                    Transaction(puts={"b": b"1"}, expect={"a": 7}),
                    Transaction(deletes=["x"]),
                    Transaction(puts={"b": b"2"}, expect={"a": 1}),
                ]
            )
            assert isinstance(outcomes[1], PreconditionFailed)
            assert [outcomes[place] for place in (0, 2, 3)] == [
                Change(1, {"a": b"1"}),
                Change(1),
                Change(2, {"b": b"2"}),
            ]
            assert [change.revision for change in changes] == [1, 2]
            held, failed, outdated = await local.check(
                [
                    Transaction(expect={"b": 2}),
                    Transaction(expect={"b": 1}),
                    Transaction(planned_from=PlannedFrom(revision=1, keys=["b"])),
                ]
            )
            assert held is None
            assert isinstance(failed, PreconditionFailed)
            assert isinstance(outdated, PlanOutdated)


async def test_a_transaction_sees_earlier_ones_of_the_same_batch(tmp_path: Path) -> None:
    async with SqliteMetadataStore.open(tmp_path / "metadata.db") as sqlite:
        for local in (MemoryMetadataStore(), sqlite):
            plan = PlannedFrom(revision=0, prefixes=["a/"])
            outcomes = await local.apply(
                [
                    Transaction(puts={"b/1": b""}, planned_from=plan),
                    Transaction(puts={"a/1": b""}, planned_from=plan),
                    Transaction(puts={"a/2": b""}, planned_from=plan),
                    Transaction(puts={"a/2": b""}, planned_from=attrs.evolve(plan, revision=2)),
                ]
            )
            assert [isinstance(outcome, Change) for outcome in outcomes] == [True, True, False, True]
            assert isinstance(outcomes[2], PlanOutdated)
            assert outcomes[2].revision == 2


async def test_a_commit_cancelled_before_its_start_has_no_effect(store: MetadataStore) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.commit(Transaction(puts={"a": b"1"}))

    assert await store.get("a") is None
