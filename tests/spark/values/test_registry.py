"""The registry's client: credentials, several URLs, another attempt, what it keeps, and what it says of failures."""

import pickle
import re
import ssl

import pytest

from kafscale.errors import ConfigError, RegistryError, UnknownSchema
from kafscale.spark.values.registry import UNKNOWN_SECONDS, RegistryClient, RegistryOptions
from kafscale.spark.values.registry_credentials import Credentials
from kafscale.testing.certificates import make_authority
from tests.devtools.registry import Registry, running_registry


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


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secured(authority):
    """A registry with TLS that wants a password."""
    context = authority.issue("registry").server_context()
    with running_registry(Registry(basic_auth="user:secret"), context) as running:
        running.register("s", '"int"')
        yield running, context


def client_by(file, registry, text, **given):
    file.write_text(text)
    return RegistryClient(
        options=Credentials(config_file=str(file), **given).options(registry.url, {}), sleep=lambda seconds: None
    )


@pytest.mark.parametrize("prefix", ["", "schema.registry."])
def test_a_registry_with_tls_and_a_password_by_a_file_of_confluents_names(authority, secured, tmp_path, prefix):
    registry, _ = secured
    text = f"{prefix}basic.auth.credentials.source=USER_INFO\n{prefix}basic.auth.user.info=user:secret\n"
    text += f"{prefix}ssl.ca.location={authority.ca_file}\n"
    client = client_by(tmp_path / "registry.properties", registry, text)
    assert client.by_subject("s").id == 1
    client.close()
    assert "secret" not in repr(client.options)
    assert pickle.loads(pickle.dumps(client.options)) == client.options  # as tasks get it


def test_names_with_the_prefix_count_alone(authority, secured, tmp_path):
    """As those without it are of the brokers then."""
    registry, _ = secured
    text = "ssl.ca.location=/nowhere\nsasl.mechanism=PLAIN\nschema.registry.basic.auth.user.info=user:secret\n"
    text += f"schema.registry.ssl.ca.location={authority.ca_file}\n"
    client = client_by(tmp_path / "client.properties", registry, text)
    assert client.by_subject("s").id == 1
    client.close()


def test_a_registry_that_wants_a_certificate(authority, secured, tmp_path):
    registry, context = secured
    context.load_verify_locations(authority.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    shown = authority.issue("client")
    text = f"ssl.ca.location={authority.ca_file}\nbasic.auth.user.info=user:secret\n"
    with pytest.raises(RegistryError, match="no schema registry answers"):
        client_by(tmp_path / "none", registry, text).by_subject("s")
    text += f"ssl.certificate.location={shown.certificate_file}\nssl.key.location={shown.key_file}\n"
    client = client_by(tmp_path / "one", registry, text)
    assert client.by_subject("s").id == 1
    client.close()


def test_a_registry_of_another_authority_is_not_trusted(secured, tmp_path):
    registry, _ = secured
    other = make_authority(tmp_path, "another")
    for options in ({}, {"ca_file": str(other.ca_file)}):
        with pytest.raises(RegistryError, match="certificate verify failed"):
            client_of(registry.url, basic_auth="user:secret", **options).by_subject("s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("basic.auth.user=u:p", "basic.auth.user is not known here; allowed: basic.auth.credentials.source, "),
        ("basic.auth.credentials.source=SASL_INHERIT", "is 'SASL_INHERIT'; allowed: USER_INFO"),
        ("bearer.auth.credentials.source=OAUTHBEARER", "is 'OAUTHBEARER'; allowed: STATIC_TOKEN"),
        ("ssl.truststore.location=a.jks", "the schema registry's ssl.truststore.type: 'JKS' can't be read here"),
        ("ssl.ca.location=/nowhere", "the schema registry's ssl.ca.location: '/nowhere' can't be read"),
        ("basic.auth.user.info=user", "has the form user:password"),
    ],
)
def test_a_file_of_settings_that_is_wrong(registry, tmp_path, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        client_by(tmp_path / "registry.properties", registry, text)
    assert "u:p" not in str(caught.value)


def test_authorities_are_given_once(registry, tmp_path):
    with pytest.raises(ConfigError, match="authorities of the schema registry once"):
        client_by(tmp_path / "registry.properties", registry, "ssl.ca.location=a", ca_file="b")


def test_what_is_given_goes_before_the_file(registry, tmp_path):
    registry.basic_auth = "user:given"
    client = client_by(tmp_path / "f", registry, "basic.auth.user.info=user:file", basic_auth="user:given")
    assert client.by_id(1).id == 1
    client.close()


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
