"""The registry's client: credentials, several URLs, another attempt, what it keeps, and what it says of failures."""

import itertools
import pickle
import re
import ssl
import time
import tracemalloc
from contextlib import closing

import pytest

from kafscale.backoff import Backoff
from kafscale.errors import ConfigError, RegistryError, UnknownSchema
from kafscale.login import tokens
from kafscale.testing.certificates import make_authority
from kafscale.values import registry as _registry
from kafscale.values.credentials import RegistryCredentials
from kafscale.values.registry import (
    ANSWER_MAX_BYTES,
    LAG_PAUSES_SECONDS,
    LOOKUP_SECONDS,
    UNKNOWN_SECONDS,
    OAuthOptions,
    RegistryClient,
    RegistryOptions,
)
from tests.devtools.external.http_servers import CLIENT_ID, CLIENT_SECRET, Endpoint, sending_server, token_endpoint
from tests.devtools.external.registry import Registry, running_registry


@pytest.fixture
def registry():
    with running_registry() as running:
        running.register("s", '"int"')
        yield running


def client_of(*urls: str, **options: str) -> RegistryClient:
    return RegistryClient(options=RegistryOptions(urls=urls, **options), sleep=lambda seconds: None)


def test_a_schema_is_cached_and_an_unknown_id_is_requested_again_later(registry):
    now = [0.0]
    client = RegistryClient(
        options=RegistryOptions(urls=(registry.url,)), clock=lambda: now[0], sleep=lambda seconds: None
    )
    assert client.by_id(1).text == client.by_id(1).text == '"int"'
    for _ in range(2):
        with pytest.raises(UnknownSchema, match="no schema 2"):
            client.by_id(2)
    assert client.request_count == 2 + len(LAG_PAUSES_SECONDS)
    registry.register("s", '"long"')
    now[0] += UNKNOWN_SECONDS
    assert client.by_id(2).text == '"long"'
    client.close()


def test_a_schema_that_a_registry_has_not_heard_of_yet_is_waited_for(registry):
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            registry.register("s", '"long"')

    client = RegistryClient(options=RegistryOptions(urls=(registry.url,)), sleep=sleep)
    assert client.by_id(2).text == '"long"'
    assert pauses == list(LAG_PAUSES_SECONDS[:2])
    client.close()


def test_a_schema_unknown_to_one_registry_is_requested_from_another(registry):
    with running_registry() as behind:
        client = client_of(behind.url, registry.url)
        client.sleep = lambda seconds: pytest.fail("it was waited for")
        assert client.by_id(1).text == '"int"'
        client.close()


def test_garbage_is_not_waited_for_again_and_again(registry):
    now, pauses = [0.0], []
    client = RegistryClient(options=RegistryOptions(urls=(registry.url,)), clock=lambda: now[0], sleep=pauses.append)

    def ask(*schema_ids: int) -> int:
        """Ask for unknown ones, and return how often it was waited."""
        pauses.clear()
        for schema_id in schema_ids:
            with pytest.raises(UnknownSchema):
                client.by_id(schema_id)
        return len(pauses)

    assert ask(*range(100, 200)) == len(LAG_PAUSES_SECONDS)
    now[0] += UNKNOWN_SECONDS
    assert ask(*range(100, 200)) == 0, "they were waited for, or could have been"
    assert ask(7) == len(LAG_PAUSES_SECONDS)
    client.close()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_another_attempt_follows_a_passing_failure(registry, status):
    registry.failures = [status, status]
    client = client_of(registry.url)
    assert client.by_subject("s").id == 1
    client.close()


def test_the_next_url_is_used_when_one_does_not_answer(registry):
    with running_registry() as gone:
        pass
    client = client_of(gone.url, registry.url)
    assert client.by_id(1).id == 1
    client.close()
    with pytest.raises(RegistryError, match=r"no schema registry answers \(http://127.*check that it runs"):
        client_of(gone.url).by_id(1)


