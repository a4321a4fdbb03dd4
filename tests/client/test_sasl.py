"""SASL from the client's side: the settings, each mechanism, sessions that end."""

import json
from base64 import b64encode

import attrs
import pytest
import trio

from kafscale.client.client import Client
from kafscale.client.connection import connect_to
from kafscale.config import Address, SaslMechanism, SecurityProtocol
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.login.sasl import ClientSasl, client_sasl
from kafscale.login.security import client_security
from kafscale.login.tokens import TokenEndpoint, TokenFile
from kafscale.security.oauthbearer import parse_key_set
from kafscale.wire.error_codes import NONE, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM
from kafscale.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.devtools.external.http_servers import CLIENT_ID, CLIENT_SECRET, token_endpoint
from tests.devtools.fakes.scripted_broker import ScriptedBroker
from tests.devtools.processes.sasl import ALICE, PASSWORD, key_set, sign, signing_key
from tests.server.kafka.test_sasl import SASL, sasl_broker

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "


@pytest.mark.parametrize(
    ("options", "username", "password"),
    [
        ('username="alice" password="secret";', "alice", "secret"),
        ("username=alice password=secret ;", "alice", "secret"),
        (' password = "a \\"quoted\\\\ one; really"\n username="alice";', "alice", 'a "quoted\\ one; really'),
    ],
)
def test_jaas(options, username, password):
    found = client_sasl({"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS + options})
    assert (found.username, found.password) == (username, password)
    assert password not in repr(found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sasl.mechanism": "GSSAPI"},
        {"sasl.mechanism": "PLAIN"},
        {"sasl.mechanism": "PLAIN", "sasl.username": "a"},
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "nonsense"},
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS + 'username="a password=b;'},
        {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS + 'username="a" password="b";'},
        {"sasl.mechanism": "OAUTHBEARER"},
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "file:///token",
            "sasl.login.callback.handler.class": "com.example.Handler",
        },
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://example.com/token"},
        {"sasl.unknown": "x", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"},
    ],
)
def test_settings_that_are_wrong(settings):
    with pytest.raises(ConfigError, match=r"sasl\."):
        client_security({"security.protocol": "SASL_PLAINTEXT", **settings})


def test_settings_of_librdkafka():
    given = {"sasl.mechanisms": "SCRAM-SHA-256", "sasl.username": ALICE, "sasl.password": PASSWORD}
    found = client_security({"security.protocol": "sasl_plaintext", **given})
    assert found.protocol is SecurityProtocol.SASL_PLAINTEXT
    assert found.sasl == ClientSasl(mechanism=SaslMechanism.SCRAM_SHA_256, username=ALICE, password=PASSWORD)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_passwords(mechanism, tmp_path):
    async with sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as running:
        sasl = ClientSasl(mechanism=SaslMechanism(mechanism), username=ALICE, password=PASSWORD)
        assert await (await running.connect(SASL)).authenticate(sasl) == 60
        wrong = ClientSasl(mechanism=sasl.mechanism, username=ALICE, password="wrong")
        with pytest.raises(KafkaError) as caught:
            await (await running.connect(SASL)).authenticate(wrong)
        assert caught.value.code == SASL_AUTHENTICATION_FAILED
        assert "wrong" not in str(caught.value)


async def test_tokens(tmp_path):
    url = "file:///nowhere"
    async with sasl_broker(
        tmp_path, sasl_mechanisms=(SaslMechanism.OAUTHBEARER,), sasl_oauthbearer_jwks_endpoint_url=url
    ) as running:
        keys = running.broker.services.authenticator.token_keys
        keys.current = parse_key_set(json.dumps(key_set(signing_key())).encode())
        sasl = ClientSasl(mechanism=SaslMechanism.OAUTHBEARER, tokens=TokenFile(tmp_path / "token"))
        (tmp_path / "token").write_text(sign(lifetime_seconds=100) + "\n")
        assert 90 < await (await running.connect(SASL)).authenticate(sasl) <= 100
        (tmp_path / "token").write_text(sign(lifetime_seconds=-100))
        with pytest.raises(KafkaError, match="invalid_token"):
            await (await running.connect(SASL)).authenticate(sasl)
        (tmp_path / "token").unlink()
        with pytest.raises(ConfigError, match="can't be read"):
            await (await running.connect(SASL)).authenticate(sasl)


