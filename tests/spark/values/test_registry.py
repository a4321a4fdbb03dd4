"""The registry's client: credentials, several URLs, another attempt, what it keeps, and what it says of failures."""

import pytest

from kafscale.errors import ConfigError, RegistryError, UnknownSchema
from kafscale.spark.values.registry import UNKNOWN_SECONDS, RegistryClient, RegistryOptions
from tests.devtools.registry import running_registry


@pytest.fixture
def registry():
    with running_registry() as running:
        running.register("s", '"int"')
        yield running


def client_of(*urls: str, **options: str) -> RegistryClient:
    return RegistryClient(options=RegistryOptions(urls=urls, **options), sleep=lambda seconds: None)


def test_a_schema_is_kept_and_one_that_is_unknown_is_asked_for_again_later(registry):
    now = [0.0]
    client = RegistryClient(options=RegistryOptions(urls=(registry.url,)), clock=lambda: now[0])
    assert client.by_id(1).text == client.by_id(1).text == '"int"'
    for _ in range(2):
        with pytest.raises(UnknownSchema, match="no schema 2"):
            client.by_id(2)
    assert client.request_count == 2
    registry.register("s", '"long"')
    now[0] += UNKNOWN_SECONDS
    assert client.by_id(2).text == '"long"'
    client.close()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_another_attempt_follows_a_passing_failure(registry, status):
    registry.failures = [status, status]
    client = client_of(registry.url)
    assert client.by_subject("s").id == 1
    client.close()


def test_the_next_url_is_asked_where_one_does_not_answer(registry):
    with running_registry() as gone:
        pass
    client = client_of(gone.url, registry.url)
    assert client.by_id(1).id == 1
    client.close()
    with pytest.raises(RegistryError, match=r"no schema registry answers \(http://127.*check that it runs"):
        client_of(gone.url).by_id(1)


def test_credentials_are_sent_and_their_refusal_is_told(registry):
    registry.basic_auth = "user:secret"
    for options, fits in (({"basic_auth": "user:secret"}, True), ({"basic_auth": "user:wrong"}, False), ({}, False)):
        client = client_of(registry.url, **options)
        if fits:
            assert client.by_id(1).id == 1
        else:
            with pytest.raises(RegistryError, match="check basic auth or bearer token"):
                client.by_id(1)
        client.close()
    registry.basic_auth, registry.bearer_token = None, "token"
    client = client_of(registry.url, bearer_token="token")
    assert client.by_id(1).id == 1
    client.close()
    assert "secret" not in repr(RegistryOptions(urls=(registry.url,), basic_auth="user:secret"))


def test_a_server_that_is_no_registry_is_told_and_not_taken_for_an_unknown_id(registry):
    client = client_of(registry.url + "/wrong")
    with pytest.raises(RegistryError, match="does not answer as a schema registry does") as caught:
        client.by_id(1)
    assert not isinstance(caught.value, UnknownSchema)
    client.close()


def test_a_subject_of_any_name_is_found(registry):
    registry.register("a/b c-value", '"string"')
    client = client_of(registry.url)
    assert client.by_subject("a/b c-value", 1).text == '"string"'
    client.close()


@pytest.mark.parametrize(
    "options",
    [
        {"urls": ()},
        {"urls": ("registry:8081",)},
        {"urls": ("http://r",), "basic_auth": "user"},
        {"urls": ("http://r",), "basic_auth": "a:b", "bearer_token": "c"},
    ],
)
def test_options_that_can_not_work_are_refused(options):
    with pytest.raises(ConfigError):
        RegistryOptions(**options)
