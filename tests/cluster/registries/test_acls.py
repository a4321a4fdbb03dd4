"""Access control lists in the metadata: durable before they act, bounded, each once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries import acls
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.concurrency.turns import STEPS_PER_TURN
from kafscale.errors import DamagedObject, KafkaError
from kafscale.security.acls import CLUSTER_NAME, AclBinding, AclFilter, AclOperation, Permission, ResourceType, Right
from kafscale.security.authorizer import AclAuthorizer
from kafscale.security.principals import Principal
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import INVALID_REQUEST, POLICY_VIOLATION
from tests.api.principals import binding

READ = binding("alice", AclOperation.READ, ResourceType.TOPIC, "orders")
READ_TOPIC = Right(AclOperation.READ, ResourceType.TOPIC)
WRITE = binding("alice", AclOperation.WRITE, ResourceType.TOPIC, "orders")


async def test_acls_and_their_removal_survive_a_restart() -> None:
    store = MemoryMetadataStore()
    registry = AclRegistry(store)
    assert await registry.create([READ, WRITE, READ]) == [None, None, None]
    assert await registry.delete([AclFilter(operation=AclOperation.WRITE), AclFilter(host="nowhere")]) == [[WRITE], []]
    seen: list[int] = []
    again = AclRegistry(store)
    again.follow(lambda: seen.append(len(again.index)))
    await again.load()
    assert list(again.index) == [READ]
    assert seen == [1]
    assert await again.create([READ]) == [None]
    assert list(again.index) == [READ]


async def test_of_two_brokers_the_other_learns_of_a_change() -> None:
    store = MemoryMetadataStore()
    first, second = AclRegistry(store), AclRegistry(store)
    await first.load()
    await second.load()
    await first.create([READ])
    assert await second.delete([AclFilter()]) == [[READ]]
    assert await first.create([WRITE]) == [None]
    assert list(first.index) == [WRITE]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": acls.PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"operation": AclOperation.UNKNOWN}, "Invalid operation UNKNOWN"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "Resource name should not be empty"),
        ({"resource_type": ResourceType.CLUSTER}, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
        ({"resource_name": "x" * 1025}, "a resource name has 1 to 1024 characters"),
        ({"principal": "User:" + "x" * 1024}, "a principal has 1 to 1024 characters"),
        ({"host": ""}, "a host has 1 to 255 characters"),
    ],
)
async def test_an_invalid_acl_is_refused_and_valid_ones_are_added(wrong: dict[str, object], message: str) -> None:
    registry = AclRegistry(MemoryMetadataStore())
    changed: AclBinding = attrs.evolve(READ, **wrong)  # type: ignore[arg-type]
    refused, accepted = await registry.create([changed, WRITE])
    assert accepted is None
    assert isinstance(refused, KafkaError)
    assert refused.code == INVALID_REQUEST
    assert refused.message is not None
    assert message in refused.message
    assert list(registry.index) == [WRITE]


async def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "ACLS_MAX_COUNT", 2)
    registry = AclRegistry(MemoryMetadataStore())
    third = attrs.evolve(READ, host="10.0.0.1")
    outcomes = await registry.create([READ, WRITE, READ, third])
    assert [outcome and outcome.code for outcome in outcomes] == [None, None, None, POLICY_VIOLATION]
    assert await registry.create([READ, WRITE]) == [None, None]
    await registry.delete([AclFilter(operation=AclOperation.READ)])
    assert await registry.create([third]) == [None]


def many(count: int) -> list[AclBinding]:
    return [attrs.evolve(READ, resource_name=f"t{number}") for number in range(count)]


async def longest_turn(work: Callable[[], Awaitable[object]]) -> int:
    """How many filters were held against a list at most before others ran."""
    steps = longest = 0
    matches = AclFilter.matches

    def counted(wanted: AclFilter, binding: AclBinding) -> bool:
        nonlocal steps, longest
        steps += 1
        longest = max(longest, steps)
        return matches(wanted, binding)

    async def run_beside() -> None:
        nonlocal steps
        while True:
            steps = 0
            await trio.lowlevel.checkpoint()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AclFilter, "matches", counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_beside)
            await work()
            nursery.cancel_scope.cancel()
    return longest


async def test_a_delete_with_many_filters_yields_and_finds_every_match() -> None:
    """A thousand filters for ten thousand lists held up everybody for seconds."""
    registry = AclRegistry(MemoryMetadataStore())
    await registry.create(many(300))
    filters = [
        *(AclFilter(resource_name=f"t{number}") for number in range(0, 300, 2)),
        AclFilter(principal="User:nobody"),
        AclFilter(resource_name="t7", pattern_type=acls.PatternType.MATCH),
        AclFilter(resource_name="t1", operation=AclOperation.WRITE),
        AclFilter(resource_name="t2"),
    ]
    expected = [registry.matching(each) for each in filters]
    found: list[list[AclBinding]] = []

    async def delete() -> None:
        found.extend(await registry.delete(filters))

    assert await longest_turn(delete) <= 2 * STEPS_PER_TURN
    assert found == expected
    assert [len(each) for each in found[-5:]] == [1, 0, 1, 0, 1]
    assert len(registry.index) == 300 - 150 - 1


async def test_an_acl_added_during_a_delete_is_matched_by_all_filters_or_none() -> None:
    store = MemoryMetadataStore()
    registry, other = AclRegistry(store), AclRegistry(store)
    await registry.load()
    await other.load()
    await registry.create(many(300))
    found: list[list[AclBinding]] = []

    async def delete() -> None:
        found.extend(await registry.delete([AclFilter(), AclFilter()]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        nursery.start_soon(other.create, [WRITE])
    assert [len(each) for each in found] in ([301, 301], [300, 300])
    assert list(registry.index) == ([] if len(found[0]) == 301 else [WRITE])


async def test_filters_that_find_very_much_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "FOUND_MAX_COUNT", 5)
    registry = AclRegistry(MemoryMetadataStore())
    await registry.create(many(3))
    with pytest.raises(KafkaError) as refused:
        await registry.delete([AclFilter(), AclFilter()])
    assert refused.value.code == POLICY_VIOLATION
    assert len(registry.index) == 3
    assert [len(each) for each in await registry.delete([AclFilter()])] == [3]


async def test_one_to_which_a_later_version_has_added_something_allows_nothing_here() -> None:
    """It may hold only at some times, or for some; whoever does not know that would let everybody in."""
    store = MemoryMetadataStore()
    registry = AclRegistry(store)
    await registry.load()
    later = encode(READ)[:-1] + b',"until_ms":1}'
    await store.commit(Transaction(puts={"acls/1": later}))
    assert list(registry.index) == []
    await registry.create([READ])
    assert list(registry.index) == [READ]
    await registry.delete([AclFilter()])
    assert list(registry.index) == []
    assert [entry.value for entry in await store.list("acls/")] == [later]


async def test_an_unreadable_acl_of_a_later_version_grants_nothing_and_a_deny_blocks_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it denies can't be known. What is allowed that is not known here, nobody asks for here."""
    store = MemoryMetadataStore()
    registry = AclRegistry(store)
    authorizer = AclAuthorizer(acls=registry.index, super_users=frozenset({"User:root"}))
    registry.follow(authorizer.changed)
    await registry.load()
    await registry.create([READ])
    alice, root = Principal("User", "alice"), Principal("User", "root")

    def may(who: Principal) -> bool:
        return authorizer.allows(who, "h", READ_TOPIC, "orders")

    assert may(alice)
    later = attrs.evolve(READ, operation=AclOperation.UNKNOWN)
    await store.commit(Transaction(puts={"acls/1": encode(later)}))
    assert may(alice)
    assert "allows something only a later version" in caplog.text
    await store.commit(Transaction(puts={"acls/2": encode(attrs.evolve(later, permission=Permission.DENY))}))
    assert not may(alice)
    assert not authorizer.allows_some(alice, "h", READ_TOPIC)
    assert may(root)
    assert list(registry.index) == [READ]
    with pytest.raises(DamagedObject, match="denies something unknown to this version"):
        await AclRegistry(store).load()
    await store.commit(Transaction(deletes=["acls/2"]))
    assert may(alice)
