"""Quotas of users, client ids and addresses: that they are durable before they act, and read as they were written."""

from __future__ import annotations

import pytest

from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries import client_quotas
from kafscale.cluster.registries.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    Name,
    QuotaChange,
    QuotaEntity,
)
from kafscale.cluster.registries.client_quotas import ClientQuotas as Quotas
from kafscale.errors import KafkaError
from kafscale.testing.metadata import MemoryMetadataStore
from tests.cluster.late_metadata import LateMetadataStore, compete


def setting(client_id: Name, **values: float | None) -> QuotaChange:
    return QuotaChange(entity=QuotaEntity(client_id=client_id), values=values)


def limit(quotas: Quotas, key: str, client_id: str, user: str = "ANONYMOUS") -> float | None:
    found = quotas.limit(key, user, client_id)
    return None if found is None else found.value


def by_client_id(quotas: Quotas) -> dict[Name | None, dict[str, float]]:
    return {entity.client_id: dict(values) for entity, values in quotas.all().items()}


async def test_a_client_ids_own_goes_before_the_default_each_key_for_itself() -> None:
    quotas = Quotas(MemoryMetadataStore())
    await quotas.alter([setting("a", producer_byte_rate=1.0), setting(DEFAULT, producer_byte_rate=5.0)])
    await quotas.alter([setting(DEFAULT, consumer_byte_rate=7.0)])
    assert limit(quotas, PRODUCER_BYTE_RATE, "a") == 1
    assert limit(quotas, PRODUCER_BYTE_RATE, "b") == 5
    assert limit(quotas, CONSUMER_BYTE_RATE, "a") == 7
    await quotas.alter([setting(DEFAULT, producer_byte_rate=None, consumer_byte_rate=None)])
    assert limit(quotas, PRODUCER_BYTE_RATE, "b") is None
    assert limit(quotas, PRODUCER_BYTE_RATE, "a") == 1
    assert not quotas.has(CONSUMER_BYTE_RATE)


@pytest.mark.parametrize("client_id", ["plain", "with/slash", "", "default-client-id", "ü %"])
async def test_quotas_and_their_removal_survive_a_restart(client_id: str) -> None:
    store = MemoryMetadataStore()
    quotas = Quotas(store)
    await quotas.alter([setting(client_id, producer_byte_rate=1.0), setting("gone", producer_byte_rate=2.0)])
    await quotas.alter([setting("gone", producer_byte_rate=None)])
    seen: list[str] = []
    again = Quotas(store)
    again.follow(lambda: seen.append("loaded"))
    await again.load()
    assert by_client_id(again) == {client_id: {PRODUCER_BYTE_RATE: 1.0}}
    assert seen == ["loaded"]


async def test_changes_of_one_client_id_in_one_request_follow_each_other() -> None:
    quotas = Quotas(MemoryMetadataStore())
    changes = [setting("a", producer_byte_rate=1.0, consumer_byte_rate=2.0), setting("a", producer_byte_rate=None)]
    await quotas.alter(changes)
    assert by_client_id(quotas) == {"a": {CONSUMER_BYTE_RATE: 2.0}}


async def test_the_number_of_quotas_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "QUOTAS_MAX_COUNT", 2)
    quotas = Quotas(MemoryMetadataStore())
    await quotas.alter([setting(each, producer_byte_rate=1.0) for each in ("a", "b")])
    with pytest.raises(KafkaError, match="there are 2 client quotas"):
        await quotas.alter([setting("c", producer_byte_rate=1.0)])
    await quotas.alter([setting("a", producer_byte_rate=3.0)])
    assert by_client_id(quotas).keys() == {"a", "b"}


async def test_a_quota_set_by_another_broker_is_applied_and_announced() -> None:
    store = MemoryMetadataStore()
    quotas, other = Quotas(store), Quotas(store)
    told: list[float | None] = []
    quotas.follow(lambda: told.append(limit(quotas, PRODUCER_BYTE_RATE, "a")))
    await other.alter([setting("a", producer_byte_rate=1.0), setting(DEFAULT, producer_byte_rate=5.0)])
    await other.alter([setting("a", producer_byte_rate=None)])
    assert told == [1.0, 5.0]
    assert by_client_id(quotas) == by_client_id(other) == {DEFAULT: {PRODUCER_BYTE_RATE: 5.0}}


