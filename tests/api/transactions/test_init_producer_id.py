from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.transactions.init_producer_id import API
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.producer_ids import IDS_PER_EPOCH, NEXT_BLOCK_KEY, ProducerIds
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.transactions import InitProducerIdRequest
from tests.api.handlers import ask, some_services


@pytest.fixture
def services() -> Any:
    return some_services(producer_ids=ProducerIds(MemoryMetadataStore(), first_number=0))


def asking(transactional_id: str | None = None, **has: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000, **has)


@pytest.mark.parametrize("version", range(5))
async def test_each_producer_gets_a_different_id(services: Any, version: int) -> None:
    responses = [await ask(API, services, asking(), version=version) for _ in range(3)]
    assert [(r.error_code, r.producer_id, r.producer_epoch) for r in responses] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


async def test_a_producer_that_names_its_id_gets_a_new_one(services: Any) -> None:
    await ask(API, services, asking())
    response = await ask(API, services, asking(producer_id=0, producer_epoch=4))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 1, 0)


async def test_exhausted_producer_ids_are_answered_with_coordinator_not_available() -> None:
    store = MemoryMetadataStore()
    await store.commit(Transaction(puts={NEXT_BLOCK_KEY: encode(IDS_PER_EPOCH - 1)}))
    services = some_services(producer_ids=ProducerIds(store))
    await services.producer_ids.begin()
    responses = [await ask(API, services, asking()) for _ in range(2)]
    assert [(r.error_code, r.producer_id) for r in responses] == [
        (0, IDS_PER_EPOCH - 1),
        (error_codes.COORDINATOR_NOT_AVAILABLE, -1),
    ]


@pytest.mark.parametrize("has", [{"producer_id": 5}, {"producer_epoch": 5}])
async def test_half_an_identity_is_an_invalid_request(services: Any, has: dict[str, int]) -> None:
    response = await ask(API, services, asking(**has))
    assert (response.error_code, response.producer_id) == (error_codes.INVALID_REQUEST, -1)


@pytest.mark.parametrize("transactional_id", ["", "x" * 1025])
async def test_an_id_that_is_empty_or_too_long_is_an_invalid_request(services: Any, transactional_id: str) -> None:
    """All of them stay in memory."""
    assert (await ask(API, services, asking(transactional_id))).error_code == error_codes.INVALID_REQUEST