def test_credentials_are_sent_and_their_refusal_is_an_error(registry):
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
        options=RegistryCredentials(config_file=str(file), **given).options(registry.url, {}),
        sleep=lambda seconds: None,
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
        ("bearer.auth.credentials.source=CUSTOM", "is 'CUSTOM'; allowed: STATIC_TOKEN, OAUTHBEARER"),
        (
            "bearer.auth.credentials.source=OAUTHBEARER\nbearer.auth.issuer.endpoint.url=https://i\nbearer.auth.client.id=i",
            "bearer.auth.client.secret is missing, which bearer.auth.credentials.source=OAUTHBEARER needs",
        ),
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


@pytest.fixture
def issuer(authority):
    with token_endpoint(authority.issue("issuer").server_context()) as running:
        running.answers = [(200, {"access_token": f"token-{number}", "expires_in": 100}) for number in (1, 2)]
        yield running


def oauth(issuer: Endpoint, authority, **more: str) -> str:
    settings = {
        "credentials.source": "OAUTHBEARER",
        "issuer.endpoint.url": issuer.url,
        "client.id": CLIENT_ID,
        "client.secret": CLIENT_SECRET,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return "".join(f"bearer.auth.{name}={value}\n" for name, value in settings.items()) + (
        f"ssl.ca.location={authority.ca_file}\n"
    )


def test_oauth_tokens_are_requested_by_confluents_configuration_names(
    authority, secured, issuer, tmp_path, monkeypatch
):
    registry, _ = secured
    registry.basic_auth, registry.bearer_token = None, "token-1"
    text = oauth(issuer, authority, scope="read", logical_cluster="lsrc-1", identity_pool_id="pool-1")
    client = client_by(tmp_path / "f", registry, text)
    assert pickle.loads(pickle.dumps(client.options)) == client.options
    assert CLIENT_SECRET not in repr(client.options)
    assert client.by_subject("s").id == 1
    (asked,) = issuer.asked  # the token served for both requests
    assert len(registry.requests) == 2
    assert asked.credentials == f"{CLIENT_ID}:{CLIENT_SECRET}"
    assert asked.form == {"grant_type": ["client_credentials"], "scope": ["read"]}
    assert registry.headers[0]["target-sr-cluster"] == "lsrc-1"
    assert registry.headers[0]["confluent-identity-pool-id"] == "pool-1"
    now = tokens.time.time()
    monkeypatch.setattr(tokens.time, "time", lambda: now + 90)  # of 100 s
    registry.bearer_token = "token-2"
    assert client.by_subject("s", 1).id == 1
    client.close()


def test_an_issuers_refusal_is_a_registry_error_and_not_a_dead_letter(authority, secured, issuer, tmp_path):
    registry, _ = secured
    issuer.answers = [(401, {"error": "invalid_client"})]
    client = client_by(tmp_path / "f", registry, oauth(issuer, authority))
    with pytest.raises(RegistryError, match=r"can't be asked: no token for 'an app' from .*invalid_client"):
        client.by_id(1)
    assert not registry.requests
    client.close()


def test_an_issuer_of_another_authority_is_not_trusted(secured, issuer, authority, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "BACKOFF", Backoff(0.0))
    registry, _ = secured
    other = make_authority(tmp_path, "another")
    client = client_by(tmp_path / "f", registry, oauth(issuer, other))
    with pytest.raises(RegistryError, match="certificate verify failed"):
        client.by_id(1)
    client.close()


def test_given_credentials_override_the_config_file(registry, tmp_path):
    registry.basic_auth = "user:given"
    client = client_by(tmp_path / "f", registry, "basic.auth.user.info=user:file", basic_auth="user:given")
    assert client.by_id(1).id == 1
    client.close()


def test_a_server_that_is_not_a_registry_is_not_taken_for_an_unknown_id(registry):
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
        {
            "urls": ("http://r",),
            "bearer_token": "c",
            "oauth": OAuthOptions(url="http://i", client_id="", client_secret=""),
        },
    ],
)
def test_options_that_can_not_work_are_refused(options):
    with pytest.raises(ConfigError):
        RegistryOptions(**options)


