"""AlterClientQuotas and DescribeClientQuotas: what is refused, what is listed, and that it acts at once."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from kafscale.api.configs import alter_client_quotas, describe_client_quotas
from kafscale.api.configs.describe_client_quotas import ANY, THE_DEFAULT, THIS_NAME
from kafscale.client.connection import Connection
from kafscale.cluster.registries.client_quotas import (
    CLIENT_ID,
    DEFAULT,
    IP,
    USER,
    ClientQuotas,
    Name,
    QuotaChange,
    QuotaEntity,
)
from kafscale.cluster.registries.topics import NewTopic
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import INVALID_REQUEST, NONE, UNSUPPORTED_VERSION
from kafscale.wire.messages.configs import (
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ClientQuotasEntity,
    DescribeClientQuotasComponent,
    DescribeClientQuotasRequest,
)
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import Record, build_batch
from tests.api.handlers import ask, some_call, some_services
from tests.api.one_topic import TOPIC
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

RATE = 10_000
MIXED = (
    "Invalid entity filter component combination. IP filter component should not be used with user or "
    "clientId filter component."
)


def entry(client_id: str | None, *ops: AlterClientQuotasOp, entity_type: str = CLIENT_ID) -> AlterClientQuotasEntry:
    return entry_of({entity_type: client_id}, *ops)


def entry_of(names: dict[str, str | None], *ops: AlterClientQuotasOp) -> AlterClientQuotasEntry:
    entity = [ClientQuotasEntity(entity_type=kind, entity_name=name) for kind, name in names.items()]
    return AlterClientQuotasEntry(entity=entity, ops=list(ops))


def rate(value: float, key: str = "producer_byte_rate") -> AlterClientQuotasOp:
    return AlterClientQuotasOp(key=key, value=value)


REMOVE = AlterClientQuotasOp(key="producer_byte_rate", remove=True)


@pytest.mark.parametrize("version", range(2))
async def test_each_entry_is_accepted_or_refused_separately(version: int) -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    request = AlterClientQuotasRequest(
        entries=[
            entry("good", rate(5.0)),
            entry("small", rate(0.0)),
            entry("good", rate(6.0)),
            entry(None, rate(7.0, "consumer_byte_rate")),
            entry_of({USER: "alice", CLIENT_ID: None}, rate(0.5, "request_percentage")),
            entry("192.0.2.1", rate(3.0, "connection_creation_rate"), entity_type=IP),
        ]
    )
    response: Any = await ask(alter_client_quotas.API, services, request, version=version)
    codes = [each.error_code for each in response.entries]
    assert codes == [NONE, INVALID_REQUEST, INVALID_REQUEST, NONE, NONE, NONE]
    assert all(bool(each.error_message) == bool(each.error_code) for each in response.entries)
    assert response.entries[0].entity[0].entity_name == "good"
    assert services.client_quotas.all() == {
        QuotaEntity(client_id="good"): {"producer_byte_rate": 5.0},
        QuotaEntity(client_id=DEFAULT): {"consumer_byte_rate": 7.0},
        QuotaEntity(user="alice", client_id=DEFAULT): {"request_percentage": 0.5},
        QuotaEntity(ip="192.0.2.1"): {"connection_creation_rate": 3.0},
    }


ENTITY = "ClientQuotaEntity(entries={client-id=a})"


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (entry_of({}, rate(1)), "Invalid empty client quota entity"),
        (entry_of({"group": "a"}, rate(1)), "Unhandled client quota entity type: group"),
        (entry("", rate(1)), "Empty client-id not supported"),
        (entry("", rate(1), entity_type=USER), "Empty user not supported"),
        *(
            (
                entry_of({IP: None, other: "a"}, rate(1, "connection_creation_rate")),
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
            )
            for other in (USER, CLIENT_ID)
        ),
        (entry("a" * 1001, rate(1)), "A client-id with a quota has at most 1000 characters"),
        (entry("localhost", rate(1), entity_type=IP), "localhost is not a valid IP"),
        (entry(None, rate(1), entity_type=IP), "Invalid configuration key producer_byte_rate"),
        (entry("a", rate(1, "connection_creation_rate")), "Invalid configuration key connection_creation_rate"),
        (entry("a", rate(1, "nope")), "Invalid configuration key nope"),
        (
            entry("a", rate(1), rate(2)),
            f"Duplicate quota key producer_byte_rate not updating quota for this entity {ENTITY}",
        ),
        (entry("a", rate(0)), "Quota producer_byte_rate must be greater than 0"),
        (entry("a", rate(-1, "request_percentage")), "Quota request_percentage must be greater than 0"),
        (entry("a", rate(float("nan"))), "Quota producer_byte_rate must be greater than 0"),
        (entry("a", rate(0.5)), "producer_byte_rate cannot be a fractional value."),
        (entry("a", rate(1e19)), "Proposed value for producer_byte_rate is too large for a LONG."),
        (
            entry("a", rate(float("inf"), "controller_mutation_rate")),
            "Proposed value for controller_mutation_rate is too large for a DOUBLE.",
        ),
        (
            entry(None, rate(2.0**31, "connection_creation_rate"), entity_type=IP),
            "Proposed value for connection_creation_rate is too large for a INT.",
        ),
        (
            entry(None, rate(1.5, "connection_creation_rate"), entity_type=IP),
            "connection_creation_rate cannot be a fractional value.",
        ),
    ],
)
async def test_invalid_quotas_are_refused_as_in_kafka(refused: AlterClientQuotasEntry, why: str) -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    for validate_only in (False, True):
        request = AlterClientQuotasRequest(entries=[refused], validate_only=validate_only)
        response: Any = await ask(alter_client_quotas.API, services, request)
        assert [(each.error_code, each.error_message) for each in response.entries] == [(INVALID_REQUEST, why)]
    assert services.client_quotas.all() == {}


async def test_a_name_that_is_longer_than_a_message_can_be_is_refused_in_a_message() -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    request = AlterClientQuotasRequest(entries=[entry("a" * 32_000, rate(1), rate(2))])
    response: Any = await ask(alter_client_quotas.API, services, request, version=0)
    assert response.entries[0].error_code == INVALID_REQUEST


async def test_a_type_that_is_named_twice_is_refused() -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    twice = [ClientQuotasEntity(entity_type=USER, entity_name=name) for name in ("a", "b")]
    request = AlterClientQuotasRequest(entries=[AlterClientQuotasEntry(entity=twice, ops=[rate(1)])])
    response: Any = await ask(alter_client_quotas.API, services, request)
    assert response.entries[0].error_message == "Invalid client quota entity, duplicate entity entry user"


async def test_ip_addresses_are_stored_in_one_normal_form() -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    for address, value in (("2001:DB8:0::1", 1.0), ("2001:db8::1", 2.0), ("::ffff:192.0.2.1", 3.0)):
        change = entry(address, rate(value, "connection_creation_rate"), entity_type=IP)
        await ask(alter_client_quotas.API, services, AlterClientQuotasRequest(entries=[change]))
    assert {each.ip for each in services.client_quotas.all()} == {"2001:db8::1", "192.0.2.1"}
    assert services.client_quotas.connection_rate("2001:db8::1") == 2


async def test_a_missing_quota_can_be_removed() -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    nothing = AlterClientQuotasOp(key="nope", remove=True)
    response: Any = await ask(
        alter_client_quotas.API, services, AlterClientQuotasRequest(entries=[entry("a", nothing)])
    )
    assert response.entries[0].error_code == NONE


async def test_validate_only_changes_nothing() -> None:
    services = some_services(client_quotas=ClientQuotas(MemoryMetadataStore()))
    request = AlterClientQuotasRequest(entries=[entry("a", rate(5.0))], validate_only=True)
    response: Any = await ask(alter_client_quotas.API, services, request)
    assert response.entries[0].error_code == NONE
    assert services.client_quotas.all() == {}


def component(match_type: int, match: str | None = None, entity_type: str = CLIENT_ID) -> DescribeClientQuotasComponent:
    return DescribeClientQuotasComponent(entity_type=entity_type, match_type=match_type, match=match)


ENTITIES: dict[str, dict[str, Name]] = {
    "U": {USER: "alice"},
    "u": {USER: DEFAULT},
    "C": {CLIENT_ID: "a"},
    "c": {CLIENT_ID: DEFAULT},
    "UC": {USER: "alice", CLIENT_ID: "a"},
    "Uc": {USER: "alice", CLIENT_ID: DEFAULT},
    "uc": {USER: DEFAULT, CLIENT_ID: DEFAULT},
    "I": {IP: "192.0.2.1"},
    "i": {IP: DEFAULT},
}


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, set(ENTITIES)),
        ([], True, set()),
        ([component(ANY)], True, {"C", "c"}),
        ([component(ANY)], False, {"C", "c", "UC", "Uc", "uc"}),
        ([component(THIS_NAME, "a")], True, {"C"}),
        ([component(THIS_NAME, "a")], False, {"C", "UC"}),
        ([component(THE_DEFAULT)], True, {"c"}),
        ([component(THE_DEFAULT)], False, {"c", "Uc", "uc"}),
        ([component(ANY, entity_type=USER)], True, {"U", "u"}),
        ([component(THIS_NAME, "alice", USER)], False, {"U", "UC", "Uc"}),
        ([component(THIS_NAME, "bob", USER)], False, set()),
        ([component(THIS_NAME, "alice", USER), component(ANY)], True, {"UC", "Uc"}),
        ([component(THE_DEFAULT, None, USER), component(THE_DEFAULT)], True, {"uc"}),
        ([component(ANY, entity_type=IP)], True, {"I", "i"}),
        ([component(THIS_NAME, "192.0.2.1", IP)], False, {"I"}),
    ],
)
async def test_entities_are_filtered(
    components: list[DescribeClientQuotasComponent], strict: bool, found: set[str]
) -> None:
    quotas = ClientQuotas(MemoryMetadataStore())
    await quotas.alter([QuotaChange(entity=QuotaEntity.of(each), values={"k": 1.0}) for each in ENTITIES.values()])
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    response: Any = await ask(describe_client_quotas.API, some_services(client_quotas=quotas), request)
    told = [{part.entity_type: part.entity_name or DEFAULT for part in each.entity} for each in response.entries]
    by_text = {repr(sorted(each.items())) for each in told}
    assert (by_text, len(told)) == ({repr(sorted(ENTITIES[each].items())) for each in found}, len(found))
    assert all(each.values[0].value == 1.0 for each in response.entries)


async def test_the_client_id_of_an_entity_comes_before_its_user_as_in_kafka() -> None:
    quotas = ClientQuotas(MemoryMetadataStore())
    await quotas.alter([QuotaChange(entity=QuotaEntity(user="u", client_id=DEFAULT), values={"k": 1.0})])
    request = DescribeClientQuotasRequest(components=[], strict=False)
    response = await ask(describe_client_quotas.API, some_services(client_quotas=quotas), request)
    (found,) = response.entries
    assert [(part.entity_type, part.entity_name) for part in found.entity] == [(CLIENT_ID, None), (USER, "u")]


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


async def test_a_quota_applies_at_once_and_survives_restarts_until_removed(autojump_clock: MockClock) -> None:
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


async def test_a_quota_set_at_run_time_overrides_the_option(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts(), memory_settings(producer_byte_rate=RATE)) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        quotas = running.broker.services.quotas
        client = await running.connect()

        def limits() -> list[float | None]:
            assert quotas.producer is not None
            found = [quotas.producer.limit(some_call(each)) for each in ("a", "b")]
            return [each and each.value for each in found]

        assert limits() == [RATE, RATE]
        await alter(client, entry("a", rate(5 * RATE)))
        assert limits() == [5 * RATE, RATE]
        await alter(client, entry(None, rate(3 * RATE)))
        assert limits() == [5 * RATE, 3 * RATE]
        await alter(client, entry("ANONYMOUS", rate(2 * RATE), entity_type=USER))
        assert limits() == [2 * RATE, 2 * RATE]


async def test_unauthenticated_clients_share_the_quota_of_user_anonymous(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker(memory_parts(), memory_settings()) as running:
        await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=1)])
        client, other = await running.connect(), await running.connect()
        other.client_id = "other"
        await alter(client, entry("ANONYMOUS", rate(RATE), entity_type=USER))
        assert await throttled_ms(client, 9 * RATE) == 0
        assert await throttled_ms(other, 9 * RATE) > 7_000
