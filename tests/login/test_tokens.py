"""Tokens of OAUTHBEARER that an issuer's endpoint gives, by Kafka's client settings."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafscale.backoff import Backoff
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.login import tokens
from kafscale.login.sasl import client_sasl
from kafscale.login.security import client_security
from kafscale.login.tokens import ANSWER_MAX_BYTES, ATTEMPTS_COUNT, BearerToken, TokenEndpoint, expiry_of
from kafscale.testing.certificates import make_authority
from tests.devtools.external.http_servers import (
    CLIENT_ID,
    CLIENT_SECRET,
    Asked,
    Endpoint,
    sending_server,
    token_endpoint,
)
from tests.devtools.processes.sasl import sign

OAUTH = "sasl.oauthbearer"
COMMON = "org.apache.kafka.common.security.oauthbearer"
JAAS = f"{COMMON}.OAuthBearerLoginModule required"
FORM = "application/x-www-form-urlencoded"
TOKEN = {"access_token": "opaque", "expires_in": 100}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(tokens, "BACKOFF", Backoff(0.0))
    with token_endpoint() as running:
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since 1970, to be changed."""
    now = [1_900_000_000.0]
    monkeypatch.setattr(tokens.time, "time", lambda: now[0])
    return now


def settings_for(endpoint: Endpoint, **further: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        f"{OAUTH}.token.endpoint.url": endpoint.url,
        f"{OAUTH}.client.credentials.client.id": CLIENT_ID,
        f"{OAUTH}.client.credentials.client.secret": CLIENT_SECRET,
        **{f"{OAUTH}.{name.replace('_', '.')}": value for name, value in further.items()},
    }


def asks(endpoint: Endpoint) -> TokenEndpoint:
    found = client_sasl(settings_for(endpoint)).tokens
    assert isinstance(found, TokenEndpoint)
    return found


def get(settings: dict[str, str]) -> str:
    source = client_sasl(settings).tokens
    assert source is not None
    return source.get().text


# ---- what is asked ---------------------------------------------------------------------------------------------------


def test_token_requests_match_those_of_kafka_clients(endpoint: Endpoint) -> None:
    endpoint.token = lambda: " a.b.c\n"
    assert get(settings_for(endpoint)) == "a.b.c"
    further = {"jwt_retriever_class": f"{COMMON}.ClientCredentialsJwtRetriever", "header_urlencode": "true"}
    assert get(settings_for(endpoint, scope="read write", **further)) == "a.b.c"
    grant = {"grant_type": ["client_credentials"]}
    assert endpoint.asked == [
        Asked(grant, f"{CLIENT_ID}:{CLIENT_SECRET}", FORM),
        Asked({**grant, "scope": ["read write"]}, "an+app:s%3Acret%2F%26", FORM),
    ]


