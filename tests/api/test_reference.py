"""The committed reference page is what the table says, and the table is what is promised."""

from __future__ import annotations

import pytest

from kafscale.api.cluster.api_versions import LEVELS
from kafscale.api.table import APIS, every_api
from tests.api.kafka_apis import BROKER_APIS, CONTROLLER_APIS
from tests.docs.reference_pages import FOLDER, NOT_SERVED, PAGES
from tests.wire.wire_messages import message_versions

DECLARED_ONLY: set[str] = set()  # messages whose APIs are not served: who serves one takes it out of here

NEWER_THAN_SERVED: dict[str, int] = {}  # up to which version, where a message is declared beyond what is served

BEYOND_KAFKA = {  # the newest version of calls for which it is not stable in Kafka 4.1, but clients or 4.2 have it
    "OffsetCommit": 10,
    "OffsetFetch": 10,
    "WriteTxnMarkers": 2,
}
NEWEST = {"BrokerHeartbeat": 0}  # the next one has failed log directories, of which nobody would know what to do
OLDEST = {"Produce": 0}  # as Kafka advertises it: librdkafka needs to see it


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_from_the_code(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run: python -m tests.docs.reference_pages"


def test_table_rows_match_the_api_modules() -> None:
    assert [(api.key, api.name, api.min_version, api.max_version) for api in every_api()] == [
        (row.key, row.name, row.min_version, row.max_version) for row in APIS
    ]


def test_api_keys_are_unique_and_versions_match_the_message_classes() -> None:
    assert len({api.key for api in APIS}) == len(APIS)
    for api in every_api():
        for message in (api.request, api.response):
            declared = (message.API_KEY, message.MIN_VERSION, message.MAX_VERSION)  # type: ignore[attr-defined]
            newest = NEWER_THAN_SERVED.get(api.name, api.max_version)
            assert declared == (api.key, api.min_version, newest), api.name
            assert newest >= api.max_version


def without_own_fields(message: type) -> type:
    """The message as Kafka has it."""
    return next(cls for cls in reversed(message.__mro__) if "API_KEY" in vars(cls))


def test_every_declared_message_is_served_except_listed_ones() -> None:
    served = {without_own_fields(message) for api in every_api() for message in (api.request, api.response)}
    declared = {cls for cls, _ in message_versions() if hasattr(cls, "API_KEY")}
    assert {cls.__name__ for cls in declared - served} == {
        name + kind for name in DECLARED_ONLY for kind in ("Request", "Response")
    }
    assert served <= declared


def test_all_that_kafkas_brokers_serve_is_served_or_has_its_reason() -> None:
    served = {api.key: api.name for api in APIS}
    left_out = [(key, name) for each in NOT_SERVED for key, name in each.names.items()]
    assert len(dict(left_out)) == len(left_out)
    assert not served.keys() & dict(left_out).keys()
    assert served | dict(left_out) == {key: api.name for key, api in {**BROKER_APIS, **CONTROLLER_APIS}.items()}
    assert all(each.reason.endswith(".") and "|" not in each.reason for each in NOT_SERVED)


def test_api_versions_match_kafka_except_listed_differences() -> None:
    ours = {api.name: (api.min_version, api.max_version) for api in APIS}
    kafkas = {
        api.name: (OLDEST.get(api.name, api.oldest), (BEYOND_KAFKA | NEWEST).get(api.name, api.newest))
        for api in (*BROKER_APIS.values(), *CONTROLLER_APIS.values())
    }
    assert ours == {name: kafkas[name] for name in ours}


def test_features_are_advertised_exactly_when_their_apis_are_served() -> None:
    served = {api.key for api in APIS}
    about = {"group.version": 68, "share.version": 76, "kraft.version": 80, "streams.version": 88}
    assert {name: LEVELS[name] > 0 for name in about} == {name: key in served for name, key in about.items()}
