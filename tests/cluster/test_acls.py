"""Access control lists in the metadata: durable before they act, bounded, each once."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster import acls
from kafscale.cluster.acls import AclRegistry
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.errors import DamagedObject, KafkaError
from kafscale.security.acls import CLUSTER_NAME, AclBinding, AclFilter, AclOperation, Permission, ResourceType, Right
from kafscale.security.authorizer import AclAuthorizer
from kafscale.security.principals import Principal
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import INVALID_REQUEST, POLICY_VIOLATION
from tests.devtools.principals import binding

READ = binding("alice", AclOperation.READ, ResourceType.TOPIC, "orders")
READ_TOPIC = Right(AclOperation.READ, ResourceType.TOPIC)
WRITE = binding("alice", AclOperation.WRITE, ResourceType.TOPIC, "orders")


async def test_they_are_there_after_a_restart_and_what_was_removed_is_not() -> None:
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
async def test_what_may_not_be_is_refused_and_the_others_are_added(wrong: dict[str, object], message: str) -> None:
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


async def test_one_that_a_later_version_has_written_ends_nobody_and_lets_nobody_in(
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
    assert "allows what only a later version" in caplog.text
    await store.commit(Transaction(puts={"acls/2": encode(attrs.evolve(later, permission=Permission.DENY))}))
    assert not may(alice)
    assert not authorizer.allows_some(alice, "h", READ_TOPIC)
    assert may(root)
    assert list(registry.index) == [READ]
    with pytest.raises(DamagedObject, match="denies what is not known here"):
        await AclRegistry(store).load()
    await store.commit(Transaction(deletes=["acls/2"]))
    assert may(alice)