def answering(body: bytes, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + (head or b"Content-Length: %d\r\n" % len(body)) + b"\r\n" + body


@pytest.mark.parametrize(
    "answer",
    [
        answering(b"[" * 200_000),
        answering(b'{"schema": ' + b"[" * 200_000),
        answering(b"{}", b"Content-Length: 1000000000000\r\n"),
        answering(b'{"schema": 5}'),
        answering(b'{"schema": "int", "schemaType": ["AVRO"]}'),
        answering(b'{"schema": "int", "references": {"a": 1}}'),
        answering(b'{"schema": "int", "references": [5]}'),
        answering(b'{"schema": "int", "references": [{"name": "n", "subject": 5, "version": 1}]}'),
        answering(b'{"schema": "int", "references": [{"name": "n", "subject": "s", "version": "x"}]}'),
        answering(b'{"id": 1e400}'),
        answering(b'{"id": "x"}'),
        answering(b'{"id": true}'),
    ],
    ids=range(12),
)
def test_a_malformed_registry_answer_is_a_registry_error(answer):
    with sending_server(lambda: [answer]) as url, closing(client_of(url, timeout_seconds=5.0)) as client:
        with pytest.raises(RegistryError) as caught:
            client.by_id(1)
        assert type(caught.value) is RegistryError
        with pytest.raises(RegistryError):
            client.by_subject("s")


def test_an_endless_answer_of_a_registry_took_all_memory():
    head, piece = answering(b"", b"A: b\r\n"), b" " * 65536
    with (
        sending_server(lambda: itertools.chain([head], itertools.repeat(piece))) as url,
        closing(client_of(url)) as client,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(RegistryError, match="more than 8388608 bytes"):
                client.by_id(1)
            assert tracemalloc.get_traced_memory()[1] < 4 * ANSWER_MAX_BYTES
        finally:
            tracemalloc.stop()


def test_a_registry_that_sends_a_byte_now_and_then_held_a_task_for_ever():
    pieces = [answering(b"", b"Content-Length: 5000\r\n"), *[b" "] * 5000]
    with (
        sending_server(lambda: pieces, pause_seconds=0.02) as url,
        closing(client_of(url, timeout_seconds=0.3)) as client,
    ):
        began = time.monotonic()
        with pytest.raises(RegistryError, match=r"in time|timed out"):
            client.by_id(1)
        assert time.monotonic() - began < 10


def test_a_lookup_with_many_references_has_one_end(registry):
    """Each of its requests is answered in time; all together take a second each here."""
    reference = {"subject": "s", "version": 1}
    many = tuple({"name": f"n{number}", **reference} for number in range(1000))
    schema_id = registry.register("many", '"long"', references=many)
    client = client_of(registry.url)
    client.clock = lambda: float(client.request_count)
    with pytest.raises(RegistryError, match=r"with its references in 60 s"):
        client.by_id(schema_id)
    assert client.request_count <= LOOKUP_SECONDS + 1
    assert client.by_id(1).text == '"int"'
    client.close()


def test_lookup_bytes_and_the_schema_cache_are_bounded(registry, monkeypatch):
    first, second = (registry.register(name, f'"{name * 2000}"') for name in ("a", "b"))
    client = client_of(registry.url)
    monkeypatch.setattr(_registry, "KEPT_MAX_LENGTH", 3000)
    for _ in range(2):
        client.by_id(first)
        client.by_id(second)
    assert client.request_count == 2
    client.by_id(registry.register("c", '"c"'))
    assert len(client._schemas) == 1
    both = tuple({"name": name, "subject": name, "version": 1} for name in ("a", "b"))
    monkeypatch.setattr(_registry._Lookup.__init__, "__defaults__", (3000,))
    with pytest.raises(RegistryError, match="have more than"):
        client.by_id(registry.register("d", '"d"', references=both))
    client.close()