@pytest.mark.parametrize(
    "named",
    [
        {f"{OAUTH}.client.id": CLIENT_ID, f"{OAUTH}.client.secret": CLIENT_SECRET, f"{OAUTH}.scope": "s"},
        {"sasl.jaas.config": f'{JAAS} clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="s";'},
        {
            "sasl.jaas.config": f'{JAAS} clientId="other" clientSecret="other" scope="other";',
            f"{OAUTH}.client.credentials.client.id": CLIENT_ID,
            f"{OAUTH}.client.credentials.client.secret": CLIENT_SECRET,
            f"{OAUTH}.scope": "s",
        },
    ],
)
def test_setting_names_of_librdkafka_and_older_kafka_versions_are_accepted(
    endpoint: Endpoint, named: dict[str, str]
) -> None:
    get({"sasl.mechanism": "OAUTHBEARER", f"{OAUTH}.token.endpoint.url": endpoint.url, **named})
    (asked,) = endpoint.asked
    assert (asked.credentials, asked.form["scope"]) == (f"{CLIENT_ID}:{CLIENT_SECRET}", ["s"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{OAUTH}.token.endpoint.url": "ftp://example.com"}, "neither a file nor an issuer"),
        ({f"{OAUTH}.token.endpoint.url": "https:///token"}, "neither a file nor an issuer"),
        ({f"{OAUTH}.token.endpoint.url": "https://[::1/token"}, "neither a file nor an issuer"),
        ({f"{OAUTH}.token.endpoint.url": "https://h:99999/token"}, "neither a file nor an issuer"),
        ({f"{OAUTH}.client.credentials.client.id": ""}, "client.id: is missing"),
        ({f"{OAUTH}.client.credentials.client.secret": ""}, "client.secret: is missing"),
        ({f"{OAUTH}.jwt.retriever.class": f"{COMMON}.JwtBearerJwtRetriever"}, "'JwtBearerJwtRetriever' is not known"),
        ({f"{OAUTH}.assertion.file": "/a"}, "is not known here"),
        ({"https.ca.location": "/nowhere.pem"}, "/nowhere.pem"),
        ({"https.ca.location": "~nobody-at-all/ca.pem"}, "~nobody-at-all/ca.pem' can't be read"),
        ({"https.unknown": "x"}, "is not known here"),
    ],
)
def test_settings_that_are_wrong(changes: dict[str, str], message: str) -> None:
    given = {**settings_for(Endpoint(url="https://id.example.com/token")), **changes}
    with pytest.raises(ConfigError) as caught:
        client_security(given)
    assert message in str(caught.value)
    assert CLIENT_SECRET not in str(caught.value)


# ---- whom is trusted -------------------------------------------------------------------------------------------------


def test_an_issuer_is_trusted_by_its_authority_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "BACKOFF", Backoff(0.0))
    authority, other = make_authority(tmp_path), make_authority(tmp_path, "other")
    with token_endpoint(authority.issue("issuer").server_context()) as endpoint:
        endpoint.token = lambda: "a.b.c"
        given = settings_for(endpoint)
        java = f'{JAAS} ssl.truststore.type=PEM ssl.truststore.location="{authority.ca_file}";'
        trusting = (
            {"https.ca.location": str(authority.ca_file)},
            {"https.ca.pem": authority.ca_file.read_text()},
            {"sasl.jaas.config": java},
        )
        for trust in trusting:
            assert get({**given, **trust}) == "a.b.c"
        for trust in ({}, {"https.ca.location": str(other.ca_file)}, {"ssl.ca.location": str(authority.ca_file)}):
            with pytest.raises(BrokerUnavailable, match="no token from https"):
                get({**given, **trust})
        assert len(endpoint.asked) == len(trusting)


# ---- how long it is used ---------------------------------------------------------------------------------------------


def test_a_token_is_used_until_most_of_its_life_is_over(endpoint: Endpoint, clock: list[float]) -> None:
    source = asks(endpoint)
    endpoint.answers = [(200, {"access_token": name, "expires_in": 100}) for name in ("one", "two")]
    used = []
    for seconds in (0, 79, 2, 79):
        clock[0] += seconds
        used.append(source.get().text)
    assert used == ["one", "one", "two", "two"]
    assert len(endpoint.asked) == 2


def test_a_valid_token_is_kept_while_its_issuer_does_not_answer(endpoint: Endpoint, clock: list[float]) -> None:
    source = asks(endpoint)
    one, two = ((200, {"access_token": name, "expires_in": 100}) for name in ("one", "two"))
    endpoint.answers = [one, *[(503, {})] * ATTEMPTS_COUNT, two]
    used = []
    for seconds in (0, 81, 3, 1):
        clock[0] += seconds
        used.append(source.get().text)
    assert used == ["one", "one", "one", "two"]
    assert len(endpoint.asked) == 2 + ATTEMPTS_COUNT
    endpoint.answers = [(503, {})] * ATTEMPTS_COUNT
    clock[0] += 100
    with pytest.raises(BrokerUnavailable):
        source.get()


