"""AlterClientQuotas and DescribeClientQuotas: what is refused, what is listed, and that it acts at once."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from kafscale.api.configs import alter_client_quotas, describe_client_quotas
from kafscale.api.configs.describe_client_quotas import ANY, CLIENT_ID, IP, THE_DEFAULT, THIS_NAME, USER
from kafscale.client.connection import Connection
from kafscale.cluster.client_quotas import ClientQuotas, QuotaChange
from kafscale.cluster.topics.topics import NewTopic
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import INVALID_REQUEST, NONE, UNSUPPORTED_VERSION
from kafscale.wire.messages.alter_client_quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kafscale.wire.messages.describe_client_quotas import DescribeClientQuotasComponent, DescribeClientQuotasRequest
from kafscale.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import Record, build_batch
from tests.devtools.handlers import ask, some_services
from tests.devtools.memory_broker import memory_broker, memory_parts, memory_settings
from tests.devtools.one_topic import TOPIC

RATE = 10_000
MIXED = (
    "Invalid entity filter component combination. IP filter component should not be used with user or "
    "clientId filter component."
)


def entry(client_id: str | None, *ops: AlterClientQuotasOp, entity_type: str = CLIENT_ID) -> AlterClientQuotasEntry:
    return AlterClientQuotasEntry(
        entity=[AlterClientQuotasEntity(entity_type=entity_type, entity_name=client_id)], ops=list(ops)
    )


def rate(value: float, key: str = "producer_byte_rate") -> AlterClientQuotasOp:
    return AlterClientQuotasOp(key=key, value=value)


REMOVE = AlterClientQuotasOp(key="producer_byte_rate", remove=True)


@pytest.mark.parametrize("version", range(2))
async def test_each_entry_is_accepted_or_refused_on_its_own(version: int) -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    request = AlterClientQuotasRequest(
        entries=[
            entry("good", rate(5.0)),
            entry("small", rate(0.0)),
            entry("nan", rate(float("nan"))),
            entry("part", rate(0.5)),
            entry("twice", rate(1.0), rate(2.0)),
            entry("other", rate(1.0, "request_percentage")),
            entry("alice", rate(1.0), entity_type="user"),
            AlterClientQuotasEntry(entity=[], ops=[rate(1.0)]),
            entry(None, rate(7.0, "consumer_byte_rate")),
        ]
    )
    response: Any = await ask(alter_client_quotas.API, services, request, version=version)
    codes = [each.error_code for each in response.entries]
    assert codes == [NONE, *[INVALID_REQUEST] * 7, NONE]
    assert all(bool(each.error_message) == bool(each.error_code) for each in response.entries)
    assert response.entries[0].entity[0].entity_name == "good"
    assert services.client_quotas.all() == {"good": {"producer_byte_rate": 5.0}, None: {"consumer_byte_rate": 7.0}}


async def test_what_is_only_validated_is_not_done() -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    request = AlterClientQuotasRequest(entries=[entry("a", rate(5.0))], validate_only=True)
    response: Any = await ask(alter_client_quotas.API, services, request)
    assert response.entries[0].error_code == NONE
    assert services.client_quotas.all() == {}


def component(match_type: int, match: str | None = None, entity_type: str = CLIENT_ID) -> DescribeClientQuotasComponent:
    return DescribeClientQuotasComponent(entity_type=entity_type, match_type=match_type, match=match)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, {"a", "b", None}),
        ([], True, set()),
        ([component(ANY)], True, {"a", "b", None}),
        ([component(THIS_NAME, "a")], False, {"a"}),
        ([component(THE_DEFAULT)], False, {None}),
        ([component(ANY, entity_type=USER)], False, set()),
        ([component(ANY, entity_type=IP)], False, set()),
        ([component(ANY), component(ANY, entity_type=USER)], False, set()),
    ],
)
async def test_entities_are_filtered(
    components: list[DescribeClientQuotasComponent], strict: bool, found: set[str | None]
) -> None:
    quotas = ClientQuotas(MemoryMetadataStore())
    await quotas.alter([QuotaChange(client_id=each, values={"producer_byte_rate": 1.0}) for each in ("a", "b", None)])
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    response: Any = await ask(describe_client_quotas.API, some_services(client_quotas=quotas), request)
    assert {each.entity[0].entity_name for each in response.entries} == found
    assert all(each.values[0].value == 1.0 for each in response.entries)


@pytest.mark.parametrize(
    ("components", "code", "why"),
    [
        ([component(9)], INVALID_REQUEST, "Unknown match type 9"),
        ([component(THIS_NAME)], INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        *(
            ([component(each, "a")], INVALID_REQUEST, f"Request specified {name}, but also specified a match string.")
            for each, name in ((THE_DEFAULT, "MATCH_TYPE_DEFAULT"), (ANY, "MATCH_TYPE_SPECIFIED"))
        ),
        (
            [component(ANY), component(THIS_NAME, "a")],
            INVALID_REQUEST,
            "Entity type client-id cannot appear more than once in the filter.",
        ),
        ([component(ANY, entity_type="")], INVALID_REQUEST, "Invalid empty entity type."),
        ([component(ANY, entity_type="nope")], UNSUPPORTED_VERSION, "Unsupported entity type nope"),
        *(
            (
                [component(ANY, entity_type=IP), component(ANY, entity_type=other)],
                INVALID_REQUEST,
                MIXED,
            )
            for other in (USER, CLIENT_ID)
        ),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused_as_in_kafka(
    components: list[DescribeClientQuotasComponent], code: int, why: str
) -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    response: Any = await ask(describe_client_quotas.API, services, DescribeClientQuotasRequest(components=components))
    assert (response.error_code, response.error_message, response.entries) == (code, why, None)


# ---- a broker -------------------------------------------------------------------------------------------------------


async def alter(client: Connection, *entries: AlterClientQuotasEntry) -> None:
    response = await client.request(AlterClientQuotasRequest(entries=list(entries)), AlterClientQuotasResponse)
    assert [each.error_code for each in response.entries] == [NONE] * len(entries)


async def throttled_ms(client: Connection, size_bytes: int) -> int:
    records = memoryview(build_batch([Record(value=bytes(size_bytes))]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    return (await client.request(request, ProduceResponse)).throttle_time_ms


async def test_a_quota_acts_at_once_over_restarts_and_until_it_is_removed(autojump_clock: MockClock) -> None:
    parts = memory_parts()
    async with memory_broker(parts, memory_settings()) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        client, other = await running.connect(), await running.connect()
        other.client_id = "other"
        assert await throttled_ms(client, 20 * RATE) == 0
        await alter(client, entry(client.client_id, rate(RATE)))
        assert await throttled_ms(client, 20 * RATE) > 9_000
        assert await throttled_ms(other, 20 * RATE) == 0
        await alter(other, entry(client.client_id, REMOVE))
        assert await throttled_ms(client, 20 * RATE) == 0
        assert running.broker.services.quotas.producer is None
        await alter(client, entry(None, rate(RATE)))
    async with memory_broker(parts, memory_settings()) as running:
        client = await running.connect()
        assert await throttled_ms(client, 20 * RATE) > 9_000


async def test_a_client_ids_own_rate_and_the_default_go_before_the_setting(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts(), memory_settings(producer_byte_rate=RATE)) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        quotas = running.broker.services.quotas
        assert quotas.producer is not None
        client = await running.connect()
        assert quotas.producer.limit("a") == RATE
        await alter(client, entry("a", rate(5 * RATE)))
        assert [quotas.producer.limit(each) for each in ("a", "b")] == [5 * RATE, RATE]
        await alter(client, entry(None, rate(3 * RATE)))
        assert [quotas.producer.limit(each) for each in ("a", "b")] == [5 * RATE, 3 * RATE]