async def test_tokens_of_an_issuer(tmp_path):
    async with sasl_broker(
        tmp_path, sasl_mechanisms=(SaslMechanism.OAUTHBEARER,), sasl_oauthbearer_jwks_endpoint_url="file:///nowhere"
    ) as running:
        keys = running.broker.services.authenticator.token_keys
        keys.current = parse_key_set(json.dumps(key_set(signing_key())).encode())
        with token_endpoint() as endpoint:
            tokens = TokenEndpoint(url=endpoint.url, client_id=CLIENT_ID, client_secret=CLIENT_SECRET)
            sasl = ClientSasl(mechanism=SaslMechanism.OAUTHBEARER, tokens=tokens)
            endpoint.token = lambda: sign(lifetime_seconds=100)
            for _ in range(2):
                assert 90 < await (await running.connect(SASL)).authenticate(sasl) <= 100
            assert len(endpoint.asked) == 1
            endpoint.answers = [(401, {"error": "invalid_client"})]
            another = ClientSasl(mechanism=SaslMechanism.OAUTHBEARER, tokens=attrs.evolve(tokens, client_id="other"))
            with pytest.raises(KafkaError, match=r"no token for 'other' from .*: it answers 401 invalid_client"):
                await (await running.connect(SASL)).authenticate(another)


async def test_a_mechanism_that_the_broker_does_not_have(tmp_path):
    async with sasl_broker(tmp_path, sasl_mechanisms=(SaslMechanism.PLAIN,)) as running:
        sasl = ClientSasl(mechanism=SaslMechanism.SCRAM_SHA_256, username=ALICE, password=PASSWORD)
        with pytest.raises(KafkaError, match="the broker has PLAIN") as caught:
            await (await running.connect(SASL)).authenticate(sasl)
        assert caught.value.code == UNSUPPORTED_SASL_MECHANISM


def impostor(*, iterations=4096, signature=b"made up"):
    """A broker that knows no user, asks for so many iterations, and lets in whoever answers."""

    def authenticate(request):
        attributes = dict(each.split("=", 1) for each in bytes(request.auth_bytes).decode().split(",") if "=" in each)
        answer = f"v={b64encode(signature).decode()}"
        if "p" not in attributes:
            answer = f"r={attributes['r']}theirs,s={b64encode(bytes(16)).decode()},i={iterations}"
        return SaslAuthenticateResponse(error_code=NONE, error_message=None, auth_bytes=answer.encode())

    return ScriptedBroker(
        {
            SaslHandshakeRequest: lambda request: SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]),
            SaslAuthenticateRequest: authenticate,
        }
    )


@pytest.mark.parametrize(
    ("broker", "why"),
    [
        (impostor(), "does not do as SCRAM has it"),  # who does not know the password can't sign
        (impostor(signature=b""), "does not do as SCRAM has it"),
        (impostor(iterations=1_000_001), "asks for 1000001 iterations"),  # a second of CPU each
        (impostor(iterations=0), "does not do as SCRAM has it"),
    ],
    ids=["signature", "none", "iterations", "no iterations"],
)
async def test_an_impostor_in_the_place_of_the_broker(broker, why):
    given = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": ALICE, "sasl.password": PASSWORD}
    security = client_security({"security.protocol": "SASL_PLAINTEXT", **given})
    async with broker.listening() as address:
        with trio.fail_after(30), pytest.raises(KafkaError, match=why) as caught:
            await connect_to(address, "client", security=security)
    assert caught.value.code == SASL_AUTHENTICATION_FAILED


async def test_before_a_session_ends_another_connection_is_used(tmp_path, autojump_clock, monkeypatch):
    async with sasl_broker(tmp_path, connections_max_reauth_ms=60_000) as running:
        opened = []

        async def connect_to(address, client_id, **_):
            connection = await running.connect()
            connection._session_until = trio.current_time() + 51
            opened.append(connection)
            return connection

        monkeypatch.setattr("kafscale.client.client.connect_to", connect_to)
        client = Client(bootstrap=Address("192.0.2.2", 9092), client_id="c")
        for _ in range(4):
            await client.metadata([])
            await trio.sleep(30)
        assert len(opened) == 2
        await client.aclose()
        assert all(each.is_broken for each in opened)


async def test_a_missing_oauth_token_is_not_blamed_on_tls():
    """On SASL_PLAINTEXT every failure was said to be that of a listener that wants TLS."""
    broker = ScriptedBroker({SaslHandshakeRequest: lambda request: SaslHandshakeResponse(mechanisms=["OAUTHBEARER"])})
    given = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token"}
    security = client_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.oauthbearer.client.credentials.client.id": "a",
            "sasl.oauthbearer.client.credentials.client.secret": "b",
            **given,
        }
    )
    async with broker.listening() as address:
        with pytest.raises(BrokerUnavailable, match="no token from") as caught:
            await connect_to(address, "client", security=security)
    assert "TLS" not in str(caught.value)