def test_a_life_that_the_answer_does_not_tell_is_that_of_the_token(endpoint: Endpoint, clock: list[float]) -> None:
    source = asks(endpoint)
    endpoint.token = lambda: sign({"exp": int(clock[0]) + 100})
    first = source.get()
    assert first.expires_at == clock[0] + 100
    clock[0] += 79
    assert source.get() is first
    clock[0] += 2
    assert source.get().expires_at == clock[0] + 100


def test_a_token_of_unknown_life_is_used_once(endpoint: Endpoint) -> None:
    source = asks(endpoint)
    endpoint.token = lambda: f"opaque-{len(endpoint.asked)}"
    assert [source.get().text for _ in range(2)] == ["opaque-1", "opaque-2"]


@pytest.mark.parametrize("exp", [10**400, "soon", [1], {}])
def test_an_invalid_token_expiry_is_treated_as_unknown(endpoint: Endpoint, exp: object) -> None:
    text = f"a.{base64.urlsafe_b64encode(json.dumps({'exp': exp}).encode()).decode().rstrip('=')}.b"
    endpoint.answers = [(200, {"access_token": text, "expires_in": 10**400})]
    assert asks(endpoint).get() == BearerToken(text, None)
    assert expiry_of(f"a.{base64.urlsafe_b64encode(b'[' * 100_000).decode()}.b") is None


def test_many_logins_at_once_ask_once(endpoint: Endpoint) -> None:
    source = asks(endpoint)
    endpoint.answers = [(200, TOKEN)]
    threads = [threading.Thread(target=source.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(endpoint.asked) == 1


# ---- answers without a token -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, {"error": "invalid_scope", "error_description": "no\nsuch"}, r"400 invalid_scope - no\x0asuch"),
        (401, b"<html>", "401"),
        (302, b"", "302"),
        (200, {"token": "x"}, "without a token"),
        (200, {"access_token": 7}, "without a token"),
        (200, {"access_token": "two\x01words"}, "without a token"),
        (200, b"no JSON", "without a token"),
        (200, b"[" * ANSWER_MAX_BYTES, "without a token"),
        (200, b"[" * ANSWER_MAX_BYTES + b"[", "larger than 65536 bytes"),
    ],
)
def test_a_refused_token_request_fails_without_retries(
    endpoint: Endpoint, status: int, body: object, said: str
) -> None:
    endpoint.answers = [(status, body)]
    with pytest.raises(KafkaError, match="no token for 'an app'") as caught:
        asks(endpoint).get()
    assert said in str(caught.value)
    assert CLIENT_SECRET not in str(caught.value)
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_temporary_failures_are_retried_a_bounded_number_of_times(endpoint: Endpoint, status: int) -> None:
    source = asks(endpoint)
    endpoint.answers = [(status, {}), (status, {}), (200, TOKEN)]
    assert source.get().text == "opaque"
    endpoint.answers = [(status, {})] * 5
    with pytest.raises(BrokerUnavailable, match=f"it answers {status}"):
        asks(endpoint).get()
    assert len(endpoint.asked) == 6


def test_the_secret_is_not_shown(endpoint: Endpoint) -> None:
    shown = repr(client_sasl(settings_for(endpoint)))
    assert CLIENT_ID in shown
    assert CLIENT_SECRET not in shown


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nA", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
)
def test_an_issuer_that_sends_a_byte_now_and_then_held_a_login_for_ever(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "BACKOFF", Backoff(0.0))
    monkeypatch.setattr(tokens, "ANSWER_SECONDS", 0.5)
    with sending_server(lambda: [head, *[b"x"] * 5000], pause_seconds=0.02) as url:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"did not arrive as a whole in 0\.5 s"):
            get(settings_for(Endpoint(url=f"{url}/token")))
        assert time.monotonic() - began < 10
