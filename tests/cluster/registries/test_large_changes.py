"""Requests that change thousands of entries of the metadata are planned in turns, between which other tasks run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
import trio

from kafscale.cluster.groups.configs import SESSION_TIMEOUT, GroupConfigs
from kafscale.cluster.registries.acls import AclRegistry
from kafscale.cluster.registries.client_quotas import PRODUCER_BYTE_RATE, ClientQuotas, QuotaChange, QuotaEntity
from kafscale.cluster.registries.scram_users import CredentialKey, ScramUsers
from kafscale.cluster.registries.topics import NewConfigs, NewTopic, TopicRegistry
from kafscale.concurrency.turns import STEPS_PER_TURN
from kafscale.config import Limits, SaslMechanism, Settings
from kafscale.security.acls import AclBinding, AclFilter, AclOperation, ResourceType
from kafscale.testing.metadata import MemoryMetadataStore
from tests.api.principals import binding
from tests.devtools.processes.sasl import PASSWORD, verifier_of

COUNT = 10 * STEPS_PER_TURN
Work = Callable[[], Awaitable[object]]


async def alter_groups(_: Path) -> Work:
    """A set of all groups was made for each of them: 10,000 stopped the event loop for 2.7 s."""
    groups = GroupConfigs(MemoryMetadataStore())
    changes = [NewConfigs(name=f"g{n}", overrides=lambda _: {SESSION_TIMEOUT: "50000"}) for n in range(COUNT)]
    return lambda: groups.alter(changes)


async def alter_topics(_: Path) -> Work:
    topics = TopicRegistry(store=MemoryMetadataStore(), settings=Settings(limits=Limits(max_topics_count=COUNT)))
    await topics.create([NewTopic(name=f"t{n}") for n in range(COUNT)])
    changes = [NewConfigs(name=f"t{n}", overrides=lambda _: {"retention.ms": "1"}) for n in range(COUNT)]
    return lambda: topics.alter(changes)


async def alter_quotas(_: Path) -> Work:
    quotas = ClientQuotas(MemoryMetadataStore())
    changes = [QuotaChange(entity=QuotaEntity(user=f"u{n}"), values={PRODUCER_BYTE_RATE: 1.0}) for n in range(COUNT)]
    return lambda: quotas.alter(changes)


async def alter_passwords(directory: Path) -> Work:
    """10,000 stopped the event loop for 0.4 s while they were encrypted, and as long when they were read back."""
    users = ScramUsers(store=MemoryMetadataStore(), key_file=directory / "key", may_make_key=True)
    verifier = verifier_of(SaslMechanism.SCRAM_SHA_256, PASSWORD)
    await users.alter({CredentialKey(SaslMechanism.SCRAM_SHA_256, "first"): verifier})  # makes the key, in a thread
    changes = {CredentialKey(SaslMechanism.SCRAM_SHA_256, f"u{n}"): verifier for n in range(COUNT)}
    return lambda: users.alter(changes)


def bindings() -> list[AclBinding]:
    return [binding("alice", AclOperation.READ, ResourceType.TOPIC, f"t{n}") for n in range(COUNT)]


async def create_acls(_: Path) -> Work:
    acls, wanted = AclRegistry(MemoryMetadataStore()), bindings()
    return lambda: acls.create(wanted)


async def delete_acls(_: Path) -> Work:
    """Ten filters that each find 10,000 stopped the event loop for 0.4 s: each of their findings was hashed anew."""
    acls = AclRegistry(MemoryMetadataStore())
    await acls.create(bindings())
    return lambda: acls.delete([AclFilter(principal="User:alice")])


# How often each change is looked at by turns: while it is planned, and while it is encoded.
PASSES: Mapping[Callable[[Path], Awaitable[Work]], int] = {
    alter_groups: 2,
    alter_topics: 1,
    alter_quotas: 2,
    alter_passwords: 1,
    create_acls: 2,
    delete_acls: 2,
}


async def turns_of_others(work: Work) -> int:
    """Return how often another task ran meanwhile."""
    turns = 0

    async def run_beside() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_beside)
        await work()
        nursery.cancel_scope.cancel()
    return turns


@pytest.mark.parametrize("make", PASSES, ids=lambda make: make.__name__)
async def test_a_large_change_yields_to_other_tasks(make: Callable[[Path], Awaitable[Work]], tmp_path: Path) -> None:
    work = await make(tmp_path)
    assert await turns_of_others(work) >= PASSES[make] * (COUNT // STEPS_PER_TURN - 1)
