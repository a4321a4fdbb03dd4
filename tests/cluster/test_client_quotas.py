"""Quotas of client ids: what goes before what, and that they are durable before they act."""

from __future__ import annotations

import pytest

from kafscale.cluster import client_quotas
from kafscale.cluster.client_quotas import CONSUMER_BYTE_RATE, DEFAULT_CLIENT, PRODUCER_BYTE_RATE, QuotaChange
from kafscale.cluster.client_quotas import ClientQuotas as Quotas
from kafscale.errors import KafkaError
from kafscale.testing.metadata import MemoryMetadataStore
from tests.devtools.late_metadata import LateMetadataStore, compete


def setting(client_id: str | None, **values: float | None) -> QuotaChange:
    return QuotaChange(client_id=client_id, values=values)


async def test_a_client_ids_own_goes_before_the_default_each_key_for_itself() -> None:
    quotas = Quotas(MemoryMetadataStore())
    await quotas.alter([setting("a", producer_byte_rate=1.0), setting(DEFAULT_CLIENT, producer_byte_rate=5.0)])
    await quotas.alter([setting(DEFAULT_CLIENT, consumer_byte_rate=7.0)])
    assert quotas.limit(PRODUCER_BYTE_RATE, "a") == 1
    assert quotas.limit(PRODUCER_BYTE_RATE, "b") == 5
    assert quotas.limit(CONSUMER_BYTE_RATE, "a") == 7
    await quotas.alter([setting(DEFAULT_CLIENT, producer_byte_rate=None, consumer_byte_rate=None)])
    assert quotas.limit(PRODUCER_BYTE_RATE, "b") is None
    assert quotas.limit(PRODUCER_BYTE_RATE, "a") == 1
    assert not quotas.has(CONSUMER_BYTE_RATE)


@pytest.mark.parametrize("client_id", ["plain", "with/slash", "", "default-client-id", "ü %"])
async def test_they_are_there_after_a_restart_and_what_was_removed_is_not(client_id: str) -> None:
    store = MemoryMetadataStore()
    quotas = Quotas(store)
    await quotas.alter([setting(client_id, producer_byte_rate=1.0), setting("gone", producer_byte_rate=2.0)])
    await quotas.alter([setting("gone", producer_byte_rate=None)])
    seen: list[str] = []
    again = Quotas(store)
    again.follow(lambda: seen.append("loaded"))
    await again.load()
    assert again.all() == {client_id: {PRODUCER_BYTE_RATE: 1.0}}
    assert seen == ["loaded"]


async def test_changes_of_one_client_id_in_one_request_follow_each_other() -> None:
    quotas = Quotas(MemoryMetadataStore())
    changes = [setting("a", producer_byte_rate=1.0, consumer_byte_rate=2.0), setting("a", producer_byte_rate=None)]
    await quotas.alter(changes)
    assert quotas.all() == {"a": {CONSUMER_BYTE_RATE: 2.0}}


async def test_there_is_a_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "QUOTAS_MAX_COUNT", 2)
    quotas = Quotas(MemoryMetadataStore())
    await quotas.alter([setting(each, producer_byte_rate=1.0) for each in ("a", "b")])
    with pytest.raises(KafkaError, match="can't be more than 2"):
        await quotas.alter([setting("c", producer_byte_rate=1.0)])
    await quotas.alter([setting("a", producer_byte_rate=3.0)])
    assert quotas.all().keys() == {"a", "b"}


async def test_what_another_broker_sets_is_followed_and_told() -> None:
    store = MemoryMetadataStore()
    quotas, other = Quotas(store), Quotas(store)
    told: list[float | None] = []
    quotas.follow(lambda: told.append(quotas.limit(PRODUCER_BYTE_RATE, "a")))
    await other.alter([setting("a", producer_byte_rate=1.0), setting(DEFAULT_CLIENT, producer_byte_rate=5.0)])
    await other.alter([setting("a", producer_byte_rate=None)])
    assert told == [1.0, 5.0]
    assert quotas.all() == other.all() == {DEFAULT_CLIENT: {PRODUCER_BYTE_RATE: 5.0}}


async def test_what_two_brokers_set_at_once_for_one_client_is_both_set() -> None:
    """The later one had written over the earlier one what it had known before that."""
    store = LateMetadataStore()
    quotas, other = Quotas(store), Quotas(store)
    await compete(
        store,
        lambda: quotas.alter([setting("a", producer_byte_rate=1.0)]),
        lambda: other.alter([setting("a", consumer_byte_rate=2.0)]),
    )
    assert quotas.all() == other.all() == {"a": {PRODUCER_BYTE_RATE: 1.0, CONSUMER_BYTE_RATE: 2.0}}


async def test_two_brokers_do_not_exceed_the_most_that_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert quotas.all() == other.all() == {"ab".strip(refused[0]): {PRODUCER_BYTE_RATE: 1.0}}