async def test_concurrent_quotas_of_one_client_set_by_two_brokers_are_both_kept() -> None:
    """The later one had written over the earlier one what it had known before that."""
    store = LateMetadataStore()
    quotas, other = Quotas(store), Quotas(store)
    await compete(
        store,
        lambda: quotas.alter([setting("a", producer_byte_rate=1.0)]),
        lambda: other.alter([setting("a", consumer_byte_rate=2.0)]),
    )
    assert by_client_id(quotas) == by_client_id(other) == {"a": {PRODUCER_BYTE_RATE: 1.0, CONSUMER_BYTE_RATE: 2.0}}


async def test_two_brokers_together_respect_the_quota_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "QUOTAS_MAX_COUNT", 1)
    store = LateMetadataStore()
    quotas, other = Quotas(store), Quotas(store)
    refused: list[str] = []

    async def alter(registry: Quotas, client_id: str) -> None:
        try:
            await registry.alter([setting(client_id, producer_byte_rate=1.0)])
        except KafkaError:
            refused.append(client_id)

    await compete(store, lambda: alter(quotas, "a"), lambda: alter(other, "b"))
    assert len(refused) == 1
    assert by_client_id(quotas) == by_client_id(other) == {"ab".strip(refused[0]): {PRODUCER_BYTE_RATE: 1.0}}


ENTITIES = [
    QuotaEntity(user="alice"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(user="alice", client_id="a"),
    QuotaEntity(user="alice", client_id=DEFAULT),
    QuotaEntity(user=DEFAULT, client_id="a"),
    QuotaEntity(user=DEFAULT, client_id=DEFAULT),
    QuotaEntity(client_id="a"),
    QuotaEntity(client_id=DEFAULT),
    QuotaEntity(ip="192.0.2.1"),
    QuotaEntity(ip=DEFAULT),
    QuotaEntity(user="CN=a/b&client-id=x, O=ü %"),
    QuotaEntity(user="default", client_id="<default>"),
]


async def test_quotas_of_every_entity_type_survive_a_restart() -> None:
    store = MemoryMetadataStore()
    quotas = Quotas(store)
    values = {entity: {PRODUCER_BYTE_RATE: float(number + 1)} for number, entity in enumerate(ENTITIES)}
    await quotas.alter([QuotaChange(entity=entity, values=each) for entity, each in values.items()])
    again = Quotas(store)
    await again.load()
    assert again.all() == values
    await again.alter([QuotaChange(entity=entity, values={PRODUCER_BYTE_RATE: None}) for entity in ENTITIES])
    assert again.all() == quotas.all() == {}


async def test_quotas_stored_by_a_client_id_only_version_are_read() -> None:
    store = MemoryMetadataStore()
    old = {"client-quotas/client-id/a/b": 1.0, "client-quotas/client-id/": 2.0, "client-quotas/default-client-id": 3.0}
    await store.commit(Transaction(puts={key: encode({PRODUCER_BYTE_RATE: value}) for key, value in old.items()}))
    quotas = Quotas(store)
    await quotas.load()
    assert [limit(quotas, PRODUCER_BYTE_RATE, each) for each in ("a/b", "", "c")] == [1, 2, 3]
    assert {entity.key for entity in quotas.all()} == old.keys()


async def test_an_addresss_own_rate_goes_before_the_default() -> None:
    quotas = Quotas(MemoryMetadataStore())
    assert quotas.connection_rate("192.0.2.1") is None
    await quotas.alter([QuotaChange(entity=QuotaEntity(ip="192.0.2.1"), values={CONNECTION_CREATION_RATE: 5.0})])
    assert [quotas.connection_rate(each) for each in ("192.0.2.1", "192.0.2.2")] == [5, None]
    await quotas.alter([QuotaChange(entity=QuotaEntity(ip=DEFAULT), values={CONNECTION_CREATION_RATE: 2.0})])
    assert [quotas.connection_rate(each) for each in ("192.0.2.1", "192.0.2.2")] == [5, 2]


async def test_quota_entries_of_a_later_version_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The quota of a user in a region was taken for that of the user."""
    store = MemoryMetadataStore()
    quotas = Quotas(store)
    await quotas.load()
    value = b'{"producer_byte_rate":1.0}'
    later = ("quotas/user=alice&region=eu", "quotas/region", "client-quotas/group/g")
    await store.commit(Transaction(puts=dict.fromkeys(later, value) | {"quotas/user=bob": b"[]"}))
    assert not quotas.all()
    assert quotas.limit("producer_byte_rate", "alice", "c") is None
    assert all(key in caplog.text for key in (*later, "quotas/user=bob"))
    await store.commit(Transaction(deletes=later))
